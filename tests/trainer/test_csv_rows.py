"""Costs go into the rows that are logged anyway: what a CSV history looks like with and without the monitor."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

from helpers import LIGHTNING_WARNINGS, TOKENS, Tiny, fit, loader, monitor, quiet_trainer, receipt_of, rows_of

pytestmark = [pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS]

KEY = "costguard/"


class LogsInValidation(Tiny):
    def __init__(self) -> None:
        super().__init__(logs=False)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.weight**2)


class LogsInBoth(LogsInValidation):
    def __init__(self) -> None:
        super().__init__()
        self.logs = True


class LogsOnEpoch(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.weight**2
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss


class LogsAtEpochEnd(Tiny):
    def __init__(self) -> None:
        super().__init__(logs=False)

    def on_train_epoch_end(self) -> None:
        self.log("weight", self.weight)


class LogsDirectly(Tiny):
    """Goes to the logger itself, every fifth batch."""

    def __init__(self) -> None:
        super().__init__(logs=False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx % 5 == 4:
            self.logger.log_metrics({"direct": 1.0}, self.trainer.global_step)  # type: ignore[union-attr]
        return self.weight**2


class LogsNothing(Tiny):
    def __init__(self) -> None:
        super().__init__(logs=False)


def _history(
    folder: Path, make: Callable[[], Tiny], *costs: Callback, validates: bool = False, **options: Any
) -> list[dict[str, str]]:
    trainer = quiet_trainer(folder, *costs, logger=CSVLogger(folder), max_epochs=2, **options)
    trainer.fit(make(), loader(12), loader(2) if validates else None)
    return rows_of(folder)


def _users(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows without our columns, and without those that hold nothing else."""
    bare = [{k: v for k, v in row.items() if v and not k.startswith(KEY)} for row in rows]
    return [row for row in bare if set(row) - {"step"}]


USERS = [Tiny, LogsOnEpoch, LogsAtEpochEnd, LogsDirectly]


@pytest.mark.parametrize("log_every_s", [1.0, 0.0])
@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize(
    ("make", "validates"),
    [*((user, False) for user in USERS), *((user, True) for user in (*USERS, LogsInValidation, LogsInBoth))],
)
def test_history_has_as_many_rows_as_without(
    tmp_path: Path, make: Callable[[], Tiny], validates: bool, every: int, log_every_s: float
) -> None:
    """The user's rows are the same, and at most the closing row comes on top, however the module logs."""
    options: dict[str, Any] = {"validates": validates, "log_every_n_steps": every}
    without = _history(tmp_path / "without", make, **options)
    rows = _history(tmp_path / "with", make, monitor(log_every_s=log_every_s), **options)
    assert _users(rows) == _users(without)
    assert len(rows) - len(without) in (0, 1)
    assert any(row.get("costguard/spend_usd") for row in rows)


def test_who_logs_nothing_gets_rows_of_our_own(tmp_path: Path) -> None:
    """A module without any `log` has costs in its logger all the same, up to the last step."""
    rows = _history(tmp_path, LogsNothing, monitor())
    assert 1 <= len(rows) <= 3
    assert all(set(row) - {"step"} == {k for k in row if k.startswith(KEY)} for row in rows)
    assert float(rows[-1]["costguard/tokens"]) == 24 * TOKENS
    assert int(rows[-1]["step"]) in (23, 24)


def test_rows_of_our_own_stand_where_they_say(tmp_path: Path) -> None:
    """A row of our own at the end of step n holds the tokens of all steps up to it."""
    rows = _history(tmp_path, LogsNothing, monitor(log_every_s=0))
    assert [float(row["costguard/tokens"] or "nan") for row in rows] == [
        TOKENS * min(int(row["step"]) + 1, 24) for row in rows
    ]


def test_each_row_holds_the_tokens_up_to_its_step(tmp_path: Path) -> None:
    """Costs in a row are as old as the row: the one of step n counts n + 1 batches."""
    fit(tmp_path, monitor(log_every_s=0), batches=8, logger=CSVLogger(tmp_path))
    rows = rows_of(tmp_path)
    assert [int(row["step"]) for row in rows] == list(range(8))
    assert [float(row["costguard/tokens"]) for row in rows] == [TOKENS * (n + 1) for n in range(8)]


def test_costs_are_in_the_first_and_in_the_last_row(tmp_path: Path) -> None:
    """With a second between, a training that takes less has costs in its first and in a closing row."""
    fit(tmp_path, monitor(log_every_s=1000), batches=8, logger=CSVLogger(tmp_path))
    rows = rows_of(tmp_path)
    assert [n for n, row in enumerate(rows) if row["costguard/spend_usd"]] == [0, len(rows) - 1]
    assert len(rows) == 9
    assert float(rows[-1]["costguard/tokens"]) == 8 * TOKENS


