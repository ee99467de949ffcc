"""What `--devices` means, how pages of exporters are read, field by field, and which devices an endpoint is on."""

import json
from types import SimpleNamespace

import gevent
import pytest

from tailrate.analysis.records.device_rows import DEVICE_COLUMNS
from tailrate.analysis.records.manifest import Manifest
from tailrate.loadtest.engine.clock import Base
from tailrate.loadtest.engine.endpoint import credentials
from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
from tailrate.loadtest.engine.record.device_collector import Collector, forever
from tailrate.loadtest.engine.record.devices.binding import bind
from tailrate.loadtest.engine.record.devices.collector import Sources, SourcesCollector, of_servers, sources
from tailrate.loadtest.engine.record.devices.exporters import amd, dcgm, host
from tailrate.loadtest.engine.record.devices.names import Names, SourceRows
from tailrate.loadtest.engine.record.devices.scraper import Scraper
from tailrate.loadtest.engine.record.devices.source import Claim, DeviceSource, parse
from tailrate.loadtest.engine.record.exposition import parse as figures
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

# ---- the option


def test_a_source_is_named_once_however_many_claims_are_on_it():
    found = parse("mlp/a=http://gpu1:9410@GPU-1+GPU-2,mlp/b=http://gpu1:9410/@MIG-3,dcgm+https://gpu2:9400/metrics")
    assert [(one.kind, one.url) for one in found] == [
        ("agent", "http://gpu1:9410"),
        ("dcgm", "https://gpu2:9400/metrics"),
    ]
    assert found[0].claims == (Claim("mlp/a", ("GPU-1", "GPU-2")), Claim("mlp/b", ("MIG-3",)))
    assert found[1].claims == (Claim("", ()),)
    assert found[1].path == "/metrics"
    assert parse("") == parse(" , ") == ()


@pytest.mark.parametrize(
    "text",
    ["gpu1:9410", "ftp://gpu1", "ganglia+http://gpu1", "http://user:secret@gpu1:9410", "http://", "=http://gpu1",
     "http://gpu1:0", "http://gpu1:port"],
)  # fmt: skip
def test_what_is_no_source_is_said_in_one_sentence(text):
    with pytest.raises(ScenarioError) as said:
        parse(text)
    assert "--devices" in str(said.value)
    assert "\n" not in str(said.value)


def test_of_several_servers_those_that_sample_devices_are_asked_one_of_each_host_with_its_own_token():
    def opened(url, token):
        return SimpleNamespace(client=SimpleNamespace(url=url, access=credentials.Access(token)))

    one, twin, other, mute = "http://a:1", "http://a:2", "http://b:1", "http://c:1"
    ours = {"extensions": ["telemetry", "statistics"]}
    servers = {one: ours | {"host": "a"}, twin: ours | {"host": "a"}, other: ours | {"host": "b"}, mute: {}}
    endpoints = [opened(url, f"for {url}") for url in servers]
    found = of_servers(endpoints, servers)
    assert [source.url for source in found.devices] == [one, other]
    assert {url: access.token for url, access in found.own.items()} == {one: f"for {one}", other: f"for {other}"}
    assert found.access.token == ""
    assert of_servers(endpoints[:1], {one: ours}) is None  # asked as the endpoint that it is
    assert of_servers(endpoints, {mute: {}, "http://d:1": {}}) is None


def test_agents_have_a_token_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setenv(credentials.TOKEN, "the-endpoints-own-token")
    monkeypatch.delenv(credentials.DEVICES_TOKEN, raising=False)
    options = SimpleNamespace(devices="http://gpu1:9410", ca_file="")
    assert sources(SimpleNamespace(devices="", ca_file="")) is None
    assert sources(options).access.token == ""
    (tmp_path / "token").write_text("for-the-agents\n")
    monkeypatch.setenv(credentials.DEVICES_FILE, str(tmp_path / "token"))
    assert sources(options).access.token == "for-the-agents"
    assert "for-the-agents" not in repr(sources(options))


# ---- DCGM

