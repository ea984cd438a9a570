"""BudgetStopping in real trainings: it stops under the limit, in order, stays stopped, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

from budgeted import (
    DOLLAR_A_SECOND,
    ENDLESS,
    PRIORS,
    Ticking,
    guard,
    kept,
    metered_from_now,
    moved_by_hand,
    seconds,
    stop_checkpoint,
    train,
)
from costguard import Budget, BudgetStopping, CostguardWarning, Price, PriceBook, Threshold
from costguard.clock import SystemClock
from costguard.errors import ConfigError, CostguardError, PotError, StartRefused, StoppedForGood
from costguard.ledger.control import ControlLog
from costguard.lightning.budget_watch import BudgetWatch
from costguard.policies.reserve import StopPriors
from costguard.pots import Pot
from costguard.testing import ManualClock
from helpers import LIGHTNING_WARNINGS, NS_PER_S, Tiny, loader, monitor, quiet_trainer, receipt_of, run_folders

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore::costguard.errors.CostguardWarning"),
]
HOUR_NS = 3600 * NS_PER_S


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    with moved_by_hand() as moved:
        yield moved


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a scheduler would say is said by the tests that are about it."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TORCHELASTIC_", "KUBERNETES_", "FAULT_TOL_")):
            monkeypatch.delenv(name)


class SlowSaves(TorchCheckpointIO):
    """Takes its time for a checkpoint.

    Args:
        wait: Called with the seconds of each save.
        saves_s: Seconds of each save.
    """

    def __init__(self, wait: Any, saves_s: float) -> None:
        self.wait, self.saves_s = wait, saves_s

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.wait(self.saves_s)
        super().save_checkpoint(*args, **kwargs)


# -- under the limit -------------------------------------------------------------------------------------------------


def test_it_stops_before_the_limit_and_fit_returns(clock: ManualClock, tmp_path: Path) -> None:
    """Without a scheduler `fit` returns as after EarlyStopping; the reason is there as numbers and as a sentence."""
    module, stopping = Ticking(clock), guard()
    trainer = train(tmp_path, module, stopping)
    receipt = kept(tmp_path, 10, clock)
    assert stopping.stopped_by is not None
    assert (stopping.stopped_by.kind, stopping.stopped_by.reason) == ("budget", "limit")
    (stop,) = [v for v in receipt["verdicts"] if v["action"] == "stop"]
    assert set(stop) >= {"kind", "action", "reason", "message", "step", "spend"}
    assert stop["step"] == trainer.global_step == module.trained
    assert "limit of $10.00" in stop["message"]


def test_an_accumulation_is_never_cut(clock: ManualClock, tmp_path: Path) -> None:
    """The stop comes where an optimizer step has ended: no batch was trained for nothing."""
    module = Ticking(clock)
    trainer = train(tmp_path, module, guard(), accumulate_grad_batches=7)
    kept(tmp_path, 10, clock)
    assert module.trained == 7 * trainer.global_step
    assert stop_checkpoint(tmp_path)


def test_the_last_validation_does_not_run(clock: ManualClock, tmp_path: Path) -> None:
    """Lightning would run a whole validation before it stops; it does not."""
    module = Ticking(clock, val_s=2)
    trainer = quiet_trainer(tmp_path, guard(), limit_val_batches=3, num_sanity_val_steps=0)
    trainer.fit(module, loader(ENDLESS), loader(5))
    kept(tmp_path, 10, clock)
    assert module.validated == 0
    assert trainer.limit_val_batches == 3


@pytest.mark.parametrize("sanity", [0, 2])
@pytest.mark.parametrize(
    ("every", "accumulate", "val_s"), [(10, 1, 1), (25, 1, 2), (200, 1, 8), (201, 2, 8), (1.0, 4, 8)]
)
def test_a_validation_is_paid_for_before_it_runs(
    clock: ManualClock, tmp_path: Path, every: float, accumulate: int, val_s: float, sanity: int
) -> None:
    """Nothing can stop a validation once it runs: where the money does not last for it, the run stops before it."""
    module = Ticking(clock, val_s=val_s)
    trainer = quiet_trainer(
        tmp_path, guard(limit_usd=100), val_check_interval=every, num_sanity_val_steps=sanity,
        accumulate_grad_batches=accumulate, max_epochs=-1,
    )  # fmt: skip
    trainer.fit(module, loader(200 if every == 1.0 else ENDLESS), loader(4))
    kept(tmp_path, 100, clock)
    assert module.validated > sanity
    assert (module.validated - sanity) % 4 == 0
    assert module.trained % accumulate == 0


def test_a_checkpoint_of_the_users_may_come_just_before_the_stop(clock: ManualClock, tmp_path: Path) -> None:
    """A slow save that comes seldom is not in the usual length of a step, and is paid for all the same."""
    io = SlowSaves(clock.advance, 5)
    saves = ModelCheckpoint(tmp_path / "saves", every_n_train_steps=300, save_top_k=-1)
    train(
        tmp_path, Ticking(clock), guard(limit_usd=74), saves, plugins=[io], enable_checkpointing=True
    )  # at step 600 (65 dollars) a save is due whose price, and that of the last one, would just not be there
    kept(tmp_path, 74, clock)


def test_a_slow_checkpoint_is_paid_for(clock: ManualClock, tmp_path: Path) -> None:
    """The last checkpoint takes as long as those before it, and that was set aside."""
    io = SlowSaves(clock.advance, 2.5)
    saves = ModelCheckpoint(tmp_path / "saves", every_n_train_steps=20)
    priors = StopPriors(step_ns=NS_PER_S // 10, save_ns=NS_PER_S, flush_ns=0, teardown_ns=NS_PER_S, exit_ns=0)
    train(tmp_path, Ticking(clock), guard(limit_usd=30, priors=priors), saves, plugins=[io], enable_checkpointing=True)
    receipt = kept(tmp_path, 30, clock)
    parts = {row["part"]: row for row in receipt["budget"]["stops"][0]["parts"]}
    assert parts["save"]["measured"]
    assert parts["save"]["real_s"] == pytest.approx(2.5)
    assert parts["save"]["predicted_s"] >= 2.5
    assert stop_checkpoint(tmp_path).parent == tmp_path / "saves"


def test_an_asynchronous_checkpoint_is_paid_for_and_complete(tmp_path: Path) -> None:
    """What is written on a thread beside is waited for: it is on the disk, whole, when the stop goes on."""
    io = AsyncCheckpointIO(SlowSaves(time.sleep, 1.5))
    saves = ModelCheckpoint(tmp_path / "saves", every_n_train_steps=100, save_top_k=-1)
    priors = StopPriors(step_ns=NS_PER_S // 5, save_ns=NS_PER_S, flush_ns=0, teardown_ns=NS_PER_S, exit_ns=NS_PER_S)
    metered_from_now(SystemClock())
    there: list[bool] = []

    class Slow(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            time.sleep(0.01)
            return super().training_step(batch, batch_idx)

    class Looks(Callback):
        def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            there.append(stop_checkpoint(tmp_path).exists())

    train(
        tmp_path,
        Slow(logs=False),
        guard(limit_usd=15, priors=priors),
        Looks(),
        saves,
        plugins=[io],
        enable_checkpointing=True,
    )
    receipt = kept(tmp_path, 15, SystemClock())
    assert there == [True]
    parts = {row["part"]: row for row in receipt["budget"]["stops"][0]["parts"]}
    assert parts["save"]["predicted_s"] >= 1.5, "what the caller does not wait for takes its time all the same"


@pytest.mark.parametrize("least", [{"min_steps": 100_000, "min_epochs": 1}, {"min_epochs": 100, "max_epochs": 200}])
def test_a_minimum_does_not_hold_it_up(clock: ManualClock, tmp_path: Path, least: dict[str, int]) -> None:
    """`min_steps` and `min_epochs` do not keep a run going that has no money; they are as before when it has ended."""
    trainer = quiet_trainer(tmp_path, guard(), **least)
    before = (trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps)
    trainer.fit(Ticking(clock), loader(10 if "max_epochs" in least else ENDLESS))
    kept(tmp_path, 10, clock)
    assert (trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps) == before


def test_a_price_change_in_the_middle_is_foreseen(clock: ManualClock, tmp_path: Path) -> None:
    """Five times the price from the 4th second on: spent is what each second cost, stopping is priced at the dearer."""
    change = datetime.fromtimestamp(clock.wall_ns() / 1e9 + 4, tz=timezone.utc).isoformat()
    book = PriceBook(
        prices=[
            Price(amount=DOLLAR_A_SECOND, valid_until=change),
            Price(amount=5 * DOLLAR_A_SECOND, valid_from=change),
        ]
    )
    from costguard import CostMonitor

    stopping = BudgetStopping(limit_usd=40, priors=PRIORS)
    train(tmp_path, Ticking(clock), CostMonitor(prices=book, peak_flops_per_s=1e9), stopping)
    receipt = kept(tmp_path, 40, clock, dollars_a_second=5)
    assert seconds(receipt) < 4 + 36 / 5


def test_a_rise_of_the_price_while_it_stops_is_foreseen(clock: ManualClock, tmp_path: Path) -> None:
    """A price that rises a moment after the stop is in what is set aside for it."""
    change = datetime.fromtimestamp(clock.wall_ns() / 1e9 + 8, tz=timezone.utc).isoformat()
    book = PriceBook(
        prices=[
            Price(amount=DOLLAR_A_SECOND, valid_until=change),
            Price(amount=5 * DOLLAR_A_SECOND, valid_from=change),
        ]
    )
    from costguard import CostMonitor

    io = SlowSaves(clock.advance, 0.9)
    stopping = BudgetStopping(limit_usd=10, priors=PRIORS)
    train(tmp_path, Ticking(clock), CostMonitor(prices=book, peak_flops_per_s=1e9), stopping, plugins=[io])
    kept(tmp_path, 10, clock, dollars_a_second=5)


class Jumps(Callback):
    """Sets the wall clock at a step."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 20:
            self.clock.jump_wall(self.seconds)


