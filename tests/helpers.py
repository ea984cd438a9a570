"""What the tests of real trainings share: a tiny model, its data, a quiet Trainer, and processes seen from outside."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from costguard import CostMonitor, load_receipt

TESTS = Path(__file__).parent
NS_PER_S = 1_000_000_000
TOKENS = 16
"""Tokens in one batch of `token_batches`."""


class Tiny(LightningModule):
    """One parameter, so that a step takes about a millisecond whatever the batch is.

    Args:
        logs: Whether the training step logs its loss.
        fails_at: The batch in which the training step raises.
    """

    def __init__(self, *, logs: bool = True, fails_at: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.logs = logs
        self.fails_at = fails_at

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == self.fails_at:
            raise RuntimeError("training_step failed")
        loss = self.weight**2
        if self.logs:
            self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.weight.square()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.weight.square()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Multiplying(Tiny):
    """With a layer of 8 inputs and 4 outputs, whose products are counted."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.head = nn.Linear(8, 4)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) + self.head(batch.float()).mean()


def token_batches(batches: int) -> list[Tensor]:
    """Batches of 2 x 8 tokens."""
    return [torch.ones(2, 8, dtype=torch.int64)] * batches


def loader(batches: Sequence[Any] | int, **options: Any) -> DataLoader[Any]:
    """Hands out batches as they are; a number makes that many of `TOKENS` tokens."""
    made: Any = token_batches(batches) if isinstance(batches, int) else batches
    return DataLoader(made, batch_size=None, **options)


def quiet_trainer(folder: Path | str, *callbacks: Callback, **options: Any) -> Trainer:
    """A Trainer on the CPU that prints, logs and saves nothing unless an option says so."""
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
    )
    known = {"max_epochs": 1, "accelerator": "cpu", "devices": 1, "log_every_n_steps": 1}
    return Trainer(default_root_dir=folder, callbacks=list(callbacks), **{**quiet, **known, **options})


def monitor(**options: Any) -> CostMonitor:
    """A CostMonitor with a price and a given peak, which spares the measurement."""
    price = {} if "usd_per_hour" in options else {"usd_per_gpu_hour": "2.49"}
    return CostMonitor(**{**price, "peak_flops_per_s": 1e9, **options})


# -- receipts -------------------------------------------------------------------------------------------------------


def receipt_of(folder: Path | str) -> dict[str, Any]:
    """The one receipt in a folder, after checking that it adds up."""
    data = dict(load_receipt(str(folder)).data)
    assert_adds_up(data)
    return data


def assert_adds_up(receipt: dict[str, Any]) -> None:
    """Time closes to the nanosecond and money to the last digit."""
    when, spend = receipt["time"], receipt["spend"]
    activities = when["activities_ns"]
    assert sum(activities.values()) == when["elapsed_device_ns"]
    assert sum(when["outcomes_ns"].values()) == activities.get("train", 0)
    assert all(ns >= 0 for ns in [*activities.values(), *when["outcomes_ns"].values()])
    if spend["total"] is not None:
        assert sum(map(Decimal, spend["by_activity"].values())) == Decimal(spend["device_total"])
        assert sum(map(Decimal, spend["by_meter"].values())) == Decimal(spend["total"])


def run_folders(folder: Path | str) -> list[Path]:
    """The runs below a folder, oldest first."""
    return sorted((Path(folder) / "costguard").iterdir(), key=lambda run: run.stat().st_ctime_ns)


def rows_of(folder: Path) -> list[dict[str, str]]:
    """The rows of the only metrics.csv below a folder."""
    (path,) = folder.rglob("metrics.csv")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- processes ------------------------------------------------------------------------------------------------------


def now_ns() -> int:
    """The clock that processes are seen by from outside; it fits the kernel's start times."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass
class Child:
    """A process of ours, from just before its creation to just after its end."""

    process: subprocess.Popen[str]
    errors: IO[str]
    begin_ns: int
    end_ns: int = 0
    out: str = ""
    err: str = ""

    def read_until(self, wanted: Callable[[str], bool]) -> None:
        """Read what it prints up to a line, or to its end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.out += line
            if wanted(line):
                return

    def finish(self, timeout_s: float = 90) -> Child:
        """Wait for the end and read the rest; a child that does not come to one is killed."""
        reader = threading.Thread(target=self.read_until, args=[lambda line: False])
        reader.start()
        try:
            self.process.wait(timeout_s)
        finally:
            self.process.kill()
            self.end_ns = now_ns()
        reader.join(timeout_s)  # children of the child may hold the pipe for longer
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.seek(0)
        self.err = self.errors.read()
        self.errors.close()
        return self

    @property
    def wall_ns(self) -> int:
        """How long it lived."""
        return self.end_ns - self.begin_ns

    @property
    def code(self) -> int:
        """Its exit status."""
        return self.process.returncode


def start(script: Path, *args: object, **env: str) -> Child:
    """Start a script with the helpers in reach, its lines readable as they come."""
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - read and closed when the child ends
    path = os.pathsep.join([str(TESTS), *filter(None, [os.getenv("PYTHONPATH")])])
    begin_ns = now_ns()
    process = subprocess.Popen(
        [sys.executable, str(script), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **env},
    )
    return Child(process, errors, begin_ns)


def assert_close(measured_ns: int, seen_ns: int, *, processes: int = 1) -> None:
    """Within 0.5% or 1 s of what was seen from outside, for each process that took part."""
    assert abs(measured_ns - seen_ns) <= max(seen_ns // 200, processes * NS_PER_S), (measured_ns, seen_ns)


def total_ns(receipts: Iterable[dict[str, Any]]) -> int:
    """Device time of several receipts."""
    return sum(receipt["time"]["elapsed_device_ns"] for receipt in receipts)


# -- training in this process ---------------------------------------------------------------------------------------

LIGHTNING_WARNINGS = (
    "ignore:The '.*_dataloader' does not have many workers",
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    "ignore:.isinstance.treespec, LeafSpec.. is deprecated",
    "ignore:You're resuming from a checkpoint that ended before the epoch ended",
)
"""What Lightning warns of in trainings as small as these, for `pytest.mark.filterwarnings`."""


class Saves(Callback):
    """Saves a checkpoint in a folder when certain steps are done, as `step-N.ckpt`."""

    saved = 0

    def __init__(self, folder: Path, *steps: int, weights_only: bool = False) -> None:
        self.folder, self.steps, self.weights_only = folder, steps, weights_only

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        path = self.folder / f"step-{trainer.global_step}.ckpt"
        if trainer.global_step in self.steps and self.saved != trainer.global_step:
            self.saved = trainer.global_step
            trainer.save_checkpoint(path, self.weights_only)


def fit(folder: Path, cost: CostMonitor, *callbacks: Callback, **options: Any) -> Trainer:
    """Train `Tiny` on some batches, from a checkpoint if one is given; an exception of its own is expected.

    Args:
        folder: Default root.
        cost: The monitor.
        callbacks: Further callbacks, after it.
        options: `batches`, `ckpt_path`, `module`, `fails_at`, and the Trainer's.
    """
    batches, ckpt_path = options.pop("batches", 6), options.pop("ckpt_path", None)
    fails_at = options.pop("fails_at", None)
    module = options.pop("module", None) or Tiny(fails_at=fails_at)
    trainer = quiet_trainer(folder, cost, *callbacks, **options)
    train = loader(batches)
    if fails_at is None:
        trainer.fit(module, train, ckpt_path=ckpt_path)
        return trainer
    with pytest.raises(RuntimeError, match="training_step failed"):
        trainer.fit(module, train, ckpt_path=ckpt_path)
    return trainer