# as NVIDIA's documentation prints it: the page of the user guide (an A100), that of the README, whose memory has no
# thermometer, and that of a GPU that is divided
GUIDE = """# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-34319582-d595-d1c7-d1d2-179bcfa61660",device="nvidia0",Hostname="ub20-a100-k8s"} 1215
DCGM_FI_DEV_MEM_CLOCK{gpu="0",UUID="GPU-34319582-d595-d1c7-d1d2-179bcfa61660",device="nvidia0",Hostname="ub20-a100-k8s"} 1215
DCGM_FI_DEV_MEMORY_TEMP{gpu="0",UUID="GPU-34319582-d595-d1c7-d1d2-179bcfa61660",device="nvidia0",Hostname="ub20-a100-k8s"} 69
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-34319582-d595-d1c7-d1d2-179bcfa61660",device="nvidia0",Hostname="ub20-a100-k8s"} 61
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-34319582-d595-d1c7-d1d2-179bcfa61660",device="nvidia0",Hostname="ub20-a100-k8s"} 409.692000
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-34319582-d595-d1c7-d1d2-179bcfa61660",device="nvidia0",Hostname="ub20-a100-k8s"} 319159391
DCGM_FI_DEV_PCIE_REPLAY_COUNTER{gpu="0",UUID="GPU-34319582-d595-d1c7-d1d2-179bcfa61660",device="nvidia0",Hostname="ub20-a100-k8s"} 0
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-34319582-d595-d1c7-d1d2-179bcfa61660",device="nvidia0",Hostname="ub20-a100-k8s"} 0
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-34319582-d595-d1c7-d1d2-179bcfa61660",device="nvidia0",Hostname="ub20-a100-k8s"} 35690
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-34319582-d595-d1c7-d1d2-179bcfa61660",device="nvidia0",Hostname="ub20-a100-k8s"} 4845
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-34319582-d595-d1c7-d1d2-179bcfa61660",device="nvidia0",Hostname="ub20-a100-k8s"} 0.999
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-34319582-d595-d1c7-d1d2-179bcfa61660",device="nvidia0",Hostname="ub20-a100-k8s"} 0.129
"""  # noqa: E501
README = """DCGM_FI_DEV_SM_CLOCK{gpu="0", UUID="GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"} 139
DCGM_FI_DEV_MEM_CLOCK{gpu="0", UUID="GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"} 405
DCGM_FI_DEV_MEMORY_TEMP{gpu="0", UUID="GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"} 9223372036854775794
DCGM_FI_DEV_GPU_TEMP{gpu="0", UUID="GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"} 9223372036854775794
"""


def test_the_page_of_dcgms_guide_is_read_field_by_field():
    (uuid, reading), *others = dcgm(figures(GUIDE), "gpu1:9400").items()
    assert not others
    assert (uuid, reading.index, reading.host) == ("GPU-34319582-d595-d1c7-d1d2-179bcfa61660", 0, "ub20-a100-k8s")
    assert reading.values == {
        "sm_mhz": 1215,
        "mem_mhz": 1215,
        "temp_c": 61,
        "power_w": 409.692,
        "energy_j": pytest.approx(319159.391),
        "mem_bytes": 4845 * 2**20,
        "tensor_active_pct": pytest.approx(99.9),
        "dram_active_pct": pytest.approx(12.9),
    }


def test_a_blank_of_dcgms_is_no_figure():
    (reading,) = dcgm(figures(README), "x").values()
    assert reading.values == {"sm_mhz": 139, "mem_mhz": 405}


BLANKS = (2147483632, 2147483633, 9223372036854775792, 9223372036854775794, 140737488355328.0, "NaN", "+Inf", -1)
FIELDS = (
    "GPU_UTIL", "MEM_COPY_UTIL", "FB_USED", "POWER_USAGE", "TOTAL_ENERGY_CONSUMPTION", "GPU_TEMP", "SM_CLOCK",
    "MEM_CLOCK", "CLOCK_THROTTLE_REASONS", "GPU_UTIL_RATIO", "FB_USED_BYTES", "GPU_ENERGY_JOULES_TOTAL",
)  # fmt: skip
WIDE = ("TOTAL_ENERGY_CONSUMPTION", "FB_USED_BYTES", "GPU_ENERGY_JOULES_TOTAL")
"""Of 64 bits, whose figures may be as large as the blanks of 32."""


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in FIELDS for value in BLANKS if name not in WIDE or value not in (*BLANKS[:2], BLANKS[4])],
)
def test_what_cannot_be_meant_is_left_out(name, value):
    assert dcgm(figures(f'DCGM_FI_DEV_{name}{{gpu="0",UUID="GPU-a"}} {value}\n'), "x") == {}


