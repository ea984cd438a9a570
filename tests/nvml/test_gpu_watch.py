"""The watch of one process's GPU: with totals made by hand, and on the real C ABI in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from costguard.hardware.abilities import Abilities, Device, find_abilities
from costguard.hardware.nvml import GpuEvent, GpuReading, GpuTotals
from costguard.lightning.gpu_watch import GpuWatch
from costguard.policies.utilization import UtilizationSignals, why_low
from nvml_stub import CARD_0, CARD_1, build_library, environment

H100 = Device(name="NVIDIA H100 80GB HBM3", uuid=CARD_0, sm_count=132, compute_capability=(9, 0))
READING = GpuReading(
    at_ns=1,
    uuid=CARD_0,
    utilization_ratio=0.4,
    memory_used_bytes=8_000_000_000,
    memory_total_bytes=80_000_000_000,
    power_w=300.0,
    power_limit_w=700.0,
    sm_clock_mhz=1200,
    sm_clock_limit_mhz=1980,
)
TOTALS = GpuTotals(
    uuid=CARD_0,
    samples=60,
    elapsed_s=59.0,
    last=READING,
    power_mean_w=350.0,
    power_max_w=600.0,
    utilization_mean_ratio=0.5,
    memory_max_bytes=16_000_000_000,
    sm_clock_mean_mhz=1300.0,
    energy_j=7_200_000.0,
    idle_s=3.0,
    throttled_ratio={"power_cap": 0.5},
)


@dataclass
class Told:
    """A sampler that has seen what it is told."""

    seen: Mapping[str, GpuTotals] = field(default_factory=lambda: {CARD_0: TOTALS})
    problem: str | None = None
    happened: tuple[GpuEvent, ...] = ()
    calls: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def totals(self) -> Mapping[str, GpuTotals]:
        return self.seen

    def events(self) -> tuple[GpuEvent, ...]:
        return self.happened


def watch(sampler: Told, device: Device = H100, index: int = 0) -> GpuWatch:
    """A watch whose allocator holds 20 GB for 12."""
    return GpuWatch(device, index, sampler, lambda _: (20_000_000_000, 12_000_000_000))


# -- what it says ---------------------------------------------------------------------------------------------------


def test_metrics_are_the_last_reading_and_the_energy_so_far() -> None:
    """All in the unit of their key, as floats."""
    assert watch(Told()).metrics() == {
        "costguard/gpu_power_w": 300.0,
        "costguard/gpu_sm_clock_mhz": 1200.0,
        "costguard/gpu_memory_used_bytes": 8e9,
        "costguard/gpu_utilization_ratio": 0.4,
        "costguard/energy_kwh": 2.0,
    }


def test_what_is_unknown_is_no_metric() -> None:
    """Nothing read yet, nothing but a UUID, a card that is lost: left out, never 0."""
    assert watch(Told({})).metrics() == {}
    assert watch(Told({CARD_0: GpuTotals(uuid=CARD_0, last=GpuReading(at_ns=0, uuid=CARD_0))})).metrics() == {}
    lost = GpuTotals(uuid=CARD_0, last=READING, energy_j=3_600_000.0, lost=True, lost_message="lost")
    assert watch(Told({CARD_0: lost})).metrics() == {"costguard/energy_kwh": 1.0}


def test_the_fact_is_plain_data_with_every_total() -> None:
    """What the journal keeps can be written as JSON and says what is estimated, lost and unknown."""
    fact = json.loads(json.dumps(watch(Told()).fact()))
    assert fact == {
        "uuid": CARD_0,
        "name": "NVIDIA H100 80GB HBM3",
        "samples": 60,
        "elapsed_s": 59.0,
        "energy_j": 7_200_000.0,
        "energy_estimated": False,
        "counter_resets": 0,
        "power_mean_w": 350.0,
        "power_max_w": 600.0,
        "power_limit_w": 700.0,
        "sm_clock_mean_mhz": 1300.0,
        "sm_clock_limit_mhz": 1980,
        "memory_max_bytes": 16_000_000_000,
        "memory_total_bytes": 80_000_000_000,
        "utilization_mean_ratio": 0.5,
        "throttled_ratio": {"power_cap": 0.5},
        "idle_s": 3.0,
        "lost": False,
        "errors": 0,
        "problem": None,
    }
    unknown = watch(Told({}, problem="no NVML.")).fact()
    assert (unknown["uuid"], unknown["problem"], unknown["energy_j"]) == (CARD_0, "no NVML.", None)


def test_signals_keep_what_training_knows_and_add_the_gpus() -> None:
    """Training's own fields stay; the verdict can be made from the result."""
    signals = watch(Told()).signals(UtilizationSignals(step=7, mfu_ratio=0.1, matmul_dtype="fp32", data_wait_ratio=0.0))
    assert signals == UtilizationSignals(
        step=7,
        mfu_ratio=0.1,
        matmul_dtype="fp32",
        data_wait_ratio=0.0,
        sm_clock_mhz=1300.0,
        sm_clock_limit_mhz=1980,
        throttled_ratio={"power_cap": 0.5},
        utilization_ratio=0.5,
        power_ratio=0.5,
        memory_used_ratio=0.2,
        memory_total_bytes=80_000_000_000,
        reserved_bytes=20_000_000_000,
        allocated_bytes=12_000_000_000,
        bf16_speedup=989.4 / 67,
        has_bf16=True,
        has_fp8=True,
    )
    verdict = why_low(signals)
    assert verdict is not None
    assert verdict.reason == "fp32"


