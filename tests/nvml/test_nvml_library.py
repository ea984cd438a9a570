"""The NVML sampler on the real C ABI: real nvidia-ml-py, in a process of its own, loads a library built here by gcc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from costguard.hardware.nvml import NvmlSampler
from costguard.policies.utilization import is_idle
from nvml_stub import CARD_0, CARD_1, build_library, environment

A, B = CARD_0, CARD_1
SLICE_0, SLICE_1 = (f"MIG-0{n}000000-0000-0000-0000-000000000000" for n in (0, 1))
STEP_J = 600.0
"""What each reading adds to the counter, unless told otherwise."""

# Samples every millisecond with a clock on which each sample is `stride_s` later.
CHILD = """
import dataclasses, json, sys, threading, time
import pynvml
from costguard.hardware.nvml import NvmlSampler

plan = json.loads(sys.argv[1])

class Strides:
    now = 0
    def now_ns(self):
        self.now += round(plan["stride_s"] * 1e9)
        return self.now
    wall_ns = staticmethod(time.time_ns)

def running():
    return any(thread.name == "costguard-nvml" for thread in threading.enumerate())

if plan["others"]:
    pynvml.nvmlInit()
sampler = NvmlSampler(0.001, plan["pids"], Strides(), uuids=plan["uuids"])
sampler.start()
sampler.start()
deadline = time.monotonic() + 20
while running() and time.monotonic() < deadline:
    kept = [total.samples for total in sampler.totals().values() if not total.lost]
    if kept and min(kept) >= plan["rounds"]:
        break
    time.sleep(0.002)
latest = sampler.latest()
sampler.stop()
sampler.stop()
library = pynvml.nvmlLib
print(json.dumps({
    "problem": sampler.problem,
    "latest": {uuid: dataclasses.asdict(reading) for uuid, reading in latest.items()},
    "totals": {uuid: dataclasses.asdict(total) for uuid, total in sampler.totals().items()},
    "events": [dataclasses.asdict(event) for event in sampler.events()],
    "left_over": running(),
    "users": library.fake_users() if hasattr(library, "fake_users") else None,
    "calls": {f: library.fake_calls(f.encode(), 0) for f in plan["calls"]},
}, default=sorted))
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Builds the library, once each with the symbols of a new, an old and an ancient driver; gives its folder."""
    built: dict[tuple[str, ...], Path] = {}

    def make(*flags: str) -> Path:
        if flags not in built:
            built[flags] = build_library(tmp_path_factory.mktemp("nvml"), *flags)
        return built[flags]

    return make


@pytest.fixture
def watch(build: Callable[..., Path]) -> Callable[..., Any]:
    """Watches a story to its end in a process of its own, in which every warning is an error (also one on import)."""

    def run(
        *flags: str,
        rounds: int = 20,
        stride_s: float = 1.0,
        pids: tuple[int, ...] = (),
        uuids: list[str] | None = None,
        calls: tuple[str, ...] = (),
        others: bool = False,
        folder: Path | None = None,
        **story: str | int,
    ) -> Any:
        plan = {"rounds": rounds, "stride_s": stride_s, "pids": pids, "uuids": uuids, "calls": calls, "others": others}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", CHILD, json.dumps(plan)],
            env=environment(folder or build(*flags), **story),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert not done.stderr
        seen = json.loads(done.stdout, object_hook=lambda fields: SimpleNamespace(**fields))
        for name in ("latest", "totals", "calls"):
            setattr(seen, name, vars(getattr(seen, name)))
        assert not seen.left_over
        return seen

    return run


# -- one card -------------------------------------------------------------------------------------------------------


def test_a_reading_has_every_figure(watch: Callable[..., Any]) -> None:
    """Each unit comes out as it went in through NVIDIA's structs, and what the driver keeps is not called used."""
    seen = watch(
        UTIL=87,
        USED_MB=61000,
        TOTAL_MB=80000,
        RESERVED_MB=700,
        POWER_MW=650500,
        LIMIT_MW=700000,
        CLOCK=1755,
        MAX_CLOCK=1980,
        REASONS=0x4,
        PIDS="self+7",
        ENERGY_MJ=123,
        ENERGY_STEP_MJ=0,
    )
    reading = vars(seen.latest[A])
    assert reading.pop("at_ns") > 0
    assert reading == {
        "uuid": A,
        "utilization_ratio": 0.87,
        "memory_used_bytes": 61_000_000_000,
        "memory_total_bytes": 80_000_000_000,
        "power_w": 650.5,
        "power_limit_w": 700.0,
        "energy_mj": 123,
        "sm_clock_mhz": 1755,
        "sm_clock_limit_mhz": 1980,
        "throttle_reasons": ["power_cap"],
        "process_count": 2,
        "other_process_count": 1,
    }
    assert seen.problem is None
    assert seen.events == []


