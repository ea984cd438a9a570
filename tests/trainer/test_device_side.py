"""What is seen of the device from the side: GPU figures in journal, logger and receipt, hidden waits, the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from costguard import CostguardWarning
from costguard.hardware.abilities import Device
from costguard.hardware.nvml import GpuEvent
from costguard.hardware.readings import GpuReading, GpuTotals, Tally
from costguard.lightning import device_side, stepping, training
from costguard.lightning.device_clock import DeviceClock
from costguard.lightning.gpu_watch import GpuWatch
from costguard.records import METRIC_KEYS
from costguard.reports.text import render_text
from helpers import LIGHTNING_WARNINGS, Multiplying, loader, monitor, quiet_trainer, receipt_of, rows_of

pytestmark = pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
UUID = "GPU-0"


@dataclass
class Sampler:
    """A card at 300 W and half its clock, held down by its power limit, with a tenth of its memory in use."""

    problem: str | None = None
    lost: bool = False
    started: bool = False
    stopped: bool = False
    tally: Tally = field(default_factory=Tally)

    def start(self) -> None:
        self.started = True
        for second in range(11):
            self.tally.add(
                GpuReading(
                    at_ns=second * 10**9,
                    uuid=UUID,
                    utilization_ratio=0.9,
                    memory_used_bytes=8 * 10**9,
                    memory_total_bytes=80 * 10**9,
                    power_w=300.0,
                    power_limit_w=700.0,
                    energy_mj=second * 300_000,
                    sm_clock_mhz=990,
                    sm_clock_limit_mhz=1980,
                    throttle_reasons=frozenset({"power_cap"}),
                    process_count=1,
                    other_process_count=0,
                )
            )

    def stop(self) -> None:
        self.stopped = True

    def totals(self) -> dict[str, GpuTotals]:
        return {UUID: self.tally.totals(UUID)}

    def events(self) -> tuple[GpuEvent, ...]:
        return (GpuEvent(0, UUID, "GPU-0 is lost"),) if self.lost else ()


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> Sampler:
    """Every training of this process is on such a card."""
    sampler = Sampler()
    card = Device(name="NVIDIA H100 80GB HBM3", uuid=UUID, sm_count=132, compute_capability=(9, 0))
    watch = GpuWatch(card, 0, sampler, lambda _: (10, 9))
    monkeypatch.setattr(training, "GpuWatch", SimpleNamespace(for_device=lambda *_: watch))
    return sampler


def test_gpu_figures_are_in_logger_and_receipt(tmp_path: Path, sampler: Sampler) -> None:
    """Power, clock, memory and energy: 300 W for 10 s are 3000 J."""
    from lightning.pytorch.loggers import CSVLogger

    trainer = quiet_trainer(tmp_path, monitor(), logger=CSVLogger(tmp_path))
    trainer.fit(Multiplying(), loader(4))
    (gpu,) = receipt_of(tmp_path)["gpus"]["devices"]
    assert (gpu["energy_j"], gpu["power_mean_w"], gpu["sm_clock_mean_mhz"]) == (3000.0, 300.0, 990.0)
    assert receipt_of(tmp_path)["gpus"]["energy_kwh"] == pytest.approx(3000 / 3.6e6)
    assert "300 W, 990 of 1980 MHz, at most 8 GB of 80 GB of memory" in render_text(receipt_of(tmp_path))
    row = rows_of(tmp_path)[-1]
    assert float(row["costguard/gpu_power_w"]) == 300
    assert {key for key in row if key.startswith("costguard/gpu_")} <= METRIC_KEYS
    assert sampler.started
    assert sampler.stopped


def test_why_mfu_is_low_is_said_once_and_written_down(
    tmp_path: Path, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a minute of training, here after none: the clock is held at half."""
    monkeypatch.setattr(device_side, "JUDGED_AFTER_NS", 0)
    trainer = quiet_trainer(tmp_path, monitor(), max_epochs=3, precision="bf16-mixed")
    with pytest.warns(CostguardWarning, match=r"SM clock is held at 990 of 1,980 MHz") as caught:
        trainer.fit(Multiplying(), loader(4))
    assert len([w for w in caught if w.category is CostguardWarning]) == 1
    (verdict,) = receipt_of(tmp_path)["verdicts"]
    assert (verdict["kind"], verdict["reason"], verdict["action"]) == ("mfu", "clocks", "warn")


@pytest.mark.filterwarnings("ignore:costguard. The GPU waits for data")
def test_more_than_the_peak_raises_a_named_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak of one FLOP/s: the alarm is told, written down, and in the receipt."""
    monkeypatch.setattr(device_side, "JUDGED_AFTER_NS", 0)
    monkeypatch.setattr(training, "NS_PER_S", 0)
    with pytest.warns(CostguardWarning, match="which nothing reaches"):
        quiet_trainer(tmp_path, monitor(peak_flops_per_s=1.0)).fit(Multiplying(), loader(4))
    receipt = receipt_of(tmp_path)
    assert receipt["mfu"]["alarms"] == ["mfu_over_100_percent"]
    assert receipt["verdicts"][-1]["reason"] == "mfu_over_100_percent"


def test_a_lost_gpu_is_told_on_the_main_thread(tmp_path: Path, sampler: Sampler) -> None:
    """The sampler's sentence is a warning of the training, which goes on."""
    sampler.lost = True
    with pytest.warns(CostguardWarning, match="GPU-0 is lost"):
        quiet_trainer(tmp_path, monitor()).fit(Multiplying(), loader(4))
    assert receipt_of(tmp_path)["run"]["attempts"][0]["batches"] == 4


class Mark:
    """An event on a device that is always a whole second behind, so that no wait of the host reaches it."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 0.0


def test_a_wait_that_the_device_worked_through_is_train_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data wait of the host behind which the device never stood still moves to `train`; time still closes."""
    monkeypatch.setattr(stepping, "clock_of", lambda _: DeviceClock(Mark))
    batches = torch.utils.data.DataLoader(SlowToCome(), batch_size=None)
    quiet_trainer(tmp_path, monitor()).fit(Multiplying(), batches)
    activities = receipt_of(tmp_path)["time"]["activities_ns"]
    assert activities.get("train", 0) >= 3 * 50_000_000
    assert activities["data_wait"] < 2 * 50_000_000


class SlowToCome(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> torch.Tensor:
        import time

        time.sleep(0.05)
        return torch.ones(2, 8, dtype=torch.int64)