def test_names_and_units_of_version_4_9_say_the_same():
    pairs = {
        "DCGM_FI_DEV_SM_CLOCK": (1410, "DCGM_FI_DEV_SM_CLOCK_HERTZ", 1.41e9),
        "DCGM_FI_DEV_MEM_CLOCK": (1593, "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", 1.593e9),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (5_000_000, "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 5000),
        "DCGM_FI_DEV_GPU_UTIL": (97, "DCGM_FI_DEV_GPU_UTIL_RATIO", 0.97),
        "DCGM_FI_DEV_MEM_COPY_UTIL": (31, "DCGM_FI_DEV_MEMORY_UTIL_RATIO", 0.31),
        "DCGM_FI_DEV_FB_USED": (1024, "DCGM_FI_DEV_FB_USED_BYTES", 2**30),
        "DCGM_FI_DEV_POWER_USAGE": (312.5, "DCGM_FI_DEV_BOARD_POWER_WATTS", 312.5),
        "DCGM_FI_DEV_GPU_TEMP": (66, "DCGM_FI_DEV_GPU_TEMP_CELSIUS", 66),
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": (4, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 4),
        "DCGM_FI_PROF_SM_ACTIVE": (0.5, "DCGM_FI_PROF_SM_UTIL_RATIO", 0.5),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.25, "DCGM_FI_PROF_TENSOR_UTIL_RATIO", 0.25),
        "DCGM_FI_PROF_DRAM_ACTIVE": (0.75, "DCGM_FI_PROF_DRAM_UTIL_RATIO", 0.75),
    }
    old = "".join(f'{name}{{gpu="3",UUID="GPU-a",Hostname="h"}} {value}\n' for name, (value, *_) in pairs.items())
    new = "".join(f'{name}{{gpu="3",gpu_uuid="GPU-a",hostname="h"}} {value}\n' for _, name, value in pairs.values())
    (one,), (other,) = (list(dcgm(figures(text), "x").values()) for text in (old, new))
    assert one.values == pytest.approx(other.values)
    assert (one.index, one.host) == (other.index, other.host) == (3, "h")
    assert set(one.values) == set(DEVICE_COLUMNS) - {
        "time_ns", "host", "device", "index", "own_mem_bytes", "net_in_bps", "net_out_bps",
    }  # fmt: skip


def test_of_two_figures_for_one_column_the_first_choice_counts_in_either_order():
    lines = ['DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="a"} 0.5\n', 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="a"} 80\n']
    for text in ("".join(lines), "".join(lines[::-1])):
        assert dcgm(figures(text), "x")["a"].values == {"util_pct": 80}
    assert dcgm(figures(lines[0]), "x")["a"].values == {"util_pct": 50}  # as on a divided GPU, which lacks the other


def test_parts_of_a_divided_gpu_have_what_is_theirs_and_the_gpu_what_they_share():
    text = "".join(
        f'DCGM_FI_{name}{{gpu="0",UUID="GPU-a",device="nvidia0",GPU_I_PROFILE="1g.10gb",GPU_I_ID="{part}"}} {value}\n'
        for part in (7, 8)
        for name, value in (("DEV_FB_USED", 100 * part), ("PROF_SM_ACTIVE", part / 10), ("DEV_POWER_USAGE", 250))
    )
    page = dcgm(figures(text), "x")
    assert {name: reading.values for name, reading in page.items()} == {
        "GPU-a/7": {"mem_bytes": 700 * 2**20, "sm_active_pct": 70},
        "GPU-a/8": {"mem_bytes": 800 * 2**20, "sm_active_pct": 80},
        "GPU-a": {"power_w": 250},  # once, and not for each part
    }


