"""The monitor beside other callbacks and other Trainers, in any order."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from costguard import load_receipt
from helpers import (
    LIGHTNING_WARNINGS,
    TOKENS,
    Saves,
    Tiny,
    assert_adds_up,
    fit,
    loader,
    monitor,
    quiet_trainer,
    receipt_of,
    run_folders,
)

pytestmark = [pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS]


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_checkpoint_written_on_an_exception_loses_nothing(tmp_path: Path) -> None:
    """What ModelCheckpoint saved because of an exception is gone on from: no step is rework, and it is listed."""
    saves = ModelCheckpoint(tmp_path / "saves", every_n_train_steps=100, save_on_exception=True)
    fit(tmp_path, monitor(), saves, batches=12, fails_at=8, enable_checkpointing=True)
    (rescued,) = (tmp_path / "saves").glob("*.ckpt")
    fit(tmp_path, monitor(), batches=12, ckpt_path=rescued)
    receipt = receipt_of(tmp_path)
    assert [(a["batches"], a["rework_batches"]) for a in receipt["run"]["attempts"]] == [(8, 0), (4, 0)]
    assert receipt["tokens"]["trained"] == 12 * TOKENS
    assert [c["path"] for c in receipt["checkpoints"]] == [str(rescued)]
    assert receipt["time"]["activities_ns"]["checkpoint"] > 0


@pytest.mark.parametrize("first", [True, False], ids=["monitor first", "monitor last"])
def test_order_of_callbacks_does_not_matter(tmp_path: Path, first: bool) -> None:
    """A callback that saves after a step has that step in its checkpoint, whichever of the two is asked first."""
    saves = Saves(tmp_path, 4)
    cost = monitor()
    trainer = quiet_trainer(tmp_path, *((cost, saves) if first else (saves, cost)))
    with pytest.raises(RuntimeError):
        trainer.fit(Tiny(fails_at=8), loader(12))
    fit(tmp_path, monitor(), batches=12, ckpt_path=tmp_path / "step-4.ckpt")
    receipt = receipt_of(tmp_path)
    assert receipt["tokens"]["trained"] == 12 * TOKENS
    assert [a["rework_steps"] for a in receipt["run"]["attempts"]] == [4, 0]


def test_checkpoints_of_model_checkpoint_are_listed(tmp_path: Path) -> None:
    """Each file that ModelCheckpoint wrote, with path, step and size, also where it removed it again."""
    saves = ModelCheckpoint(tmp_path / "saves", every_n_train_steps=2, save_top_k=1, save_last=True)
    fit(tmp_path, monitor(), saves, enable_checkpointing=True)
    listed = receipt_of(tmp_path)["checkpoints"]
    assert sorted({c["step"] for c in listed}) == [2, 4, 6]
    assert all(c["bytes"] > 0 for c in listed)
    assert (tmp_path / "saves" / "last.ckpt").exists()


def test_early_stopping_sees_its_metric(tmp_path: Path) -> None:
    """A run that another callback stops ended in order."""
    stops = EarlyStopping("loss", patience=1, min_delta=100, check_on_train_epoch_end=True)
    fit(tmp_path, monitor(), stops, batches=2, max_epochs=50)
    (attempt,) = receipt_of(tmp_path)["run"]["attempts"]
    assert (attempt["ended"], attempt["reason"]) == ("running", None)
    assert attempt["batches"] == 4


@pytest.mark.filterwarnings("ignore:The `LearningRateFinder`")
@pytest.mark.filterwarnings("ignore:Failed to compute suggestion")
def test_learning_rate_finder_trains_no_tokens(tmp_path: Path) -> None:
    """Steps that a tuner takes and throws away are no kept training, and its scratch checkpoint is no resume."""

    class Tuned(Tiny):
        lr = 1e-3

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    finder = LearningRateFinder(num_training_steps=5, update_attr=False)
    fit(tmp_path, monitor(), finder, module=Tuned(), batches=6, logger=CSVLogger(tmp_path))
    receipt = receipt_of(tmp_path)
    (attempt,) = receipt["run"]["attempts"]
    assert receipt["tokens"]["trained"] == 6 * TOKENS
    assert (attempt["first_step"], attempt["last_step"]) == (0, 6)


def test_trainers_that_take_turns_share_out_the_process(tmp_path: Path) -> None:
    """Two Trainers by turns in one process: every batch is in some run, and every run adds up."""
    first, second = (quiet_trainer(tmp_path / name, monitor()) for name in ("a", "b"))
    first.fit(Tiny(), loader(3))
    second.fit(Tiny(), loader(3))
    first.fit_loop.max_epochs = 2
    first.fit(Tiny(), loader(3))
    receipts = [load_receipt(str(run)).data for name in ("a", "b") for run in run_folders(tmp_path / name)]
    for receipt in receipts:
        assert_adds_up(dict(receipt))
    assert sum(receipt["tokens"]["trained"] for receipt in receipts) == 9 * TOKENS


def test_fresh_monitor_can_be_copied_and_pickled() -> None:
    """Launchers that spawn send callbacks to other processes."""
    cost = monitor(tags={"a": "b"})
    copies: list[Any] = [copy.deepcopy(cost), pickle.loads(pickle.dumps(cost))]
    assert all(type(other) is type(cost) and other.run_dir is None for other in copies)


def test_receipt_of_tags_and_plan(tmp_path: Path) -> None:
    """Tags and plan are the monitor's words, and money by tag adds up to the total."""
    fit(tmp_path, monitor(tags={"project": "tiny"}, planned_tokens=2 * 6 * TOKENS), batches=6)
    receipt = receipt_of(tmp_path)
    assert receipt["run"]["tags"] == {"project": "tiny"}
    assert receipt["spend"]["by_tag"] == {"project": {"tiny": receipt["spend"]["total"]}}
    assert receipt["plan"]["progress_ratio"] == 0.5
    assert float(receipt["plan"]["forecast_total"]) == pytest.approx(2 * float(receipt["spend"]["total"]))