@pytest.mark.parametrize("jump_s", [-7200, 7200, 86_400])
def test_a_wall_clock_that_jumps_changes_nothing(clock: ManualClock, tmp_path: Path, jump_s: float) -> None:
    """Put forward or back by hours in the middle, the run stops at the same step."""
    budgets = [Budget(limit_usd=10), Budget(limit_usd=11, scope="day")]
    trainer = train(tmp_path, Ticking(clock), Jumps(clock, jump_s), guard(budgets=budgets))
    kept(tmp_path, 10, clock)
    assert trainer.global_step == 77


def _at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp()) * NS_PER_S


@pytest.mark.parametrize(
    ("zone", "start", "before_h", "limit_h"),
    [
        ("Asia/Tokyo", "2026-12-01T14:00:00+00:00", 1, 20),  # an hour before midnight in Tokyo
        ("Europe/Amsterdam", "2026-10-24T22:00:00+00:00", 0, 24.5),  # the day of 25 hours, from its midnight on
        ("Europe/Amsterdam", "2026-03-28T23:00:00+00:00", 23, 23.5),  # the day of 23 hours cannot spend as much
        ("America/New_York", "2026-11-01T04:00:00+00:00", 0, 24.5),
        ("Antarctica/Troll", "2026-03-28T23:00:00+00:00", 1, 20),
    ],
)
def test_a_day_is_as_long_as_it_is(tmp_path: Path, zone: str, start: str, before_h: float, limit_h: float) -> None:
    """A day's budget is that of one calendar day where it is said, of 23, 24 or 25 hours; nothing else resets it."""
    with moved_by_hand(_at(start)) as clock:
        budget = Budget(limit_usd=60 * limit_h, scope="day", time_zone=zone)
        train(tmp_path, Ticking(clock, 60), guard(budgets=[budget], usd_per_gpu_hour=60))
        spent = (clock.wall_ns() - _at(start)) / HOUR_NS
        metered_from_now(clock)
    (stop,) = receipt_of(tmp_path)["budget"]["stops"]
    assert before_h + limit_h - 2 * stop["reserved_s"] / 3600 < spent <= before_h + limit_h


