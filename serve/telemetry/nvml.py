"""What NVML knows of each GPU, as samples. The only file that imports pynvml.

Of several ways to a figure the truest is taken: power at the instant rather than the second's average, the mean of the
driver's own utilisation samples since the last read rather than the latest of them, and where the GPU counts it (Hopper
and newer) the share of time in which its SMs, tensor cores and memory really worked, which utilisation does not tell.
A field that a GPU lacks, or whose reading fails, is None and said once. A GPU that falls off the bus is an event; it is
looked for again every second, and the others go on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tailrate.serve.telemetry.own_processes import is_kin

RETRY_S = 1.0
PROCESSES_S = 1.0
"""The list of processes is asked for so often: it can cost the driver milliseconds."""
ACTIVITY = {"sm_active_pct": 2, "tensor_active_pct": 5, "dram_active_pct": 10}
"""Numbers of the activity counters."""

Sample = dict[str, Any]


@dataclass(slots=True)
class _Gpu:
    index: int
    uuid: str
    handle: Any
    mig: bool = False
    lacking: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    """Fields of which a reading failed, which is said once and tried again."""
    lost_until_s: float = 0.0
    lost: bool = False
    seen_us: int = 0
    """Time stamp of the latest utilisation sample."""
    activity: Any = None
    """The last reading of the activity counters, which the next is compared with."""
    own_bytes: int | None = None
    own_at_s: float = 0.0


class NvmlSource:
    """Every GPU and MIG device; raises where there is no driver."""

    name = "nvml"

    def __init__(self, own: Callable[[int], bool] | None = None) -> None:
        import pynvml

        self._nvml = pynvml
        self._own = own or is_kin
        self.remarks: list[str] = []
        """Sentences for whoever reads samples, each said once."""
        self._gone = (
            pynvml.NVMLError_Uninitialized, pynvml.NVMLError_DriverNotLoaded, pynvml.NVMLError_GpuIsLost,
            pynvml.NVMLError_ResetRequired, pynvml.NVMLError_LibRmVersionMismatch,
        )  # fmt: skip
        self._absent = (
            pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NoPermission,
            AttributeError,  # a pynvml that is older than what is asked of it
        )  # fmt: skip
        pynvml.nvmlInit()
        self._gpus: list[_Gpu] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gpu = _Gpu(index, self._uuid(handle), handle)
            except pynvml.NVMLError as problem:
                self.remarks.append(f"GPU {index} cannot be read: {problem}")
                continue
            self._gpus += [gpu, *self._parts(gpu)]

    def read(self) -> list[Sample]:
        now_s = time.monotonic()
        found = []
        for gpu in self._gpus:
            if gpu.lost and (now_s < gpu.lost_until_s or not self._found_again(gpu)):
                continue
            try:
                found.append(self._sample(gpu, now_s))
            except self._gone as problem:
                gpu.lost, gpu.lost_until_s = True, now_s + RETRY_S
                self.remarks.append(f"GPU {gpu.index} ({gpu.uuid}) is lost: {problem}")
        return found

    def holders(self) -> dict[str, list[int]]:
        """By device, the processes that have memory on it, as far as the driver says."""
        found: dict[str, list[int]] = {}
        for gpu in self._gpus:
            with suppress(self._nvml.NVMLError, AttributeError):
                listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)
                found[gpu.uuid] = [int(process.pid) for process in listed]
        return found

    # ---- one GPU

    def _sample(self, gpu: _Gpu, now_s: float) -> Sample:
        nvml, handle = self._nvml, gpu.handle
        readers: dict[str, Callable[[], Any]] = {
            "util_pct": lambda: self._utilisation(gpu),
            "mem_util_pct": lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).memory),
            "mem_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
            "power_w": lambda: self._watts(gpu),
            "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
            "temp_c": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "sm_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "mem_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "throttle_bits": lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            "own_mem_bytes": lambda: self._own_memory(gpu, now_s),
        }
        sample: Sample = {"device": gpu.uuid, "index": gpu.index}
        sample |= {name: self._ask(gpu, name, read) for name, read in readers.items()}
        return sample | (self._ask(gpu, "activity counters", lambda: self._activity(gpu)) or {})

    def _ask(self, gpu: _Gpu, name: str, read: Callable[[], Any]) -> Any:
        if name in gpu.lacking:
            return None
        try:
            return read()
        except self._gone:
            raise
        except self._absent:
            gpu.lacking.add(name)
            self.remarks.append(f"GPU {gpu.index} has no {name}")
        except self._nvml.NVMLError as problem:
            if name not in gpu.failed:
                gpu.failed.add(name)
                self.remarks.append(f"GPU {gpu.index} did not say its {name}: {problem}")
        return None

    def _utilisation(self, gpu: _Gpu) -> float:
        """The mean of what the driver sampled since the last read; where it says nothing, its latest figure."""
        nvml = self._nvml
        if "samples" not in gpu.lacking:
            try:
                _, samples = nvml.nvmlDeviceGetSamples(gpu.handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, gpu.seen_us)
                new = [sample for sample in samples if sample.timeStamp > gpu.seen_us]
                first, gpu.seen_us = not gpu.seen_us, max((s.timeStamp for s in new), default=gpu.seen_us)
                if new and not first:
                    return sum(float(sample.sampleValue.uiVal) for sample in new) / len(new)
            except nvml.NVMLError_NotFound:
                pass  # nothing new
            except self._absent:
                gpu.lacking.add("samples")
        return float(nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu)

    def _watts(self, gpu: _Gpu) -> float:
        nvml = self._nvml
        if "power at the instant" not in gpu.lacking:
            try:
                (found,) = nvml.nvmlDeviceGetFieldValues(gpu.handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
                if found.nvmlReturn == nvml.NVML_SUCCESS:
                    return float(found.value.uiVal) / 1e3
            except (*self._absent, nvml.NVMLError_InvalidArgument):
                pass
            gpu.lacking.add("power at the instant")
            self.remarks.append(f"GPU {gpu.index} has no power at the instant: its power may be a second's average")
        return float(nvml.nvmlDeviceGetPowerUsage(gpu.handle)) / 1e3

    def _activity(self, gpu: _Gpu) -> Sample:
        """How busy SMs, tensor cores and memory were since the last read; nothing the first time."""
        nvml = self._nvml
        if gpu.activity is None and (gpu.mig or not nvml.nvmlGpmQueryDeviceSupport(gpu.handle).isSupportedDevice):
            raise nvml.NVMLError_NotSupported
        latest = nvml.nvmlGpmSampleAlloc()
        try:
            nvml.nvmlGpmSampleGet(gpu.handle, latest)
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(latest)
            raise
        before, gpu.activity = gpu.activity, latest
        if before is None:
            return {}
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(ACTIVITY)
        asked.sample1, asked.sample2 = before, latest
        for place, number in enumerate(ACTIVITY.values()):
            asked.metrics[place].metricId = number
        try:
            nvml.nvmlGpmMetricsGet(asked)
        finally:
            nvml.nvmlGpmSampleFree(before)
        return {
            name: float(asked.metrics[place].value)
            for place, name in enumerate(ACTIVITY)
            # of one reading in fifteen an H200 says that all is well, and that its memory was NaN percent busy
            if asked.metrics[place].nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(asked.metrics[place].value)
        }

    def _own_memory(self, gpu: _Gpu, now_s: float) -> int | None:
        """What this server's processes hold of the GPU's memory."""
        if now_s - gpu.own_at_s >= PROCESSES_S:
            gpu.own_at_s = now_s
            listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)
            own = [process.usedGpuMemory for process in listed if self._own(process.pid)]
            gpu.own_bytes = sum(own) if own and None not in own else None
        return gpu.own_bytes

    # ---- which GPUs there are

    def _uuid(self, handle: Any) -> str:
        uuid = self._nvml.nvmlDeviceGetUUID(handle)
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)

    def _parts(self, whole: _Gpu) -> list[_Gpu]:
        """The MIG devices of a GPU that is divided; a replica on one of them names that as its device."""
        nvml = self._nvml
        found = []
        try:
            if nvml.nvmlDeviceGetMigMode(whole.handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
                return []
            for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole.handle)):
                try:
                    handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole.handle, place)
                except nvml.NVMLError_NotFound:
                    continue
                found.append(_Gpu(whole.index, self._uuid(handle), handle, mig=True))
        except self._absent:
            pass
        except nvml.NVMLError as problem:
            self.remarks.append(f"GPU {whole.index} did not say its MIG devices: {problem}")
        return found

    def _found_again(self, gpu: _Gpu) -> bool:
        """Its handle anew, from a driver that may have been started anew."""
        nvml = self._nvml
        try:
            try:
                gpu.handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid.encode())
            except nvml.NVMLError_Uninitialized:
                nvml.nvmlInit()
                gpu.handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid.encode())
        except nvml.NVMLError:
            gpu.lost_until_s = time.monotonic() + RETRY_S
            return False
        gpu.lost, gpu.activity, gpu.seen_us = False, None, 0
        self.remarks.append(f"GPU {gpu.index} ({gpu.uuid}) is back")
        return True
