"""What a run had to send, worked out anew from its manifest."""

from tailrate.loadtest.engine.scenario.arrivals import Pattern


def schedule_of(manifest):
    """{(step, seq): intended_ns} by the plan that the manifest holds, from the arrival generator alone."""
    scenario = manifest.scenario
    pattern = Pattern(scenario["arrivals"], scenario["burstiness"], scenario["shape"])
    return {
        (step["index"], seq): step["start_ns"] + offset
        for step in scenario["steps"]
        for seq, offset in enumerate(
            pattern.offsets(step["rate"], step["seconds"], step["seed"], step.get("phase", 0.0)).tolist()
        )
    }
