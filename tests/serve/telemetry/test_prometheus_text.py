from prometheus_client.parser import text_string_to_metric_families

from tailrate.serve.telemetry import prometheus_text
from tailrate.serve.wire import SAMPLE_FIELDS

GPU = {
    "time_ns": 5,
    "host": "h",
    "device": "GPU-1",
    "index": 1,
    "util_pct": 97.5,
    "energy_j": 12.25,
    "throttle_bits": 4,
}
CPU = {"time_ns": 5, "host": "h", "device": "cpu", "index": 0, "util_pct": 3.0}


def rows(*samples: dict[str, object]) -> list[list[object]]:
    return [[sample.get(field) for field in SAMPLE_FIELDS] for sample in samples]


def test_every_figure_of_a_sample_is_exported_with_its_device() -> None:
    assert set(prometheus_text.DEVICES) == set(SAMPLE_FIELDS) - {"time_ns", "host", "device", "index"}
    found = {
        family.name: family for family in text_string_to_metric_families(prometheus_text.of_devices(rows(GPU, CPU)))
    }
    assert set(found) == {f"tailrate_device_{name}" for name in ("util_pct", "energy_j", "throttle_bits")}
    util = {sample.labels["device"]: sample for sample in found["tailrate_device_util_pct"].samples}
    assert {device: sample.value for device, sample in util.items()} == {"GPU-1": 97.5, "cpu": 3.0}
    assert util["GPU-1"].labels == {"host": "h", "device": "GPU-1", "index": "1"}
    assert all(family.documentation.endswith(".") for family in found.values())


def test_energy_is_a_counter_and_what_a_device_lacks_is_absent() -> None:
    (energy,) = [
        f for f in text_string_to_metric_families(prometheus_text.of_devices(rows(GPU, CPU))) if "energy" in f.name
    ]
    assert energy.type == "counter"
    assert [(sample.name, sample.labels["device"], sample.value) for sample in energy.samples] == [
        ("tailrate_device_energy_j_total", "GPU-1", 12.25)
    ]
    assert prometheus_text.of_devices([]) == ""
