"""Device samples: what each GPU and the host did, every `period_ms`, kept in a ring until somebody reads them.

A `Sampler` thread asks its sources in turn. A reader's cursor is `epoch:sequence`: the epoch is the
sampler's own, so that a reader who outlives a restart gets what there is instead of nothing. The only
file that knows NVML. Energy is in joules from a counter where there is one, power in watts, time the
host's wall clock; what a source does not have is None, never zero.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from serve.wire import SAMPLE_FIELDS, WireError

log = logging.getLogger(__name__)

MIN_PERIOD_MS = 10
KEPT_SAMPLES = 50_000
KEPT_EVENTS = 100
RETRY_S = 5.0
POWERCAP = Path("/sys/class/powercap")

Sample = dict[str, Any]


class Source(Protocol):
    """Something that can be asked for the present state of its devices."""

    name: str

    def read(self) -> list[Sample]:
        """One sample per device, without `time_ns` and `host`; fields it lacks are left out."""
        ...


class HostSource:
    """The machine itself, as device `cpu`: utilisation, memory, and power where RAPL can be read."""

    name = "host"

    def __init__(self, powercap: Path = POWERCAP) -> None:
        import psutil

        self._psutil = psutil
        psutil.cpu_percent(None)  # the first call has nothing to compare with
        self._zones = [
            zone
            for zone in sorted(powercap.glob("intel-rapl:*"))
            if zone.name.count(":") == 1 and _readable(zone / "energy_uj")
        ]
        self._turns = [0] * len(self._zones)
        self._last: tuple[float, float] | None = None
        self._seen = [0] * len(self._zones)

    def read(self) -> list[Sample]:
        memory = self._psutil.virtual_memory()
        sample: Sample = {
            "device": "cpu",
            "index": 0,
            "util_pct": self._psutil.cpu_percent(None),
            "mem_util_pct": memory.percent,
            "mem_bytes": memory.total - memory.available,
        }
        if self._zones:
            now_s, energy_j = time.monotonic(), self._energy_j()
            sample["energy_j"] = energy_j
            if self._last is not None and now_s > self._last[0]:
                sample["power_w"] = (energy_j - self._last[1]) / (now_s - self._last[0])
            self._last = (now_s, energy_j)
        return [sample]

    def _energy_j(self) -> float:
        total_uj = 0
        for number, zone in enumerate(self._zones):
            now = int((zone / "energy_uj").read_text())
            self._turns[number] += now < self._seen[number]  # the counter starts over at its range
            self._seen[number] = now
            total_uj += now
            if self._turns[number]:
                total_uj += self._turns[number] * int((zone / "max_energy_range_uj").read_text())
        return total_uj / 1e6


class NvmlSource:
    """Every GPU that NVML sees; raises where there is no driver."""

    name = "nvml"

    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._gpus: list[tuple[int, str, Any]] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(gpu)
            self._gpus.append((index, uuid.decode() if isinstance(uuid, bytes) else uuid, gpu))
        self._lacking: set[tuple[int, str]] = set()
        self.lacking: list[str] = []
        """Sentences about fields that a GPU does not have, each said once."""

    def read(self) -> list[Sample]:
        return [self._sample(index, uuid, gpu) for index, uuid, gpu in self._gpus]

    def _sample(self, index: int, uuid: str, gpu: Any) -> Sample:
        nvml = self._nvml
        utilisation = self._ask(index, "util_pct", lambda: nvml.nvmlDeviceGetUtilizationRates(gpu))
        return {
            "device": uuid,
            "index": index,
            "util_pct": None if utilisation is None else float(utilisation.gpu),
            "mem_util_pct": None if utilisation is None else float(utilisation.memory),
            "mem_bytes": self._ask(index, "mem_bytes", lambda: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used)),
            "power_w": self._ask(index, "power_w", lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
            "energy_j": self._ask(index, "energy_j", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3),
            "temp_c": self._ask(index, "temp_c", lambda: float(nvml.nvmlDeviceGetTemperature(gpu, 0))),
            "sm_mhz": self._ask(index, "sm_mhz", lambda: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM))),
            "mem_mhz": self._ask(
                index, "mem_mhz", lambda: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM))
            ),
            "throttle_bits": self._ask(
                index, "throttle_bits", lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
            ),
        }

    def _ask(self, index: int, field: str, read: Callable[[], Any]) -> Any:
        nvml = self._nvml
        if (index, field) in self._lacking:
            return None
        try:
            return read()
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            self._lacking.add((index, field))
            self.lacking.append(f"GPU {index} has no {field}")
            return None


def sources() -> list[Source]:
    """The host always, and its GPUs where NVML finds any."""
    found: list[Source] = [HostSource()]
    try:
        found.append(NvmlSource())
    except Exception as problem:  # no driver, no library, no GPU: each has its own error, none of them ours
        log.info("no NVML here: %s", problem)
    return found


class Sampler:
    """Asks its sources every period, in a thread of its own, and keeps the latest samples."""

    def __init__(
        self, sources: Sequence[Source], period_ms: int = 100, kept: int = KEPT_SAMPLES, host: str | None = None
    ) -> None:
        self.host = host or socket.gethostname()
        self.period_ms = period_ms
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self._sources = sources
        self._silent_until_s = dict.fromkeys((source.name for source in sources), 0.0)
        self._epoch = f"{time.time_ns():x}"
        self._rows: deque[list[Any]] = deque(maxlen=kept)
        self._count = 0
        """Samples ever taken; the newest has this sequence number."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        due_s = time.monotonic()
        while not self._stopped.is_set():
            self.sample()
            # a late sample does not shift those after it; what was missed altogether is not made up for
            due_s = max(due_s + self.period_ms / 1e3, time.monotonic() - self.period_ms / 1e3)
            self._stopped.wait(max(0.0, due_s - time.monotonic()))

    def sample(self) -> None:
        """Asks every source once; one that fails is an event, and is asked again after a while."""
        for source in self._sources:
            if time.monotonic() < self._silent_until_s[source.name]:
                continue
            before_ns = time.time_ns()
            try:
                samples = source.read()
            except Exception as problem:
                self._silent_until_s[source.name] = time.monotonic() + RETRY_S
                self._event(source.name, f"{type(problem).__name__}: {problem}")
                continue
            time_ns = (before_ns + time.time_ns()) // 2
            for sentence in drain(getattr(source, "lacking", [])):
                self._event(source.name, sentence)
            with self._lock:
                for sample in samples:
                    row = sample | {"time_ns": time_ns, "host": self.host}
                    self._rows.append([row.get(field) for field in SAMPLE_FIELDS])
                    self._count += 1

    def _event(self, source: str, sentence: str) -> None:
        log.warning("telemetry: %s: %s", source, sentence)
        with self._lock:
            self._events.append({"time_ns": time.time_ns(), "source": source, "event": sentence})

    def read(self, after: str | None = None) -> dict[str, Any]:
        """The samples after the cursor, and the cursor to ask with next; without one, all that are kept."""
        epoch, sequence = _cursor(after)
        with self._lock:
            oldest = self._count - len(self._rows)
            if epoch != self._epoch or sequence > self._count:
                sequence = oldest
            rows = list(islice(self._rows, max(0, sequence - oldest), None))
            count, events = self._count, list(self._events)
        return {
            "cursor": f"{self._epoch}:{count}",
            "overwritten": max(0, oldest - sequence),
            "period_ms": self.period_ms,
            "host": self.host,
            "columns": list(SAMPLE_FIELDS),
            "rows": rows,
            "events": events,
        }


def drain(sentences: list[str]) -> list[str]:
    taken = sentences[:]
    sentences.clear()
    return taken


def _cursor(text: str | None) -> tuple[str, int]:
    if not text:
        return "", 0
    epoch, _, sequence = text.partition(":")
    if not epoch or not sequence.isdecimal():
        raise WireError(400, f"cursor '{text[:64]}' is malformed; send back the one of the last answer, or none")
    return epoch, int(sequence)


def _readable(path: Path) -> bool:
    try:
        path.read_text()
    except OSError:
        return False
    return True