def test_without_readings_signals_still_know_the_card() -> None:
    """NVML's problem is a signal of its own; an allocator without statistics is unknown."""

    def no_statistics(index: int) -> tuple[int, int]:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    signals = GpuWatch(H100, 0, Told({}, problem="no NVML."), no_statistics).signals()
    assert signals == UtilizationSignals(has_bf16=True, has_fp8=True, nvml_problem="no NVML.")


def test_a_sentence_is_given_once() -> None:
    """An event, and a problem that comes later; a repetition is none."""
    sampler = Told()
    watched = watch(sampler)
    assert watched.warnings() == []
    sampler.happened = (GpuEvent(1, CARD_0, "lost."),)
    assert watched.warnings() == ["lost."]
    sampler.problem = "NVML has not answered."
    assert watched.warnings() == ["NVML has not answered."]
    assert watched.warnings() == []


def test_it_starts_and_stops_its_sampler() -> None:
    """Nothing runs before `start`."""
    sampler = Told()
    watched = watch(sampler)
    assert sampler.calls == []
    watched.start()
    watched.stop()
    assert sampler.calls == ["start", "stop"]


def test_where_all_visible_gpus_are_read_the_number_tells_ours() -> None:
    """As when torch gives no UUID; one that is not there is unknown, not another one's."""
    both = {CARD_0: TOTALS, CARD_1: GpuTotals(uuid=CARD_1, energy_j=3_600_000.0)}
    assert watch(Told(both), index=1).metrics() == {"costguard/energy_kwh": 1.0}
    assert watch(Told(both), index=2).metrics() == {}


# -- which device it is ---------------------------------------------------------------------------------------------