# -- several budgets, several runs -----------------------------------------------------------------------------------


def test_the_tightest_of_several_decides(clock: ManualClock, tmp_path: Path) -> None:
    """Money, GPU-hours and a day in one callback: the one that is reached first stops the run and is named."""
    budgets = [
        Budget(limit_usd=100),
        Budget(limit_gpu_hours="0.002", scope="run"),  # 7.2 s
        Budget(limit_usd=9, scope="day"),
    ]
    stopping = guard(budgets=budgets)
    train(tmp_path, Ticking(clock), stopping)
    kept(tmp_path, "7.2", clock)
    assert stopping.stopped_by is not None
    assert stopping.stopped_by.evidence["budget"] == "run/gpu_hours/billed"
    assert "GPU-hours" in stopping.stopped_by.message


def test_gpu_hours_need_no_price(clock: ManualClock, tmp_path: Path) -> None:
    """Without any price the run stops at its device time; the money stays unknown."""
    train(tmp_path, Ticking(clock), BudgetStopping(limit_gpu_hours="0.0025", priors=PRIORS))  # 9 s
    metered_from_now(clock)
    receipt = receipt_of(tmp_path)
    (stop,) = receipt["budget"]["stops"]
    assert receipt["spend"]["total"] is None
    assert 9 - 2 * stop["reserved_s"] < seconds(receipt) <= 9


@pytest.mark.parametrize("scope", ["project", "tag:team", "stage", "day"])
def test_runs_of_one_folder_share_a_budget(clock: ManualClock, tmp_path: Path, scope: str) -> None:
    """A second run with the same label goes on where the first has ended; one with another label does not count."""
    same, other = {"project": "a", "team": "a", "stage": "a"}, {"project": "b", "team": "b", "stage": "b"}
    for name, tags, steps in [("other", other, 30), ("first", same, 50), ("second", same, -1)]:
        stopping = guard(budgets=[Budget(limit_usd=20, scope=scope)])
        cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id=name, tags=tags)
        train(tmp_path, Ticking(clock), cost, stopping, max_steps=steps, max_epochs=-1)
    metered_from_now(clock)
    spent = {run.name: float(receipt_of(run)["spend"]["total"]) for run in run_folders(tmp_path)}
    shared = spent["first"] + spent["second"] + (spent["other"] if scope == "day" else 0)
    assert 20 - 2 * 2.4 < shared <= 20


# -- the stop itself -------------------------------------------------------------------------------------------------