def test_idle_for_30_minutes_is_idle(watch: Callable[..., Any]) -> None:
    """3% for half an hour, and no process but ours."""
    seen = watch(rounds=182, stride_s=10, UTIL=3, PIDS="self+7", pids=(7,))
    total = seen.totals[A]
    assert total.idle_s == total.idle_for_s == total.elapsed_s >= 1800
    assert is_idle(idle_for_s=total.idle_for_s, other_process_count=total.last.other_process_count)


def test_a_card_that_others_compute_on_is_not_idle(watch: Callable[..., Any]) -> None:
    """At 3%, but another process computes on it."""
    total = watch(rounds=182, stride_s=10, UTIL=3, PIDS="self+7").totals[A]
    assert total.elapsed_s >= 1800
    assert total.idle_s == total.idle_for_s == 0
    assert not is_idle(idle_for_s=total.idle_for_s, other_process_count=total.last.other_process_count)


def test_at_five_per_cent_a_card_is_not_idle(watch: Callable[..., Any]) -> None:
    """The limit itself counts as busy."""
    assert watch(UTIL=5).totals[A].idle_s == 0


def test_throttling_is_counted_by_reason(watch: Callable[..., Any]) -> None:
    """Each bit has its name; idling is no throttling, and a bit of tomorrow keeps its number."""
    seen = watch(REASONS=0x4 | 0x8 | 0x40 | 0x1 | 1 << 20, CLOCK=990)
    assert vars(seen.totals[A].throttled_ratio) == dict.fromkeys(("power_cap", "hw_slowdown", "thermal", "bit_20"), 1.0)
    assert seen.totals[A].sm_clock_mean_mhz == 990
    assert seen.latest[A].throttle_reasons == ["bit_20", "hw_slowdown", "idle", "power_cap", "thermal"]


def test_energy_is_what_the_counter_gained(watch: Callable[..., Any]) -> None:
    """From its first reading on, whatever it stood at."""
    total = watch().totals[A]
    assert total.energy_j == pytest.approx((total.samples - 1) * STEP_J)
    assert not total.energy_estimated


def test_a_reset_of_the_counter_is_a_new_baseline(watch: Callable[..., Any]) -> None:
    """Never negative energy; only the second of the reset is bridged by its power, and marked."""
    total = watch(ENERGY_RESET_AT=9, POWER_MW=200000).totals[A]
    assert total.counter_resets == 1
    assert total.energy_j == pytest.approx((total.samples - 2) * STEP_J + 200.0)
    assert total.energy_estimated


@pytest.mark.parametrize("code", [3, 13])
def test_without_a_counter_power_is_integrated(watch: Callable[..., Any], code: int) -> None:
    """600 W for each second; marked as an estimate, never 0."""
    total = watch(FAIL=f"nvmlDeviceGetTotalEnergyConsumption={code}").totals[A]
    assert total.energy_j == pytest.approx((total.samples - 1) * 600.0)
    assert total.energy_estimated


