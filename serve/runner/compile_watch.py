"""What torch.compile does in this process: what it built before ready, and what it builds behind a request's back.

Observed, never guessed: Dynamo's own frame counter tells in tens of nanoseconds whether it was busy during a
call, its compilation metrics tell why and where, its graph-break list tells what left the graph. A process
that does not compile never imports the compiler, which takes a second or two.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

log = logging.getLogger(__name__)

Kind = Literal["first_hit", "recompile", "fallback"]
"""first_hit: something was compiled or recorded for the first time. recompile: a guard failed, so it was compiled
once more. fallback: the compiler gave up (past the recompile limit, or on code it cannot follow), and what it gave
up on runs eager from now on, without a word."""

KINDS: tuple[Kind, ...] = ("first_hit", "recompile", "fallback")  # worse ones later
MOST_LISTED = 16
UNKNOWN = "an unknown place"
MOST_METRICS = 1024
"""Compilations that torch is asked to remember: its own 64 are fewer than a warm-up with graph breaks makes."""


@dataclass(frozen=True, slots=True)
class Event:
    """One piece of work of the compiler after ready."""

    kind: Kind
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.place}: {self.reason}"


class Compiler:
    """Watches torch.compile; `ready` draws the line between warm-up and what requests have to wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames: Mapping[str, int] = {}
        self._recordings = 0
        """CUDA graphs recorded since ready: Dynamo's counter does not know of them."""
        self._at = (0, 0)
        self._last: Any = None
        self._counts: Counter[Kind] = Counter()
        self._told: Counter[Kind] = Counter()
        self._events: list[Event] = []
        self._before_ready: tuple[int, dict[str, int]] | None = None

    def ready(self, fail_on_recompile: bool = False) -> None:
        """Warm-up is over: from now on every compilation is an event, or an error if so wished."""
        if (dynamo := _dynamo()) is None:
            return
        # past the limit a request had better be slow than fail: it is run eager, and that is counted
        sys.modules["torch._dynamo"].config.fail_on_recompile_limit_hit = False
        self._before_ready = (compilations(), graph_breaks())
        self._last = next(reversed(dynamo.get_compilation_metrics()), None)
        self._frames = dynamo.counters["frames"]
        self._at = self._mark()
        _on_recording(self._record)
        if fail_on_recompile:
            import torch

            torch.compiler.set_stance("fail_on_recompile")

    def happened(self) -> Kind | None:
        """The worst that the compiler did since the last call of this; to be asked after each batch."""
        at = self._mark()
        if at == self._at:
            return None
        self._at = at
        with self._lock:
            self._harvest()
            fresh = self._counts - self._told
            self._told = self._counts.copy()
        # busy without a trace of its own: a graph recorded, or a frame that it had nothing to do for
        return max(fresh, key=KINDS.index, default="first_hit")

    def events(self) -> list[Event]:
        """The first of them, up to `MOST_LISTED`."""
        with self._lock:
            self._harvest()
            return list(self._events)

    def facts(self) -> dict[str, Any]:
        """For the metadata."""
        events = self.events()
        graphs, breaks = self._before_ready or (compilations(), graph_breaks())
        return {
            "compilations": graphs,
            "recompiles": self._counts["recompile"],
            "first_hits": self._counts["first_hit"] + self._recordings,
            "fallbacks": self._counts["fallback"],
            "recompile_reasons": "; ".join(map(str, events)),
            "cudagraph_skips": cudagraph_skips(),
            "graph_breaks": sum(breaks.values()),
            "graph_break_places": "; ".join(_listed(breaks)),
        }

    def _mark(self) -> tuple[int, int]:
        return self._frames.get("total", 0), self._recordings

    def _record(self) -> None:
        self._recordings += 1

    def _harvest(self) -> None:
        """Turns the compilation metrics that are new into events; the lock is held."""
        dynamo = _dynamo()
        if dynamo is None or not self._frames:
            return
        fresh = []
        for metrics in reversed(dynamo.get_compilation_metrics()):
            if metrics is self._last:
                break
            fresh.append(metrics)
        if not fresh:
            return
        self._last = fresh[0]
        for metrics in reversed(fresh):
            if metrics.is_runtime:  # tuning or recording that belongs to a compilation that has its own entry
                continue
            event = _event(metrics)
            self._counts[event.kind] += 1
            log.warning("torch.compile after ready: %s", event)
            if len(self._events) < MOST_LISTED:
                self._events.append(event)