def test_training_goes_on_from_the_last_checkpoint_with_a_raised_limit(clock: ManualClock, tmp_path: Path) -> None:
    """Nothing is trained twice, and what the first attempt has spent counts."""
    cost = {"usd_per_gpu_hour": DOLLAR_A_SECOND, "run_id": "r"}
    train(tmp_path, Ticking(clock), monitor(**cost), guard())
    path = stop_checkpoint(tmp_path)
    module = Ticking(clock)
    trainer = train(tmp_path, module, monitor(**cost), guard(limit_usd=20), ckpt_path=path)
    receipt = kept(tmp_path, 20, clock)
    first, second = receipt["run"]["attempts"]
    assert first["rework_steps"] == 0
    assert second["first_step"] == first["last_step"]
    assert trainer.global_step == first["last_step"] + module.trained
    (lifted,) = [d for d in ControlLog(str(run_folders(tmp_path)[0])).decisions() if d.kind == "resume"]
    assert (lifted.fields["from"], lifted.fields["to"]) == ("10", "20")


def test_a_limit_that_is_lowered_again_holds(clock: ManualClock, tmp_path: Path) -> None:
    """A slip of the keyboard in between is no raise that stays."""
    cost = {"usd_per_gpu_hour": DOLLAR_A_SECOND, "run_id": "r"}
    train(tmp_path, Ticking(clock), monitor(**cost), guard())
    train(tmp_path, Ticking(clock), monitor(**cost), guard(limit_usd=1000), max_steps=3)
    last = guard(limit_usd=30)
    train(tmp_path, Ticking(clock), monitor(**cost), last, max_steps=1000)
    assert last.stopped_by is not None
    kept(tmp_path, 30, clock)


def test_a_full_disk_at_the_stop_is_told_and_the_run_stops(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop cannot be written down: a warning, the last checkpoint, and the end, all the same."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ControlLog, "append", full)
    stopping = guard()
    with pytest.warns(CostguardWarning, match="could not be written down"):
        train(tmp_path, Ticking(clock), monitor(usd_per_gpu_hour=DOLLAR_A_SECOND), stopping)
    assert stopping.stopped_by is not None
    assert stop_checkpoint(tmp_path)


def test_a_budget_that_cannot_be_looked_at_is_told_and_stops(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enforcement that fails is never silent: a warning at once, a stop when it lasts."""
    looks = iter([BudgetWatch.judge])

    def judge(self: BudgetWatch, step: int) -> Any:
        look = next(looks, None)
        if look is None:
            raise PermissionError("neighbours")
        return look(self, step)

    monkeypatch.setattr(BudgetWatch, "judge", judge)
    stopping = guard(limit_usd=1000)
    with pytest.warns(CostguardWarning, match="cannot be looked at"):
        train(tmp_path, Ticking(clock), monitor(usd_per_gpu_hour=DOLLAR_A_SECOND), stopping, max_steps=3000)
    assert stopping.stopped_by is not None
    assert stopping.stopped_by.reason == "not_enforceable"


@pytest.mark.parametrize("first", ["monitor", "guard"])
def test_beside_a_monitor_in_either_order(clock: ManualClock, tmp_path: Path, first: str) -> None:
    """One run, one price, metered once, whoever comes first in the list."""
    cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND)
    stopping = BudgetStopping(limit_usd=10, priors=PRIORS)
    callbacks = [cost, stopping] if first == "monitor" else [stopping, cost]
    trainer = train(tmp_path, Ticking(clock), *callbacks)
    kept(tmp_path, 10, clock)
    assert trainer.global_step == 77
    assert len(run_folders(tmp_path)) == 1


def test_the_same_price_may_be_said_twice(clock: ManualClock, tmp_path: Path) -> None:
    """`3600` and `'3600.0'` are one price."""
    train(tmp_path, Ticking(clock), monitor(usd_per_gpu_hour="3600.0"), guard())
    kept(tmp_path, 10, clock)


def test_two_prices_are_an_error(clock: ManualClock, tmp_path: Path) -> None:
    """Which of them holds is not guessed."""
    with pytest.raises(ConfigError, match="state different prices"):
        train(tmp_path, Ticking(clock), monitor(usd_per_gpu_hour=1), guard())


def test_two_guards_in_one_trainer_are_an_error(clock: ManualClock, tmp_path: Path) -> None:
    """Several budgets go into one."""
    with pytest.raises(ConfigError, match="two in one Trainer"):
        train(tmp_path, Ticking(clock), guard(), Other(limit_usd=20, usd_per_gpu_hour=DOLLAR_A_SECOND))


class Other(BudgetStopping):
    """A second one, with a state of its own, so that Lightning itself takes it."""

    state_key = "Other"


class Spoils(Ticking):
    """Its weights are no numbers any more from some step on."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * float("nan") if self.trained > 50 else loss


def test_weights_that_are_no_numbers_are_not_saved(clock: ManualClock, tmp_path: Path) -> None:
    """The last good checkpoint stays the newest; the stop says so."""
    saves = ModelCheckpoint(tmp_path / "saves", every_n_train_steps=50, save_last=True)
    with pytest.warns(CostguardWarning, match="without a checkpoint: weights are not finite"):
        train(tmp_path, Spoils(clock), guard(), saves, enable_checkpointing=True)
    kept(tmp_path, 10, clock)
    assert not list(tmp_path.rglob("stopped-*"))
    assert torch.load(tmp_path / "saves" / "last.ckpt", weights_only=False)["global_step"] == 50


def test_a_stop_on_a_share_of_the_limit(clock: ManualClock, tmp_path: Path) -> None:
    """A threshold may stop earlier than the limit."""
    budget = Budget(limit_usd=20, thresholds=[Threshold(at=0.5, action="stop")])
    trainer = train(tmp_path, Ticking(clock), guard(budgets=[budget]))
    assert trainer.global_step == 77
    kept(tmp_path, 10, clock)


# -- what comes after it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_breach", "scheduled", "exits"),
    [("auto", False, False), ("auto", True, True), ("return", True, False), ("exit", False, True)],
)
def test_how_the_process_goes_on(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_breach: str, scheduled: bool, exits: bool
) -> None:
    """Under a scheduler it ends with code 93, after everything is in order; elsewhere `fit` returns."""
    if scheduled:
        monkeypatch.setenv("SKYPILOT_TASK_ID", "sky-1")
    flag = tmp_path / "finished"
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(flag))
    trainer = quiet_trainer(tmp_path, guard(on_breach=on_breach))
    module = Ticking(clock)
    if exits:
        with pytest.raises(StoppedForGood) as end:
            trainer.fit(module, loader(ENDLESS))
        assert end.value.code == 93
    else:
        trainer.fit(module, loader(ENDLESS))
    receipt = kept(tmp_path, 10, clock)
    assert receipt["run"]["attempts"][0]["ended"] == "closed"
    assert flag.exists()
    assert stop_checkpoint(tmp_path)