def test_without_counter_and_power_energy_is_unknown(watch: Callable[..., Any]) -> None:
    """Unknown is not zero."""
    total = watch(FAIL="nvmlDeviceGetTotalEnergyConsumption=3;nvmlDeviceGetPowerUsage=3").totals[A]
    assert total.energy_j is total.power_mean_w is None


QUERIES = {
    "nvmlDeviceGetUtilizationRates": "utilization_ratio",
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_mj",
    "nvmlDeviceGetClockInfo": "sm_clock_mhz",
    "nvmlDeviceGetMaxClockInfo": "sm_clock_limit_mhz",
}


def test_what_is_not_supported_is_unknown_and_not_asked_again(watch: Callable[..., Any]) -> None:
    """One question each, then `None` for good; nothing of it counts as an error."""
    both = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCurrentClocks%sReasons", "nvmlDeviceGetComputeRunningProcesses_v")
    twice = [both[0], both[0] + "_v2", both[1] % "Event", both[1] % "Throttle", both[2] + "3", both[2] + "2"]
    asked = (*QUERIES, *twice)
    seen = watch(FAIL=";".join(f"{name}=3" for name in asked), calls=asked)
    assert seen.calls == dict.fromkeys(asked, 1)
    reading = vars(seen.latest[A])
    assert {name for name, value in reading.items() if value is not None} == {"at_ns", "uuid"}
    assert seen.totals[A].errors == 0
    assert seen.totals[A].samples >= 20
    unknown = ("power_mean_w", "utilization_mean_ratio", "memory_mean_bytes", "energy_j", "idle_s", "throttled_ratio")
    assert [getattr(seen.totals[A], name) for name in unknown] == [None] * len(unknown)


@pytest.mark.parametrize(("function", "figure"), QUERIES.items())
def test_one_unsupported_query_hides_one_figure(watch: Callable[..., Any], function: str, figure: str) -> None:
    """All the others are read."""
    reading = vars(watch(rounds=2, FAIL=f"{function}=3").latest[A])
    assert [name for name, value in reading.items() if value is None] == [figure]


def test_other_errors_are_counted_and_asked_again(watch: Callable[..., Any]) -> None:
    """Ten failures of the driver's, then it answers again; the sample between is unknown, not 0."""
    seen = watch(FAIL="nvmlDeviceGetPowerUsage=999@3-12;nvmlDeviceGetUtilizationRates=4@3-3", rounds=30)
    total = seen.totals[A]
    assert total.errors == 11
    assert total.power_mean_w == 600.0
    assert total.last.power_w == 600.0
    assert total.utilization_mean_ratio == pytest.approx(0.9)


def test_a_silent_counter_is_bridged_until_it_speaks_again(watch: Callable[..., Any]) -> None:
    """What it gained meanwhile counts once."""
    total = watch(FAIL="nvmlDeviceGetTotalEnergyConsumption=999@5-9", POWER_MW=1000, rounds=30).totals[A]
    assert total.energy_j == pytest.approx((total.samples - 1) * STEP_J)
    assert not total.energy_estimated


# -- more cards -----------------------------------------------------------------------------------------------------


def test_two_cards_are_told_apart(watch: Callable[..., Any]) -> None:
    """Each has its own figures, by UUID."""
    seen = watch(CARDS=2, UTIL="10,90", POWER_MW="100000,700000")
    assert {uuid: (t.utilization_max_ratio, t.power_max_w) for uuid, t in seen.totals.items()} == {
        A: (0.1, 100.0),
        B: (0.9, 700.0),
    }


def test_a_lost_gpu_is_one_event_and_the_others_go_on(watch: Callable[..., Any]) -> None:
    """What was counted of it stays, its last reading is no longer shown, and it is not called idle."""
    seen = watch(CARDS=2, UTIL=1, FAIL="nvmlDeviceGetPowerUsage#0=15@8;nvmlDeviceGetUtilizationRates#0=15@9", rounds=40)
    (event,) = seen.events
    lost, other = seen.totals[A], seen.totals[B]
    assert (event.uuid, lost.lost, other.lost) == (A, True, False)
    assert event.message == lost.lost_message
    assert A in event.message
    assert "Xid" in event.message
    assert lost.samples == 8
    assert lost.energy_j == pytest.approx(7 * STEP_J)
    assert lost.idle_for_s == 0 < lost.idle_s
    assert other.samples >= 40
    assert list(seen.latest) == [B]