def _event(metrics: Any) -> Event:
    if metrics.fail_type is not None:
        place = _place(metrics.fail_user_frame_filename, metrics.fail_user_frame_lineno, metrics.co_name)
        why = metrics.recompile_reason if "limit exceeded" in (metrics.fail_reason or "") else None
        reason = _first_line(metrics.fail_reason) + (f" ({_first_line(why)})" if why else "")
        return Event("fallback", place, reason)
    place = _place(metrics.co_filename, metrics.co_firstlineno, metrics.co_name)
    if metrics.recompile_reason is not None:
        return Event("recompile", place, _first_line(metrics.recompile_reason))
    return Event("first_hit", place, "compiled for the first time")


def compilations() -> int:
    """How many graphs torch.compile has built in this process."""
    return int(_counted("stats").get("unique_graphs", 0))


def cudagraph_skips() -> int:
    """How often torch ran without a CUDA graph what was meant to be one, such as for a tensor on the CPU: silently."""
    return int(_counted("inductor").get("cudagraph_skips", 0))


def graph_breaks() -> dict[str, int]:
    """Where and why torch.compile had to leave the graph, or gave up on a function, and how often each."""
    found: Counter[str] = Counter()
    if (dynamo := _dynamo()) is None:
        return found
    for broken in list(dynamo.graph_break_reasons):
        frame = broken.user_stack[-1] if broken.user_stack else None
        place = _place(frame.filename, frame.lineno, frame.name) if frame else UNKNOWN
        found[f"{place}: {_first_line(broken.reason)}"] += 1
    for metrics in reversed(dynamo.get_compilation_metrics()):
        if metrics.fail_type is not None:
            event = _event(metrics)
            found[f"{event.place}, all of which runs eager: {event.reason}"] += 1
        if str(metrics.compile_id).startswith("0/0"):  # what is before belongs to a mode that was given up
            break
    return found


def allow_compilations(count: int) -> None:
    """Lets one function be compiled this often; past it warm-up fails, instead of serving what runs eager unseen.

    Nothing where the compiler is not loaded, so it is to be called again after whatever may have loaded it.
    """
    if (dynamo := _dynamo()) is None:
        return
    config = sys.modules["torch._dynamo"].config
    config.recompile_limit = max(config.recompile_limit, count)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, count)
    config.fail_on_recompile_limit_hit = True
    dynamo.set_compilation_metrics_limit(MOST_METRICS)


def refused(problem: BaseException) -> str | None:
    """The sentence for a request that would recompile where that is not allowed; None for any other problem."""
    first, _, rest = str(problem).partition("\n")
    if not isinstance(problem, RuntimeError) or "stance is 'fail_on_recompile'" not in first:
        return None
    why = next((line.strip().removeprefix("- ") for line in rest.splitlines() if line.strip().startswith("- ")), "")
    return "this request would make torch.compile compile again, which --fail-on-recompile forbids" + (
        f": {why[:200]}" if why else ""
    )


def send_logs_to(folder: Path, environ: MutableMapping[str, str]) -> Path | None:
    """Where TORCH_LOGS of every process of the server goes, which none of them could show; None if it is not set.

    To be called before the processes start: torch reads `TORCH_LOGS_OUT` when it is imported.
    """
    if not environ.get("TORCH_LOGS"):
        return None
    if "TORCH_LOGS_OUT" not in environ:
        folder.mkdir(parents=True, exist_ok=True)
        environ["TORCH_LOGS_OUT"] = str(folder / "torch.log")
    return Path(environ["TORCH_LOGS_OUT"])


# ---- what torch tells


def _dynamo() -> Any:
    """`torch._dynamo.utils` if anything in this process has loaded it."""
    return sys.modules.get("torch._dynamo.utils")


def _counted(what: str) -> Mapping[str, int]:
    dynamo = _dynamo()
    found: Mapping[str, int] = dynamo.counters[what] if dynamo else {}
    return found


def _on_recording(tell: Callable[[], None]) -> None:
    """Calls `tell` when a CUDA graph is recorded."""
    from torch._dynamo.callback import CallbackTrigger, callback_handler

    def started(found: Any) -> None:
        if found.callback_trigger is CallbackTrigger.CUDAGRAPH_RECORDING:
            tell()

    callback_handler.register_start_callback(started)


def _place(filename: str | None, line: int | None, name: str | None) -> str:
    """`models/bert.py:31 in forward`: the file's last two parts, and a function's name after a break as before it."""
    name = re.sub(r"^torch_dynamo_resume_in_(.+)_at_\d+$", r"\1", name or "")
    if not filename:
        return name or UNKNOWN
    where = "/".join(PurePath(filename).parts[-2:])
    return f"{where}:{line} in {name}" if name else f"{where}:{line}"


def _first_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[0][:200] if lines else "torch does not say why"


def _listed(found: Mapping[str, int]) -> list[str]:
    return [text if times == 1 else f"{text} ({times} times)" for text, times in list(found.items())[:MOST_LISTED]]