def test_lightning_does_not_put_the_job_back_into_the_queue(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Slurm plugin requeues on a signal before the time limit; after a stop it no longer does."""
    from lightning.pytorch.plugins.environments import SLURMEnvironment

    for name, value in {"JOB_ID": "7", "JOB_NAME": "train", "NTASKS": "1", "PROCID": "0", "LOCALID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURM_NODEID", "0")
    monkeypatch.setenv("SLURM_NODELIST", "localhost")
    environment = SLURMEnvironment(auto_requeue=True, requeue_signal=signal.SIGUSR1)
    trainer = quiet_trainer(tmp_path, guard(), plugins=[environment])
    with pytest.raises(StoppedForGood):
        trainer.fit(Ticking(clock), loader(ENDLESS))
    kept(tmp_path, 10, clock)
    assert environment.auto_requeue is False


class Untouchable:
    """Data that no refused start may touch."""

    touched = 0

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> torch.Tensor:
        self.touched += 1
        return torch.ones(2, 8)


class Starts(Callback):
    """Takes a moment to start, after the meter has begun."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def on_exception(self, *_: Any) -> None:
        self.clock.advance(0.01)


def _refused(folder: Path, clock: ManualClock, **options: Any) -> StartRefused:
    data, cost = Untouchable(), monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id="r")
    trainer = quiet_trainer(folder, Starts(clock), cost, guard(**options))
    with pytest.raises(StartRefused) as end:
        trainer.fit(Ticking(clock), torch.utils.data.DataLoader(data, batch_size=None))
    assert data.touched == 0
    return end.value


def test_it_stays_stopped(clock: ManualClock, tmp_path: Path) -> None:
    """The next start of the same run is refused before any data is read, with code 93, and is metered."""
    cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id="r")
    train(tmp_path, Ticking(clock), cost, guard())
    spent = float(kept(tmp_path, 10, clock)["spend"]["total"])
    refused = _refused(tmp_path, clock)
    assert refused.code == 93
    assert "Not started" in refused.message
    assert "costguard budget" in refused.message
    metered_from_now(clock)
    receipt = receipt_of(tmp_path)
    assert len(receipt["run"]["attempts"]) == 2
    assert [v["action"] for v in receipt["verdicts"]][-1] == "refuse"
    assert spent < float(receipt["spend"]["total"]) <= 10


def test_a_resume_without_a_raise_lets_it_go_on(clock: ManualClock, tmp_path: Path) -> None:
    """What was decided later counts; the limit holds all the same."""
    cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id="r")
    train(tmp_path, Ticking(clock), cost, guard(budgets=[Budget(limit_usd=8), Budget(limit_usd=1000, scope="day")]))
    metered_from_now(clock)
    control = ControlLog(str(run_folders(tmp_path)[0]))
    control.append("resume", why="the bill was wrong")
    cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id="r")
    train(tmp_path, Ticking(clock), cost, guard(limit_usd=20), ckpt_path=stop_checkpoint(tmp_path))
    kept(tmp_path, 20, clock)


