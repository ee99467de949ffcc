"""What the server said of itself before and after the run, judged: did it serve what it says it served?

The load generator keeps it in the manifest: `ingress`, and for each endpoint `parameters`, `parameters_after` and
`events` (counts of this run), or `events_unread` (why there are none). All of it may be absent, and then nothing is
said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tailrate.analysis.records.manifest import Manifest, endpoint_name
from tailrate.analysis.text.words import fact

Entry = Mapping[str, Any]


def flaws(manifest: Manifest, *, broken: bool = False) -> list[str]:
    """Why this was not the endpoint that is reported on, so that its figures prove nothing.

    `broken`: faults were injected on purpose, after which requests may well have come another way.
    """
    found = [sentence for sentence, since in _ways(manifest) if not (since and broken)]
    for name, entry in _endpoints(manifest):
        if failures := during(entry, "parity_failures", "sampled_failures"):
            of = during(entry, "parity_samples", "sampled_responses") or failures
            found.append(
                f"{failures} of {of} responses of {name} that were compared afterwards are not those of eager fp32"
                f"{_because(entry, 'sampled_why')}"
            )
        # whenever it happened: what the compiler has given up on is eager until the server ends
        if _number(_after(entry).get("fallbacks")) or during(entry, "fallbacks"):
            found.append(
                f"torch.compile gave up on code of {name}, which ran eager from then on"
                f"{_because(entry, 'recompile_reasons')}"
            )
    return found


def warnings(manifest: Manifest, *, broken: bool = False) -> list[str]:
    """What a reader of the figures must know of the endpoint."""
    found = [f"{sentence}, after a planned fault" for sentence, since in _ways(manifest) if since and broken]
    for name, entry in _endpoints(manifest):
        said = _after(entry)
        if isinstance(why := entry.get("events_unread"), str):
            found.append(
                f"the statistics of {name} could not be read ({why}): recompiles, batches that did not fit into memory "
                "and responses unlike eager's may have gone uncounted"
            )
        if said.get("parity_ok") is False:
            error, cosine = (fact("", said.get(f"parity_{key}"))[1] for key in ("relative_error", "cosine"))
            found.append(
                f"{name} was served on request although its outputs are not those of eager fp32 "
                f"(relative error {error}, cosine {cosine})"
            )
        recompiles, first_hits = during(entry, "recompiles"), during(entry, "first_hits")
        if recompiles or first_hits:
            waited = during(entry, "recompiled_requests")
            counted = f"{recompiles} recompiles, {first_hits} first hits"
            found.append(
                f"torch.compile was at work for {name} during the run ({counted})"
                + (f" and {waited} requests waited for it" if waited else "")
                + _because(entry, "recompile_reasons")
            )
        if profiled := during(entry, "profiled_batches"):
            found.append(f"{profiled} batches of {name} ran under the profiler, which slows them")
        if halved := during(entry, "out_of_memory"):
            found.append(f"{halved} batches of {name} did not fit into the device's memory and were halved")
    return found


def during(entry: Entry, event: str, parameter: str = "") -> int:
    """How often something happened in the run: as counted, or else as the metadata before and after have it."""
    events = entry.get("events")
    if isinstance(events, Mapping) and event in events:
        return _number(events[event])
    name = parameter or event
    before = entry.get("parameters")
    had = before.get(name) if isinstance(before, Mapping) else 0
    return max(0, _number(_after(entry).get(name)) - _number(had))


def _ways(manifest: Manifest) -> Iterator[tuple[str, bool]]:
    """And whether that came up during the run only."""
    ingress = manifest.extra.get("ingress")
    if not isinstance(ingress, Mapping):
        return
    before, after = (found if isinstance(found := ingress.get(key), Mapping) else {} for key in ("before", "after"))
    for said, since in ((before, False), (after, True)):
        if said.get("way") == "plain" and said.get("fallback"):
            yield f"requests fell back to the server's plain path: {said['fallback']}", since
            return
    if missed := _number(after.get("slow_requests")) - _number(before.get("slow_requests")):
        yield f"{missed} requests fell back to the server's plain path, as no replica seemed to be there", True


def _endpoints(manifest: Manifest) -> Iterator[tuple[str, Entry]]:
    for entry in manifest.endpoints:
        yield endpoint_name(entry), entry


def _after(entry: Entry) -> Entry:
    """The metadata after the run, where there is none that before it."""
    for key in ("parameters_after", "parameters"):
        if isinstance(found := entry.get(key), Mapping) and found:
            return found
    return {}


def _because(entry: Entry, key: str) -> str:
    why = _after(entry).get(key)
    return f": {why}" if isinstance(why, str) and why else ""


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int | float) else 0