def test_when_all_are_lost_the_thread_ends(watch: Callable[..., Any]) -> None:
    """Nothing is left to watch; NVML is given back."""
    seen = watch(FAIL="nvmlDeviceGetUtilizationRates=15@5", rounds=10**6)
    assert [event.uuid for event in seen.events] == [A]
    assert seen.users == 0


def test_a_card_that_cannot_be_opened_is_said(watch: Callable[..., Any]) -> None:
    """The others are watched; one that is merely not permitted is another job's."""
    seen = watch(CARDS=2, FAIL="nvmlDeviceGetHandleByIndex_v2#0=15")
    assert list(seen.totals) == [B]
    assert "GPU 0" in seen.problem
    seen = watch(CARDS=2, FAIL="nvmlDeviceGetHandleByIndex_v2#0=4", CUDA_VISIBLE_DEVICES="0")
    assert list(seen.totals) == [B]
    assert seen.problem is None


@pytest.mark.parametrize(
    ("visible", "watched"),
    [("1", [B]), ("1,0", [A, B]), ("GPU-1", [B]), (f"{B},{A}", [A, B]), ("", []), ("-1", []), ("1,-1,0", [B])],
)
def test_cuda_visible_devices_is_honoured(watch: Callable[..., Any], visible: str, watched: list[str]) -> None:
    """By index, by UUID and its beginning, none; a list ends at its first invalid entry."""
    seen = watch(CARDS=2, CUDA_VISIBLE_DEVICES=visible, rounds=2)
    assert sorted(seen.totals) == watched
    assert seen.problem is None


def test_numbers_follow_the_bus_where_cuda_does(watch: Callable[..., Any]) -> None:
    """NVML lists the card in the later slot first; with PCI_BUS_ID number 0 is the other one."""
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    assert list(watch(CARDS=2, BUSES="3B,0A", NAMES="NVIDIA T4,NVIDIA H200", rounds=2, **order).totals) == [B]


def test_fastest_first_of_different_cards_is_unknown(watch: Callable[..., Any]) -> None:
    """Rather than a guess that shows another job's card; the remedy is named, and a list of UUIDs is one."""
    story: dict[str, Any] = {"CARDS": 2, "NAMES": "NVIDIA T4,NVIDIA H200", "CUDA_VISIBLE_DEVICES": "0", "rounds": 2}
    seen = watch(**story)
    assert seen.totals == {}
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in seen.problem
    seen = watch(**story, uuids=[B.removeprefix("GPU-")])
    assert list(seen.totals) == [B]
    assert seen.problem is None


def test_an_unknown_uuid_is_said_and_the_known_are_watched(watch: Callable[..., Any]) -> None:
    """The explicit list wins over the environment."""
    seen = watch(CARDS=2, uuids=[A, "GPU-nobody"], CUDA_VISIBLE_DEVICES="1", rounds=2)
    assert list(seen.totals) == [A]
    assert "GPU-nobody" in seen.problem


# -- MIG ------------------------------------------------------------------------------------------------------------


def test_a_mig_slice_has_no_utilisation(watch: Callable[..., Any]) -> None:
    """Nor the card's power, which is that of all slices; memory and processes are its own, clocks are the card's."""
    seen = watch(MIG=2, CUDA_VISIBLE_DEVICES=SLICE_1, PIDS="self", REASONS=0x4, CLOCK=1200)
    assert list(seen.totals) == [SLICE_1]
    total, reading = seen.totals[SLICE_1], seen.latest[SLICE_1]
    assert reading.utilization_ratio is reading.power_w is reading.energy_mj is None
    assert total.utilization_mean_ratio is total.energy_j is total.idle_s is None
    assert (reading.memory_used_bytes, reading.process_count, reading.sm_clock_mhz) == (40_000_000_000, 1, 1200)
    assert reading.throttle_reasons == ["power_cap"]
    assert total.errors == 0