def test_a_days_stop_ends_with_the_day(clock: ManualClock, tmp_path: Path) -> None:
    """On the same day the run is refused, on the next one it goes on and has that day's money."""
    budgets = [Budget(limit_usd=8, scope="day")]

    def go_on(**more: Any) -> None:
        cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id="r")
        train(tmp_path, Ticking(clock), cost, guard(budgets=budgets), **more)
        metered_from_now(clock)

    go_on()
    path = stop_checkpoint(tmp_path)
    with pytest.raises(StartRefused):
        go_on(ckpt_path=path)
    clock.advance(86_400)
    metered_from_now(clock)
    go_on(ckpt_path=path)
    assert 16 - 2 * 2.4 * 2 < float(receipt_of(tmp_path)["spend"]["total"]) <= 16
    kinds = [d.kind for d in ControlLog(str(run_folders(tmp_path)[0])).decisions()]
    assert kinds == ["stop", "resume", "stop"]


@pytest.mark.parametrize("raised", [False, True])
def test_a_checkpoint_may_be_what_tells_which_run_this_is(clock: ManualClock, tmp_path: Path, raised: bool) -> None:
    """Without a run id or a scheduler: refused when the checkpoint is read, before any data; or it goes on."""
    train(tmp_path, Ticking(clock), guard())
    metered_from_now(clock)
    moved = stop_checkpoint(tmp_path).rename(tmp_path / "moved.ckpt")
    data, trainer = Untouchable(), quiet_trainer(tmp_path, guard(limit_usd=20 if raised else 10))
    loads = torch.utils.data.DataLoader(data, batch_size=None)
    if raised:
        trainer.fit(Ticking(clock), loads, ckpt_path=moved)
        kept(tmp_path, 20, clock)
    else:
        with pytest.raises(StartRefused):
            trainer.fit(Ticking(clock), loads, ckpt_path=moved)
        assert data.touched == 0


class ByHand(Ticking):
    """Steps a bare optimizer itself, which moves no counter of Lightning's."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


def test_a_bare_optimizer_stepped_by_hand_is_stopped_too(clock: ManualClock, tmp_path: Path) -> None:
    """Lightning's step stays 0; the budget holds all the same."""
    module = ByHand(clock)
    trainer = train(tmp_path, module, guard())
    kept(tmp_path, 10, clock)
    assert trainer.global_step == 0
    assert module.trained == 77


def test_a_limit_raised_by_command_holds_over_the_code(clock: ManualClock, tmp_path: Path) -> None:
    """The code still says 10; the command said 15."""
    train(tmp_path, Ticking(clock), monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id="r"), guard())
    metered_from_now(clock)
    said = {"budget": "run/usd/billed", "from": "10", "to": "15", "why": "more data"}
    ControlLog(str(run_folders(tmp_path)[0])).append("raise", **said)
    cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id="r")
    train(tmp_path, Ticking(clock), cost, guard(), ckpt_path=stop_checkpoint(tmp_path))
    kept(tmp_path, 15, clock)


def test_an_unreadable_decision_refuses_the_start(clock: ManualClock, tmp_path: Path) -> None:
    """What was decided is unknown then, so nothing is started by mistake."""
    train(tmp_path, Ticking(clock), monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id="r"), guard())
    metered_from_now(clock)
    (path,) = run_folders(tmp_path)[0].glob("control-*.json")
    path.write_text("{not json")
    trainer = quiet_trainer(tmp_path, monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id="r"), guard(limit_usd=50))
    with pytest.raises(CostguardError, match=r"control-0001.json cannot be read"):
        trainer.fit(Ticking(clock), loader(ENDLESS))


def test_a_start_that_could_do_no_step_is_refused(clock: ManualClock, tmp_path: Path) -> None:
    """A limit below the price of stopping: refused with the least budget that works."""
    refused = _refused(tmp_path, clock, limit_usd=1)
    assert "the least budget that works is $2." in refused.message


# -- nothing is left behind ------------------------------------------------------------------------------------------


def _traces(trainer: Trainer) -> dict[str, Any]:
    loop = trainer.fit_loop
    return {
        "limits": (trainer.limit_val_batches, loop.min_epochs, loop.epoch_loop.min_steps),
        "callbacks": list(trainer.callbacks),
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)],
        "strategy": sorted(vars(trainer.strategy))
        and {name for name in vars(trainer.strategy) if name in ("save_checkpoint", "teardown", "load_checkpoint")},
        "trainer": {name for name in ("_teardown", "save_checkpoint") if name in vars(trainer)},
    }