def test_amds_page_is_read_in_its_own_units():
    labels = 'gpu_id="2",gpu_uuid="ccff74a1-0000-1000-80e0-c6d49f5b0d86",gpu_partition_id="0",'
    labels += 'gpu_compute_partition_type="spx",hostname="tw038",serial_number="692409005408"'
    clocks = "".join(
        f'gpu_clock{{{labels},clock_type="GPU_CLOCK_TYPE_SYSTEM",clock_index="{die}"}} {mhz}\n'
        for die, mhz in enumerate((2000, 2100))
    )
    text = f"""gpu_gfx_activity{{{labels}}} 88
gpu_umc_activity{{{labels}}} 12
gpu_used_vram{{{labels}}} 183265
gpu_power_usage{{{labels}}} 750
gpu_package_power{{{labels}}} 748
gpu_energy_consumed{{{labels}}} 1.4e11
gpu_junction_temperature{{{labels}}} 76
gpu_clock{{{labels},clock_type="GPU_CLOCK_TYPE_MEMORY",clock_index="8"}} 1292
gpu_clock{{{labels},clock_type="GPU_CLOCK_TYPE_VIDEO",clock_index="2"}} 900
{clocks}"""
    ((name, reading),) = amd(figures(text), "x").items()
    assert (name, reading.index, reading.host) == ("ccff74a1-0000-1000-80e0-c6d49f5b0d86", 2, "tw038")
    assert reading.values == {
        "util_pct": 88, "mem_util_pct": 12, "mem_bytes": 183265 * 2**20, "power_w": 748, "energy_j": 140_000.0,
        "temp_c": 76, "mem_mhz": 1292, "sm_mhz": 2050,
    }  # fmt: skip
    shouted = "".join(f"AMD_{line.upper().split('{')[0]}{{{labels}}} 5\n" for line in ("gpu_gfx_activity{",))
    assert next(iter(amd(figures(shouted), "x").values())).values == {"util_pct": 5}


NODE = """node_cpu_seconds_total{{cpu="0",mode="idle"}} {idle}
node_cpu_seconds_total{{cpu="0",mode="iowait"}} 1
node_cpu_seconds_total{{cpu="0",mode="user"}} {user}
node_memory_MemTotal_bytes 1000
node_memory_MemAvailable_bytes 250
node_network_receive_bytes_total{{device="lo"}} {sent}
node_network_receive_bytes_total{{device="eth0"}} {received}
node_network_transmit_bytes_total{{device="eth0"}} {sent}
node_rapl_package_joules_total{{index="0",path="x"}} {joules}
node_rapl_package_joules_total{{index="1",path="y"}} {joules}
"""


class Played:
    """A client to whom pages are given, a second apart."""

    def __init__(self, *pages):
        self.pages = list(pages)
        self.at_ns = 0

    def send(self, method, path):
        self.at_ns += 10**9
        page = self.pages.pop(0)
        status, text = page if isinstance(page, tuple) else ("200", page)
        return EndpointAnswer(status, self.at_ns - 4_000_000, self.at_ns + 6_000_000, body=text.encode())


def scraped(kind, *pages, anchor_ns=10**18):
    rows, events = [], []
    source = DeviceSource(kind, f"http://gpu1:9400/{kind}", ())
    lines = SourceRows(source, Names(several=False), rows.extend)
    scraper = Scraper(source, Played(*pages), Base(anchor_ns), lines, lambda kind, **what: events.append((kind, what)))
    scraper.start()
    for _ in pages[1:]:
        scraper.scrape()
    return [dict(zip(DEVICE_COLUMNS, row, strict=True)) for row in rows], events, scraper


