"""Each second is charged to what took it: parts of a training that sleep are found under their activity."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

from helpers import LIGHTNING_WARNINGS, NS_PER_S, Saves, Tiny, fit, loader, monitor, quiet_trainer, receipt_of

pytestmark = [pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS]

NAP_S = 0.2


def _nap() -> None:
    time.sleep(NAP_S)


class Slow(Tiny):
    """Sleeps once where its name says."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def _at(self, where: str, batch_idx: int = 0) -> None:
        if where == self.where and batch_idx == 0:
            _nap()

    def setup(self, stage: str) -> None:
        self._at("startup")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self._at("train", batch_idx - 1)  # the first batch is warm-up
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._at("validation", batch_idx)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._at("checkpoint")


class SlowLogger(CSVLogger):
    def save(self) -> None:
        _nap()
        super().save()


class SlowData(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Tensor:
        if index == 1:
            _nap()
        return torch.ones(2, 8, dtype=torch.int64)


def _activities(folder: Path) -> dict[str, int]:
    return dict(receipt_of(folder)["time"]["activities_ns"])


@pytest.mark.parametrize("where", ["startup", "train", "validation", "checkpoint"])
def test_slow_part_is_charged_to_its_activity(tmp_path: Path, where: str) -> None:
    """What the module's own hook takes is found under the activity of that hook."""
    trainer = quiet_trainer(tmp_path, monitor(), Saves(tmp_path, 2))
    trainer.fit(Slow(where), loader(3), loader(1))
    assert _activities(tmp_path)[where] >= NAP_S * NS_PER_S


def test_slow_data_is_data_wait(tmp_path: Path) -> None:
    """Waiting for a batch is told apart from training on it."""
    quiet_trainer(tmp_path, monitor()).fit(Tiny(), DataLoader(SlowData(), batch_size=None))
    assert _activities(tmp_path)["data_wait"] >= NAP_S * NS_PER_S


def test_slow_logger_is_logging(tmp_path: Path) -> None:
    """What a logger takes is told apart from training."""
    fit(tmp_path, monitor(), batches=3, logger=SlowLogger(tmp_path))
    assert _activities(tmp_path)["logging"] >= NAP_S * NS_PER_S


def test_slow_restore_is_restore(tmp_path: Path) -> None:
    """Reading a checkpoint is told apart from starting up."""
    fit(tmp_path, monitor(), Saves(tmp_path, 2), batches=3)
    trainer: Trainer = quiet_trainer(tmp_path, monitor())
    inner = trainer.strategy.load_checkpoint

    def slow(*args: Any, **kwargs: Any) -> Any:
        _nap()
        return inner(*args, **kwargs)

    trainer.strategy.load_checkpoint = slow  # type: ignore[method-assign]
    trainer.fit(Tiny(), loader(3), ckpt_path=tmp_path / "step-2.ckpt")
    assert _activities(tmp_path)["restore"] >= NAP_S * NS_PER_S


def test_time_after_training_is_not_train(tmp_path: Path) -> None:
    """A process that goes on with other work is idle for the run until it ends or the next run begins."""
    fit(tmp_path, monitor(), batches=3)
    before, patience = _activities(tmp_path), time.monotonic() + 10
    while (after := _activities(tmp_path)).get("idle", 0) < NAP_S * NS_PER_S and time.monotonic() < patience:
        time.sleep(0.05)
    assert after["idle"] >= NAP_S * NS_PER_S
    assert {k: v for k, v in after.items() if k != "idle"} == {k: v for k, v in before.items() if k != "idle"}


def test_our_own_time_is_metering(tmp_path: Path) -> None:
    """The measurement of the peak is ours and is charged to us."""
    fit(tmp_path, monitor(peak_flops_per_s=None), batches=3)
    assert _activities(tmp_path)["metering"] >= NAP_S * NS_PER_S


def test_checkpoints_say_how_long_training_waited(tmp_path: Path) -> None:
    """Each checkpoint has its size, its step, the time that training waited for it and the price of that."""

    class SlowSave(Tiny):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            _nap()

    fit(tmp_path, monitor(usd_per_hour=3600), Saves(tmp_path, 2), batches=3, module=SlowSave())
    (saved,) = receipt_of(tmp_path)["checkpoints"]
    assert saved["bytes"] == (tmp_path / "step-2.ckpt").stat().st_size
    assert saved["step"] == 2
    assert saved["blocked_s"] >= NAP_S
    assert float(saved["money"]) == pytest.approx(saved["blocked_s"])