@pytest.fixture
def a_card(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine whose torch describes an H100; a test may change it."""
    facts = SimpleNamespace(major=9, minor=0, multi_processor_count=132, name="NVIDIA H100 80GB HBM3")
    facts.uuid = CARD_0.removeprefix("GPU-")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: facts.name)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return facts


@pytest.mark.parametrize("kind", ["cpu", "mps", "xpu"])
def test_only_a_gpu_of_nvidia_is_watched(kind: str, monkeypatch: pytest.MonkeyPatch, a_card: SimpleNamespace) -> None:
    """Nothing else, nor AMD's, which torch calls cuda, too."""
    assert GpuWatch.for_device(torch.device(kind)) is None
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert GpuWatch.for_device(torch.device("cuda:0")) is None


def test_torchs_uuid_is_written_as_nvml_does(a_card: SimpleNamespace) -> None:
    """Torch leaves the prefix out; a slice's name tells which it is."""
    of = GpuWatch.for_device(torch.device("cuda:0"), sampler=Told())
    assert of is not None
    assert of.device == H100
    a_card.name, a_card.multi_processor_count = "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16
    of = GpuWatch.for_device(torch.device("cuda:0"), sampler=Told())
    assert of is not None
    assert of.device.uuid == CARD_0.replace("GPU-", "MIG-")


def test_an_old_torch_has_no_uuid(a_card: SimpleNamespace) -> None:
    """Then the visible devices are read."""
    del a_card.uuid
    of = GpuWatch.for_device(torch.device("cuda:1"))
    assert of is not None
    assert of.device.uuid is None


ABILITIES = [
    (H100, "fp32", Abilities(has_bf16=True, has_fp8=True, bf16_speedup=989.4 / 67)),
    (H100, "bf16", Abilities(has_bf16=True, has_fp8=True, bf16_speedup=1.0)),
    (H100, None, Abilities(has_bf16=True, has_fp8=True)),
    (Device(name="Tesla T4", sm_count=40, compute_capability=(7, 5)), "fp32", Abilities(has_bf16=False, has_fp8=False)),
    (Device(name="Tesla A100-SXM4-40GB"), "tf32", Abilities(has_bf16=True, bf16_speedup=2.0)),
    (Device(name="NVIDIA Tomorrow", compute_capability=(13, 0)), "fp32", Abilities(has_bf16=True, has_fp8=True)),
    (Device(name="Radeon VII"), "fp32", Abilities()),
]


@pytest.mark.parametrize(("device", "dtype", "can"), ABILITIES)
def test_what_a_card_multiplies_in(device: Device, dtype: str | None, can: Abilities) -> None:
    """By its compute capability, else by its row; the gain where both peaks are known."""
    assert find_abilities(device, dtype) == can


# -- on the real C ABI ----------------------------------------------------------------------------------------------

CHILD = """
import json, sys, time
from types import SimpleNamespace
import torch
from costguard.lightning.gpu_watch import GpuWatch
plan = json.loads(sys.argv[1])
facts = SimpleNamespace(major=9, minor=0, multi_processor_count=plan["sms"], uuid=plan["uuid"])
torch.cuda.get_device_properties = lambda device: facts
torch.cuda.get_device_name = lambda device: plan["name"]
torch.cuda.max_memory_reserved = torch.cuda.max_memory_allocated = lambda device: 1000
watch = GpuWatch.for_device(torch.device("cuda:0"), every_s=0.001)
watch.start()
deadline = time.monotonic() + 20
while watch.fact()["samples"] < 5 and not watch.warnings() and time.monotonic() < deadline:
    time.sleep(0.002)
watch.stop()
signals = watch.signals()
print(json.dumps({"fact": watch.fact(), "metrics": watch.metrics(), "used": signals.memory_used_ratio,
                  "allocated": signals.allocated_bytes, "problem": signals.nvml_problem}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a new driver."""
    return build_library(tmp_path_factory.mktemp("nvml"))


def seen(library: Path, plan: dict[str, Any], **story: str | int) -> Any:
    """What a process sees of its GPU."""
    command = [sys.executable, "-c", CHILD, json.dumps(plan)]
    env = environment(library, **story)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=90)
    return json.loads(done.stdout)


def test_of_two_cards_torchs_own_is_read(library: Path) -> None:
    """By its UUID, though the other one comes first."""
    plan = {"uuid": CARD_1.removeprefix("GPU-"), "sms": 132, "name": "NVIDIA H100 80GB HBM3"}
    told = seen(library, plan, CARDS=2, UTIL="1,77", POWER_MW="1,500000", USED_MB="1,60000", TOTAL_MB=80000)
    assert told["fact"]["uuid"] == CARD_1
    assert told["metrics"]["costguard/gpu_utilization_ratio"] == 0.77
    assert told["metrics"]["costguard/gpu_power_w"] == 500.0
    assert told["metrics"]["costguard/energy_kwh"] > 0
    assert (told["used"], told["allocated"], told["problem"]) == (0.75, 1000, None)


@pytest.mark.parametrize("story", [{}, {"CUDA_VISIBLE_DEVICES": "MIG-01000000-0000-0000-0000-000000000000"}])
def test_of_a_sliced_card_the_slice_is_read(library: Path, story: dict[str, str]) -> None:
    """By torch's UUID or by the variable that picked it; what a slice does not tell is unknown."""
    uuid = "01000000-0000-0000-0000-000000000000" if not story else CARD_0.removeprefix("GPU-")
    plan = {"uuid": uuid, "sms": 16, "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"}
    told = seen(library, plan, MIG=2, **story)
    assert told["fact"]["uuid"] == "MIG-01000000-0000-0000-0000-000000000000"
    assert told["fact"]["power_mean_w"] is told["fact"]["energy_j"] is None
    assert told["metrics"]["costguard/gpu_memory_used_bytes"] == 40e9
    assert told["problem"] is None


def test_a_card_that_nvml_does_not_know_is_said(library: Path) -> None:
    """Figures are unknown, with the reason."""
    told = seen(library, {"uuid": "ffffffff-0000", "sms": 132, "name": "NVIDIA H100 80GB HBM3"})
    assert told["metrics"] == {}
    assert "GPU-ffffffff-0000" in told["problem"]