@pytest.mark.parametrize("end", ["stop", "exit", "exception", "epochs", "refused"])
def test_everything_is_as_before(clock: ManualClock, tmp_path: Path, end: str) -> None:
    """After a stop, an exit, an exception or the end of the plan: Trainer, strategy, module, signals and threads."""

    class Fails(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            if end == "exception" and trainer.global_step == 5:
                raise RuntimeError("training_step failed")

    stopping = guard(on_breach="exit" if end == "exit" else "return", limit_usd=1 if end == "refused" else 10)
    trainer, module = quiet_trainer(tmp_path, Fails(), stopping, min_epochs=1), Ticking(clock)
    before, threads, own = _traces(trainer), set(threading.enumerate()), set(vars(module))
    try:
        trainer.fit(module, loader(20 if end == "epochs" else ENDLESS))
    except (RuntimeError, SystemExit):
        assert end in ("exit", "exception", "refused")
    assert _traces(trainer) == before
    metered_from_now(clock)
    left = [t for t in threading.enumerate() if t not in threads and t.name.startswith("costguard")]
    for thread in left:
        thread.join(10)
    assert not [t for t in left if t.is_alive()]
    assert "teardown" not in vars(module)
    assert {name for name in set(vars(module)) - own if not name.startswith("_")} <= {"prepare_data_per_node"}


def test_a_trainer_can_fit_again_after_a_stop(clock: ManualClock, tmp_path: Path) -> None:
    """The same Trainer and callback: refused at once while the money is spent."""
    stopping = guard()
    trainer, module = quiet_trainer(tmp_path, stopping), Ticking(clock)
    trainer.fit(module, loader(ENDLESS))
    done = module.trained
    with pytest.raises(StartRefused):
        trainer.fit(module, loader(ENDLESS))
    assert module.trained == done


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"limit_usd": 0}, "BudgetStopping(limit_usd=0): "),
        ({"limit_usd": -5}, "BudgetStopping(limit_usd=-5): negative"),
        ({"limit_usd": float("nan")}, "BudgetStopping(limit_usd=nan): not a finite number"),
        ({"limit_usd": float("inf")}, "BudgetStopping(limit_usd=inf): not a finite number"),
        ({"limit_usd": "abc"}, "BudgetStopping(limit_usd='abc'): not a number; expected US dollars"),
        ({"limit_gpu_hours": "abc"}, "BudgetStopping(limit_gpu_hours='abc'): not a number; expected GPU-hours"),
        ({"limit_usd": True}, "BudgetStopping(limit_usd=True): not a number"),
        ({"limit_usd": 5, "limit_gpu_hours": 5}, "two limits in one budget"),
        ({}, "no limit; give limit_usd=250"),
        ({"limit_usd": 5, "on_breach": "panic"}, "BudgetStopping(on_breach='panic'): expected auto, return or exit"),
        ({"limit_usd": 5, "webhook": "hooks.example/x"}, "BudgetStopping(webhook='hooks.example/x'): expected a URL"),
        ({"limit_usd": 5, "webhook": 5}, "BudgetStopping(webhook=5): expected a URL"),
        ({"limit_usd": 5, "on_alert": 5}, "BudgetStopping(on_alert=5): expected a function"),
        ({"limit_usd": 5, "on_store_down": "hope"}, "BudgetStopping(on_store_down='hope'): expected stop_at_credit"),
        ({"pot": 5}, "BudgetStopping(pot=5): expected"),
        ({"pot": ""}, "BudgetStopping(pot=''): expected"),
        ({"limit_usd": 5, "warn_at": [2]}, "Threshold(at=2): expected a share"),
        ({"limit_usd": 5, "warn_at": 0.5}, "BudgetStopping(warn_at=0.5): expected"),
        ({"limit_usd": 5, "priors": 3}, "BudgetStopping(priors=3): expected"),
        ({"budgets": ["x"]}, "expected Budget objects"),
        ({"budgets": 5}, "expected Budget objects"),
        ({"limit_usd": 5, "budgets": [Budget(limit_usd=6)]}, "two limits in usd for one scope"),
        ({"limit_usd": 5, "usd_per_gpu_hour": 1, "usd_per_hour": 1}, "give usd_per_gpu_hour"),
    ],
)
def test_a_bad_argument_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    """Option, value and what is expected, before anything begins."""
    with pytest.raises(ConfigError) as error:
        BudgetStopping(**arguments)
    assert sentence in str(error.value)


def test_money_without_a_price_is_refused_at_start(clock: ManualClock, tmp_path: Path) -> None:
    """With the remedy, and before a step; a budget in GPU-hours works."""
    with pytest.raises(ConfigError, match=r"what a GPU costs is unknown.*limit_gpu_hours.*usd_per_gpu_hour"):
        train(tmp_path, Ticking(clock), BudgetStopping(limit_usd=10, priors=PRIORS))


def test_another_currency_needs_a_dated_rate(clock: ManualClock, tmp_path: Path) -> None:
    """Prices in euros under a limit in dollars: refused, or converted by the rate that was given."""
    from costguard import CostMonitor

    book = PriceBook(currency="EUR", prices=[Price(amount=DOLLAR_A_SECOND)])
    cost = CostMonitor(prices=book, peak_flops_per_s=1e9)
    with pytest.raises(ConfigError, match=r"prices are in EUR.*usd_rate"):
        train(tmp_path, Ticking(clock), cost, BudgetStopping(limit_usd=10, priors=PRIORS))
    budget = Budget(limit_usd=10, usd_rate="1.25", usd_rate_date="2026-11-30")
    cost = CostMonitor(prices=book, peak_flops_per_s=1e9)
    train(tmp_path / "b", Ticking(clock), cost, BudgetStopping(budgets=[budget], priors=PRIORS))
    kept(tmp_path / "b", 8, clock)


