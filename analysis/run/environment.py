"""What a run ran on and how it was asked: the facts in which two runs may differ beside their figures.

Left out is what differs each time without a meaning: ports of this machine, times, and what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailrate.analysis.records.loopback import leads_here
from tailrate.analysis.records.manifest import Manifest, endpoint_name
from tailrate.analysis.text import words

Origin = dict[tuple[str, str], str]
"""(`setting`, `version`, `host` or an endpoint; name) → value in words."""

_RESULTS = ("steps", "planned_steps", "slo")
_OF_AN_ENDPOINT = (
    "device", "max_batch", "device_name", "precision", "compile_mode", "threads", "buckets", "max_wait_ms", "max_queue",
    "weights", "weights_digest", "torch", "cuda",
)  # fmt: skip


def origin(manifest: Manifest) -> Origin:
    """The facts of a run; what it does not know is left out."""
    found = {}
    for group, key, value in _facts(manifest):
        name, said = words.fact(key, value)
        if said not in ("", words.ABSENT, "none"):
            found[group, name] = said
    return found


def _facts(manifest: Manifest) -> Iterator[tuple[str, str, Any]]:
    scenario = manifest.scenario
    yield "setting", "objective", words.sentence_list(manifest.slos)
    for key, value in words.flat(scenario).items():
        if key.partition(" ")[0] not in _RESULTS:
            yield "setting", key, value
    for key in ("seconds", "settle_s"):
        lengths = dict.fromkeys(words.significant(step.get(key)) for step in scenario["steps"])
        yield "setting", f"{'step' if key == 'seconds' else 'settle'} length", f"{', '.join(lengths)} s"
    for key, value in words.flat(manifest.versions).items():
        yield "version", key, value
    for host in manifest.hosts:
        for key, value in words.flat(host).items():
            if key != "role" and not (key == "url" and leads_here(str(value))):
                yield "host", f"{host.get('role') or ''} {key}".strip(), value
    for entry in manifest.endpoints:
        said = {**(entry.get("parameters") or {}), **entry}
        for key in _OF_AN_ENDPOINT:
            yield endpoint_name(entry), key, said.get(key)