def test_no_closing_row_where_the_last_row_has_costs(tmp_path: Path) -> None:
    """The closing row is only for what would be lost."""
    fit(tmp_path, monitor(log_every_s=0), batches=8, logger=CSVLogger(tmp_path))
    assert len(rows_of(tmp_path)) == 8


def test_failed_training_has_its_last_costs(tmp_path: Path) -> None:
    """The last row is written after an exception too."""
    fit(tmp_path, monitor(log_every_s=1000), batches=8, fails_at=5, logger=CSVLogger(tmp_path))
    rows = rows_of(tmp_path)
    assert float(rows[-1]["costguard/tokens"]) == 5 * TOKENS


def _is_float32(value: float) -> bool:
    return bool(struct.unpack("f", struct.pack("f", value))[0] == value)


@pytest.mark.parametrize(
    ("options", "per_hour"),
    [
        ({"usd_per_gpu_hour": "2.49"}, 2.49),
        ({"usd_per_gpu_hour": 2.49}, 2.49),
        ({"usd_per_hour": "19.92", "gpus": 8}, 19.92),
        ({"usd_per_gpu_hour": "2.49", "gpus": 8}, 19.92),
        ({"usd_per_gpu_hour": "0.1", "gpus": 3}, 0.3),
    ],
    ids=str,
)
def test_values_are_exact(tmp_path: Path, options: dict[str, Any], per_hour: float) -> None:
    """A price comes back to the last digit and spend has more digits than a float32."""
    fit(tmp_path, monitor(log_every_s=0, **options), batches=8, logger=CSVLogger(tmp_path))
    rows = rows_of(tmp_path)
    assert {float(row["costguard/usd_per_hour"]) for row in rows} == {per_hour}
    assert not all(_is_float32(float(row["costguard/spend_usd"])) for row in rows)


def test_spend_in_rows_grows_to_that_of_the_receipt(tmp_path: Path) -> None:
    """Rows never go back, and the receipt read afterwards is no less than the last row."""
    fit(tmp_path, monitor(log_every_s=0, gpus=4), batches=8, logger=CSVLogger(tmp_path))
    spends = [float(row["costguard/spend_usd"]) for row in rows_of(tmp_path)]
    assert spends == sorted(spends)
    assert 0 < spends[0] < spends[-1] <= float(receipt_of(tmp_path)["spend"]["total"])


def test_spend_in_rows_goes_on_over_a_resume(tmp_path: Path) -> None:
    """The second attempt's first row begins with what the first one spent."""
    for name in ("a", "b"):
        fit(tmp_path, monitor(run_id="r", log_every_s=0), logger=CSVLogger(tmp_path / name))
    first, second = ([float(r["costguard/spend_usd"]) for r in rows_of(tmp_path / name)] for name in ("a", "b"))
    assert first[-1] < second[0] < second[-1]


def test_every_logger_gets_costs(tmp_path: Path) -> None:
    """Each logger of a Trainer has them in its first and last row, and the same number of rows."""
    folders = [tmp_path / "one", tmp_path / "two"]
    fit(tmp_path, monitor(log_every_s=1000), batches=5, logger=[CSVLogger(folder) for folder in folders])
    for folder in folders:
        rows = rows_of(folder)
        assert [bool(row["costguard/spend_usd"]) for row in rows] == [True, False, False, False, False, True]


def test_users_own_value_of_a_key_stays(tmp_path: Path) -> None:
    """A module that logs a key of ours itself keeps its value."""

    class Own(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.log("costguard/usd_per_hour", 7.0)
            return self.weight**2

    fit(tmp_path, monitor(log_every_s=0), module=Own(), logger=CSVLogger(tmp_path))
    assert {row["costguard/usd_per_hour"] for row in rows_of(tmp_path)} == {"7.0"}


def test_unpriced_run_logs_no_money(tmp_path: Path) -> None:
    """Without a price, rows have device-hours and no money: unknown is not zero."""
    from costguard import CostMonitor

    fit(tmp_path, CostMonitor(peak_flops_per_s=1e9, log_every_s=0), logger=CSVLogger(tmp_path))
    row = rows_of(tmp_path)[-1]
    assert float(row["costguard/device_hours"]) > 0
    assert not any("usd" in key for key in row)
    receipt = receipt_of(tmp_path)
    assert receipt["spend"]["total"] is None
    assert receipt["spend"]["unpriced"][0]["quantity"] == receipt["time"]["elapsed_device_ns"]


def test_values_are_what_callbacks_never_see(tmp_path: Path) -> None:
    """Costs go to the logger only: the Trainer's own metrics, which early stopping reads, stay as they were."""

    class Reads(Callback):
        keys: set[str]

        def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            self.keys = set(trainer.callback_metrics) | set(trainer.logged_metrics) | set(trainer.progress_bar_metrics)

    reads = Reads()
    fit(tmp_path, monitor(log_every_s=0), reads, logger=CSVLogger(tmp_path))
    assert reads.keys == {"loss"}