# -- pots ------------------------------------------------------------------------------------------------------------


def _pot(folder: Path, **options: Any) -> str:
    url = str(folder / "pot")
    Pot.create(url, **{"limit_usd": 20, "voucher": "0.5", **options})
    return url


def _in_pot(folder: Path, name: str, url: str, clock: Any, module: LightningModule, **options: Any) -> Decimal:
    cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id=name)
    train(folder, module, cost, BudgetStopping(pot=url, priors=PRIORS, **options), max_epochs=-1)
    metered_from_now(clock)
    return Decimal(receipt_of(folder / "costguard" / name)["spend"]["total"])


def test_two_runs_in_turn_share_a_pot(clock: ManualClock, tmp_path: Path) -> None:
    """The second gets what the first has left; both together stay under the limit."""
    url = _pot(tmp_path)
    first = train_some(tmp_path, "first", url, clock, 80)
    second = _in_pot(tmp_path, "second", url, clock, Ticking(clock))
    assert first == Decimal(8)
    assert Decimal(20) - Decimal("5") < first + second <= 20
    status = Pot.open(url).status()
    assert status.spent <= 20
    assert status.live == 0


def test_a_raised_pot_lets_a_run_go_on(clock: ManualClock, tmp_path: Path) -> None:
    """A stop by the pot holds until the pot has money again."""
    url = _pot(tmp_path)
    first = _in_pot(tmp_path, "r", url, clock, Ticking(clock))
    Pot.open(url).raise_limit(to=40, why="more data")
    both = _in_pot(tmp_path, "r", url, clock, Ticking(clock))
    assert first <= 20 < both <= 40
    assert Pot.open(url).status().spent <= 40


def test_an_empty_pot_refuses_the_start(clock: ManualClock, tmp_path: Path) -> None:
    """What is left does not even pay for stopping: nothing is begun, and what was claimed goes back."""
    url, module = _pot(tmp_path, limit_usd=2), Ticking(clock)
    with pytest.raises(StartRefused, match="Not started"):
        _in_pot(tmp_path, "r", url, clock, module)
    metered_from_now(clock)
    assert module.trained == 0
    assert Pot.open(url).status().live == 0


def train_some(folder: Path, name: str, url: str, clock: ManualClock, steps: int) -> Decimal:
    """Train some steps of a run that holds credit of a pot."""
    cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id=name)
    train(folder, Ticking(clock), cost, BudgetStopping(pot=url, priors=PRIORS), max_steps=steps, max_epochs=-1)
    metered_from_now(clock)
    return Decimal(receipt_of(folder / "costguard" / name)["spend"]["total"])


def test_a_pot_and_a_limit_of_its_own(clock: ManualClock, tmp_path: Path) -> None:
    """Whichever is reached first."""
    url = _pot(tmp_path, limit_usd=100)
    stopping = guard(pot=url, limit_usd=10)
    train(tmp_path, Ticking(clock), stopping)
    kept(tmp_path, 10, clock)
    assert Pot.open(url).status().live == 0


@pytest.mark.parametrize("on_store_down", ["stop_at_credit", "continue"])
def test_a_pot_whose_store_is_away_refuses_the_start(clock: ManualClock, tmp_path: Path, on_store_down: str) -> None:
    """Nothing is in hand yet, so there is nothing to go on with; the sentence names the pot."""
    stopping = BudgetStopping(
        pot=str(tmp_path / "nowhere" / "pot"),
        usd_per_gpu_hour=DOLLAR_A_SECOND,
        priors=PRIORS,
        on_store_down=on_store_down,
    )
    with pytest.raises(CostguardError, match="nowhere"):
        train(tmp_path, Ticking(clock), stopping)


def test_an_unreadable_pot_refuses_the_start(clock: ManualClock, tmp_path: Path) -> None:
    """Never a silent start."""
    url = _pot(tmp_path)
    for path in Path(url).rglob("*"):
        if path.is_file():
            path.write_bytes(b"{not json")
    with pytest.raises(PotError):
        _in_pot(tmp_path, "r", url, clock, Ticking(clock))


def test_a_pot_of_money_needs_a_price(clock: ManualClock, tmp_path: Path) -> None:
    """Or GPU-hours."""
    with pytest.raises(ConfigError, match="pot counts US dollars"):
        train(tmp_path, Ticking(clock), BudgetStopping(pot=_pot(tmp_path), priors=PRIORS))


def test_a_pot_of_gpu_hours_needs_none(clock: ManualClock, tmp_path: Path) -> None:
    """It counts device time."""
    url = str(tmp_path / "pot")
    Pot.create(url, limit_gpu_hours="0.005", voucher="0.0005")  # 18 s
    train(tmp_path, Ticking(clock), BudgetStopping(pot=url, priors=PRIORS), max_epochs=-1)
    metered_from_now(clock)
    assert 18 - 5 < seconds(receipt_of(tmp_path)) <= 18