def test_node_exporters_counters_are_rates_between_two_scrapes():
    first = NODE.format(idle=100, user=50, received=1000, sent=2000, joules=500)
    second = NODE.format(idle=100.25, user=50.75, received=1500, sent=2700, joules=540)
    (before, after), events, _ = scraped("host", first, second)
    assert not events
    assert (before["device"], before["host"], before["util_pct"], before["mem_bytes"]) == (
        "cpu",
        "gpu1:9400",
        None,
        750,
    )
    assert after["util_pct"] == pytest.approx(75)
    assert (after["net_in_bps"], after["net_out_bps"], after["power_w"]) == pytest.approx((500, 700, 80))
    assert (before["energy_j"], after["energy_j"]) == (None, 1080)
    assert after["mem_util_pct"] == 75
    assert host(figures("process_cpu_seconds_total 1\n"), "x") == {}
    fallen = NODE.format(idle=1, user=1, received=0, sent=0, joules=1)
    assert scraped("host", second, fallen)[0][1]["util_pct"] is None  # the machine was started anew


# ---- scrapes


def gpu(joules, watts=200):
    return (
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="GPU-a",Hostname="h"}} {watts}\n'
        f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="0",UUID="GPU-a",Hostname="h"}} {joules * 1000}\n'
    )


def test_a_sample_is_of_the_middle_of_its_scrape_on_the_runs_clock():
    rows, _, scraper = scraped("dcgm", gpu(1), gpu(2), anchor_ns=5 * 10**18)
    assert [row["time_ns"] - 5 * 10**18 for row in rows] == [1_001_000_000, 2_001_000_000]
    (clock,) = scraper.clocks()
    assert (clock["host"], clock["offset_ns"], clock["error_ns"]) == ("gpu1:9400", 0, 5_000_000)
    assert scraper.facts()["clock"].startswith("the load machine's")