@pytest.mark.parametrize(
    ("slices", "visible", "watched"),
    [
        ("2", None, [SLICE_0, SLICE_1]),
        ("1", "0", [SLICE_0]),
        ("2", "MIG-01", [SLICE_1]),
        ("1", "GPU-0", [SLICE_0]),
        ("0", None, []),
        ("-1", "0", [A]),
    ],
)
def test_slices_are_what_cuda_sees(
    watch: Callable[..., Any], slices: str, visible: str | None, watched: list[str]
) -> None:
    """A card in MIG mode computes only through its slices."""
    shown = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    seen = watch(MIG=slices, rounds=2, **shown)
    assert sorted(seen.totals) == watched
    assert seen.problem is None


# -- libraries ------------------------------------------------------------------------------------------------------


def test_an_old_driver_is_asked_in_the_old_ways(watch: Callable[..., Any]) -> None:
    """Without the new symbols: memory includes the driver's own, energy is integrated, all else is known."""
    seen = watch("-DFAKE_OLD", REASONS=0x20, PIDS="self+7", USED_MB=1000, RESERVED_MB=300)
    reading, total = seen.latest[A], seen.totals[A]
    assert reading.memory_used_bytes == 1_300_000_000
    assert reading.throttle_reasons == ["sw_thermal"]
    assert (reading.process_count, reading.other_process_count) == (2, 1)
    assert total.energy_estimated
    assert total.errors == 0


def test_a_library_that_cannot_begin_is_said(watch: Callable[..., Any]) -> None:
    """It has no nvmlInitWithFlags at all."""
    seen = watch("-DFAKE_OLD", "-DFAKE_ANCIENT")
    assert "FunctionNotFound" in seen.problem
    assert seen.totals == seen.latest == {}


@pytest.mark.parametrize(("code", "word"), [(9, "driver is not loaded"), (18, "reboot"), (999, "Unknown")])
def test_a_driver_that_does_not_start_is_said(watch: Callable[..., Any], code: int, word: str) -> None:
    """With the remedy; nothing is given back that was not had."""
    seen = watch(FAIL=f"nvmlInitWithFlags={code}")
    assert word in seen.problem
    assert seen.totals == seen.latest == {}
    assert seen.users == 0


@pytest.mark.parametrize("broken", [False, True])
def test_without_a_driver_figures_are_unknown(watch: Callable[..., Any], tmp_path: Path, broken: bool) -> None:
    """No libnvidia-ml.so.1, or a broken one: one sentence with the remedy, no exception, no thread."""
    if broken:
        (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    seen = watch(folder=tmp_path)
    code = "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"
    driver = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ("libnvidia-ml.so.1" in (seen.problem or "")) is (broken or driver.returncode != 0)
    assert seen.events == []


def test_without_nvidia_ml_py_figures_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is named."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler = NvmlSampler()
    sampler.start()
    sampler.stop()
    assert "pip install nvidia-ml-py" in (sampler.problem or "")
    assert sampler.latest() == sampler.totals() == {}


def test_nvml_is_given_back_once(watch: Callable[..., Any]) -> None:
    """Our own use of it ends with the sampler; somebody else's goes on."""
    assert watch(rounds=2).users == 0
    assert watch(rounds=2, others=True).users == 1


def test_a_process_that_forgets_to_stop_ends(build: Callable[..., Path]) -> None:
    """The thread keeps no interpreter alive."""
    code = "import time; from costguard.hardware.nvml import NvmlSampler; NvmlSampler(0.001).start(); time.sleep(0.05)"
    environ = {**os.environ, "LD_LIBRARY_PATH": str(build())}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