def test_a_counter_that_stands_still_says_nothing_of_when():
    """An exporter that measures each 3 s, scraped each second: the energy is known where it has changed, no more."""
    pages = [gpu(600 * (second // 3), 200 + second // 3) for second in range(12)]
    rows, _, scraper = scraped("dcgm", *pages)
    assert [row["energy_j"] for row in rows] == [None] * 3 + [600, None, None, 1200, None, None, 1800, None, None]
    assert [row["power_w"] for row in rows] == [200 + second // 3 for second in range(12)]
    assert scraper.facts()["changes_s"] == 3
    assert scraper.facts()["period_s"] == 1


def test_what_is_no_page_is_said_once_and_so_is_its_end():
    lies = ["<html>", ("500", "no"), ("timeout", ""), "up 1\n", 'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-a"} NaN\n', gpu(3)[:40]]
    rows, events, scraper = scraped("dcgm", gpu(1), *lies, gpu(2))
    assert [kind for kind, _ in events] == ["telemetry_lost", "telemetry_back"]
    assert "no figure that dcgm is known by" in events[0][1]["sentence"]
    assert [row["power_w"] for row in rows] == [200, 200]
    assert scraper.facts()["broken_lines"] == 1


# ---- names, and whose device it is


def test_hosts_and_devices_of_several_sources_keep_apart():
    names = Names(several=True)
    one, other = DeviceSource("agent", "http://a:1", ()), DeviceSource("agent", "http://b:1", ())
    page = DeviceSource("dcgm", "http://a:9400/metrics", ())
    first, second, third = (SourceRows(source, names, lambda rows: None) for source in (one, other, page))
    assert first.meet("cpu", "vm", 0) == ("vm", "cpu:vm")
    assert second.meet("cpu", "vm", 0) == ("vm (b:1)", "cpu:vm (b:1)")
    assert first.meet("GPU-1", "vm", 0) == ("vm", "GPU-1")
    assert third.meet("GPU-1", "a:9400", 0) is None  # its energy would count twice
    assert third.left_out == {"GPU-1"}
    alone = SourceRows(one, Names(several=False), lambda rows: None)
    assert alone.meet("cpu", "vm", 0) == ("vm", "cpu")


def facts(*devices, hosts=(), **more):
    return {"devices": {name: {} for name in devices}, "hosts": list(hosts)} | more


AT = {"m/a": "http://one:8000", "m/b": "http://two:8000"}


def test_endpoints_are_bound_by_the_name_that_rows_call_them():
    run = Manifest("run", "running", {}, [{"name": "old"}, {"model": "m", "variant": "b"}])
    asked = Sources(parse("old=http://agent:1@GPU-1,m/b=http://agent:1@GPU-2"), credentials.ANYBODY)
    client = SimpleNamespace(url="http://one:8000", access=credentials.ANYBODY)
    collector = SourcesCollector(asked, client, Base(0), [], print, run)
    collector._take({"facts": [facts("GPU-1", "GPU-2")], "clocks": []})
    assert [entry["devices"] for entry in run.endpoints] == [["GPU-1"], ["GPU-2"]]


def test_an_endpoint_is_on_the_devices_that_are_named_for_it():
    one, two = parse("m/a=http://agent:1@GPU-1,m/b=http://agent:1@GPU-2+GPU-3,http://two:1")
    found = bind(AT, [(one, facts("GPU-11", "GPU-2", "GPU-3", "cpu")), (two, facts("GPU-9"))])
    assert found.devices == {"m/a": ["GPU-11"], "m/b": ["GPU-2", "GPU-3"]}
    assert not found.remarks
    found = bind(AT, [(one, facts("GPU-11", "GPU-12", "GPU-2")), (two, facts("GPU-9"))])
    assert found.devices["m/a"] == []  # two begin so
    assert any("GPU-1, or several" in remark for remark in found.remarks)


def test_without_a_name_the_host_decides_by_url_by_what_the_source_says_or_by_address():
    sources = [
        (parse("http://one:9410")[0], facts("GPU-1", "cpu:one")),
        (parse("http://10.0.0.9:9410")[0], facts("GPU-2", hosts=["two"])),
    ]
    found = bind(AT, sources)
    assert found.devices == {"m/a": ["GPU-1"], "m/b": ["GPU-2"]}
    assert not found.remarks
    (local,) = parse("http://localhost:9410")
    assert bind({"m/a": "http://127.0.0.1:8000"}, [(local, facts("cpu"))]).devices == {"m/a": ["cpu"]}
    found = bind({"m/a": "http://elsewhere.invalid:8000"}, [(local, facts("GPU-1"))])
    assert found.devices == {"m/a": []}
    assert "no source of device samples is on the host of m/a" in found.remarks[0]


def test_of_several_gpus_the_process_decides_and_else_nothing_is_guessed():
    (source,) = parse("http://one:9410")
    known = facts("GPU-1", "GPU-2", "cpu", holders={"8000": ["GPU-2"]})
    assert bind({"m/a": "http://one:8000"}, [(source, known)]).devices == {"m/a": ["GPU-2"]}
    found = bind({"m/a": "http://one:8001"}, [(source, known)])
    assert found.devices == {"m/a": []}
    assert "which of 2 GPUs m/a is on is not known" in found.remarks[0]


def test_two_endpoints_of_a_pattern_share_what_is_named():
    (source,) = parse("m/*=http://agent:1@GPU-1")
    assert bind(AT, [(source, facts("GPU-1", "GPU-2"))]).devices == {"m/a": ["GPU-1"], "m/b": ["GPU-1"]}


@pytest.mark.parametrize(
    "rows", [[["1", "h"]], [7], 5, None, [[{}] * 4]], ids=["too short", "no row", "no rows", "nothing", "no values"]
)
def test_an_answer_that_holds_no_samples_is_an_event_and_the_next_is_asked_for(rows):
    """The greenlet that asks must outlive whatever comes: it would end without a word, and the samples with it."""
    columns = ["time_ns", "host", "device", "index"]
    bad = json.dumps({"cursor": "1", "host": "h", "columns": columns, "rows": rows})
    good = json.dumps({"cursor": "2", "host": "h", "columns": columns, "rows": [[5, "h", "cpu", 0]]})
    events, kept = [], []
    lines = SimpleNamespace(append=kept.append, flush=lambda: None)

    def event(kind, **what):
        events.append(kind)

    client = SimpleNamespace(prefix="", send=Played(bad, good).send)
    collector = Collector(client, Base(0), lines, event)
    asking = gevent.spawn(forever, collector.poll, 0.001, event)
    gevent.sleep(0.05)  # until the pages are at an end, which is no answer at all
    asking.kill()
    assert kept[-1][: len(columns)] == (5, "h", "cpu", 0)
    assert "warning" in events or len(kept) == 2
