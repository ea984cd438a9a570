"""The callback that moves checkpoints to cold storage instead of deleting them, and brings them back when asked."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from costguard.checkpoints.cabinet import Cold, open_room
from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.faults import CheckpointError
from costguard.checkpoints.inventory import Record
from costguard.checkpoints.pace import TransferThread
from costguard.checkpoints.recovery import recover
from costguard.checkpoints.restore import restore
from costguard.checkpoints.room import Room, new_id
from costguard.errors import config_error, warn
from costguard.keep import History, Rule
from costguard.lightning import private
from costguard.lightning.cost_monitor import CostMonitor
from costguard.lightning.instances import Instances, Method
from costguard.lightning.joining import callbacks_of
from costguard.lightning.shield import metering
from costguard.policies.retention import Decision, Move, Retention, Tiers, plan
from costguard.prices.storage import DAY_NS, storage_class
from costguard.records import Activity

Demote = Literal["rest", "none"]
_OF_NO_RULE = ("rest", "no_rule")
DEFAULT_BYTES_PER_S = 100e6
"""Bandwidth of demotions beside training, unless another one is given: chosen."""


class CheckpointTiering(Callback):
    """Keeps the checkpoints that are worth it, and moves the others to cold storage instead of deleting them.

    Works beside an unmodified `ModelCheckpoint`: what that would delete is demoted (or deleted, where `demote="none"`),
    and a demoted checkpoint resumes by its old path as if it had never left. With `keep` the rules decide over all
    checkpoints; without, only what `ModelCheckpoint` would delete moves.

    Args:
        cold: Folder or URL that checkpoints are demoted to, such as `s3://bucket/run`; `None` to only keep by rules.
        keep: What stays on the hot disk, such as `last(3) | best("val_loss", n=2)`, see `costguard.keep`.
        demote: `rest` demotes what no rule keeps; `none` deletes what `ModelCheckpoint` deletes, and moves nothing.
        expire_after_days: Days after its save at which what no rule keeps is deleted everywhere; never if `None`.
        expire_failed_after_days: The same for a run that has failed.
        hot_quota_gb: Gigabytes of the hot disk above which also what a rule keeps is demoted, the oldest first.
        storage_class: A class of the price table, such as `s3:GLACIER_IR`; with `hot_class` a move that costs more than
            it saves is not made.
        hot_class: The hot disk's class in that table.
        bandwidth: Most bytes a second of a demotion beside training, above 0.
        storage_options: Given to fsspec; never written down.
        allow_plain_http: Whether a store that is not this machine may be spoken to without TLS.
        wait_at_end_s: Seconds that the end of training waits for demotions; what is not done then goes on next time.

    Raises:
        ConfigError: If a value cannot be used.
    """

    def __init__(
        self,
        cold: str | None = None,
        keep: Rule | None = None,
        demote: Demote = "rest",
        expire_after_days: float | None = None,
        expire_failed_after_days: float | None = None,
        hot_quota_gb: float | None = None,
        storage_class: str | None = None,
        hot_class: str | None = None,
        bandwidth: float = DEFAULT_BYTES_PER_S,
        storage_options: dict[str, Any] | None = None,
        allow_plain_http: bool = False,
        wait_at_end_s: float = 300.0,
    ) -> None:
        if cold is None and keep is None:
            raise config_error(
                "CheckpointTiering(cold=None, keep=None): nothing to do; name a cold store, such as "
                "cold='s3://bucket/run', or rules, such as keep=last(3)."
            )
        if keep is not None and not isinstance(keep, Rule):
            raise config_error(f"CheckpointTiering(keep={keep!r}): expected rules of costguard.keep, such as last(3).")
        if not bandwidth > 0:
            raise config_error(f"CheckpointTiering(bandwidth={bandwidth!r}): expected bytes a second above 0.")
        if not wait_at_end_s >= 0:
            raise config_error(f"CheckpointTiering(wait_at_end_s={wait_at_end_s!r}): expected seconds of at least 0.")
        self._cold = Cold(
            url=cold,
            storage_options=storage_options,
            storage_class=storage_class,
            bytes_per_s=bandwidth,
            allow_plain_http=allow_plain_http,
        )
        self._retention = Retention(
            keep=keep,
            demote=demote,
            expire_after_ns=_days("expire_after_days", expire_after_days),
            failed_expire_after_ns=_days("expire_failed_after_days", expire_failed_after_days),
            hot_quota_bytes=None if hot_quota_gb is None else round(hot_quota_gb * 1e9),
        )
        self._tiers = Tiers(
            hot=_class(hot_class), cold=_class(storage_class), has_cold=cold is not None and demote == "rest"
        )
        self._wait_at_end_s = wait_at_end_s
        self._begin()

    def _begin(self) -> None:
        self._instances = Instances()
        self._room: Room | None = None
        self._transfers: TransferThread | None = None
        self._monitor: CostMonitor | None = None
        self._released: set[str] = set()
        self._failed = False

    def __getstate__(self) -> dict[str, Any]:
        """Only what the user said goes along into a copy or to another process."""
        return {name: vars(self)[name] for name in ("_cold", "_retention", "_tiers", "_wait_at_end_s")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has its own room."""
        vars(self).update(state)
        self._begin()

    # -- set up and tear down ---------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Open the list, go on with what was interrupted, and wrap what saves, removes and loads."""
        self._leave()
        self._begin()
        self._monitor = next((c for c in callbacks_of(trainer) if isinstance(c, CostMonitor)), None)
        private.skip_unused_hooks(self)
        problem: Exception | None = None
        if trainer.is_global_zero:
            try:
                self._room = open_room(trainer.default_root_dir, self._cold)
                self._transfers = TransferThread(_tell)
                self._transfers.submit("recover", self._recover)
            except Exception as error:  # the other ranks wait for word
                problem = error
        failed = trainer.strategy.broadcast(str(problem) if problem else None)
        if problem is not None:
            raise problem
        if failed is not None:
            raise config_error(failed)
        strategy, wrap = trainer.strategy, self._instances.wrap
        wrap(trainer, "save_checkpoint", lambda original: self._saving(original, trainer))
        wrap(strategy.checkpoint_io, "remove_checkpoint", self._removing)
        wrap(strategy, "load_checkpoint", lambda original: self._loading(original, trainer))

    def _recover(self) -> None:
        assert self._room is not None
        for problem in recover(self._room).problems:
            warn(f"checkpoints: {problem}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give demotions a last while; it is charged to them."""
        self._finish()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """A run that failed may keep less, for shorter."""
        self._failed = True
        with metering():
            self._consider()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put everything back."""
        self._leave()

    def _finish(self) -> None:
        transfers = self._transfers
        if transfers is None or self._room is None:
            return
        with metering(), self._charged(Activity.DEMOTION):
            transfers.wait(self._wait_at_end_s / 2)
            self._consider()
            if not transfers.wait(self._wait_at_end_s / 2):
                warn(
                    f"checkpoints: {transfers.pending} moves are not done after {self._wait_at_end_s:.0f} s; nothing "
                    "is lost, they go on when this folder is trained in again."
                )

    def _leave(self) -> None:
        self._instances.put_back()
        private.restore_hooks(self)
        if self._transfers is not None:
            self._transfers.close(0)
            self._transfers = None

    # -- what Lightning does with checkpoints -----------------------------------------------------------------

    def _saving(self, original: Method, trainer: Trainer) -> Method:
        def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            begin = time.monotonic_ns()
            result = original(filepath, *args, **kwargs)
            if self._room is not None and "://" not in os.fspath(filepath):
                with metering():
                    self._saved(trainer, os.path.abspath(os.fspath(filepath)), time.monotonic_ns() - begin)
            return result

        return save_checkpoint

    def _saved(self, trainer: Trainer, path: str, blocked_ns: int) -> None:
        """Take a checkpoint up once it is written, which for a background save is later."""
        assert self._transfers is not None
        facts = {**_facts(trainer), "blocked_ns": blocked_ns}
        written = private.when_saved(trainer)

        def take_up() -> None:
            written()
            if self._room is not None and os.path.exists(path):
                self._room.inventory.adopt(path, new_id(), complete=True, **facts)

        if private.saves_beside(trainer):
            self._transfers.submit(f"take up {path} {facts['step']}", take_up)
        else:
            take_up()
        self._consider()

    def _removing(self, original: Method) -> Method:
        def remove_checkpoint(path: Any, *args: Any, **kwargs: Any) -> Any:
            stays = False
            with metering():
                stays = self._stays(os.fspath(path))
            return None if stays else original(path, *args, **kwargs)

        return remove_checkpoint

    def _stays(self, path: str) -> bool:
        """Whether what is to be deleted is kept by a rule, or demoted instead."""
        record, room = self._record_of(path), self._room
        if record is None or room is None:
            return False
        self._released.add(record.id)
        decision = next(d for d in self._plan(room) if d.id == record.id)
        if decision.move is Move.KEEP and decision.rule not in _OF_NO_RULE:
            return True
        if decision.move is Move.EXPIRE or not self._tiers.has_cold:
            return False
        self._consider()
        return True

    def _plan(self, room: Room) -> list[Decision]:
        checkpoints = [record.as_checkpoint() for record in room.inventory.records()]
        history = History(checkpoints=checkpoints, failed=self._failed)
        return plan(history, self._retention, time.time_ns(), self._tiers)

    def _record_of(self, path: str) -> Record | None:
        return self._room.inventory.find(path) if self._room is not None and "://" not in path else None

    def _loading(self, original: Method, trainer: Trainer) -> Method:
        def load_checkpoint(checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
            problem: Exception | None = None
            path = os.fspath(checkpoint_path)
            if trainer.is_global_zero:
                try:
                    self._bring_back(trainer, path)
                except Exception as error:  # the other ranks wait for word
                    problem = error
            failed = trainer.strategy.broadcast(str(problem) if problem else None)
            if problem is not None:
                raise problem
            if failed is not None:
                raise CheckpointError(failed)
            return original(checkpoint_path, *args, **kwargs)

        return load_checkpoint

    def _bring_back(self, trainer: Trainer, path: str) -> None:
        record, room = self._record_of(path), self._room
        if record is None or room is None:
            return
        if not os.path.exists(path):
            if self._transfers is not None:
                self._transfers.wait(self._wait_at_end_s)
            restore(room, record.id)
        if trainer.state.fn == TrainerFn.FITTING:
            for other in room.inventory.records():
                if other.resumed_from and other.id != record.id:
                    room.inventory.update(other, resumed_from=False)
            room.inventory.update(record, resumed_from=True)

    # -- what becomes of them ---------------------------------------------------------------------------------

    def _consider(self) -> None:
        """Have the plan made and carried out beside training."""
        if self._transfers is not None and self._room is not None:
            self._transfers.submit(f"plan {time.monotonic_ns()}", self._carry_out)

    def _carry_out(self) -> None:
        room = self._room
        assert room is not None
        for decision in self._plan(room):
            record = next((r for r in room.inventory.records() if r.id == decision.id), None)
            if record is not None:
                self._do(room, record, decision)

    def _do(self, room: Room, record: Record, decision: Decision) -> None:
        move = decision.move
        if move is Move.KEEP and decision.rule == "no_rule" and record.id in self._released:
            move = Move.DEMOTE  # without rules the user's own ModelCheckpoint decides what goes
        try:
            if move is Move.EXPIRE:
                expire(room, record.id)
            elif move is Move.DEMOTE and room.store is not None and _may_go(room, record):
                demote(room, record.id)
                release(room, record.id)
        except CheckpointError as error:
            warn(f"checkpoints: step {record.step} stays where it is ({error})")

    def _charged(self, activity: Activity) -> Any:
        run = self._monitor.metered if self._monitor is not None else None
        return run.meter.span(activity) if run is not None else metering()


def _may_go(room: Room, record: Record) -> bool:
    newest = room.inventory.newest_complete()
    return (
        record.tier != "cold"
        and not record.resumed_from
        and not record.pinned
        and (newest is None or newest.id != record.id)
    )


def _facts(trainer: Trainer) -> Mapping[str, Any]:
    metrics: dict[str, float | None] = {}
    for name, value in trainer.callback_metrics.items():
        with metering():
            metrics[name] = float(value)
    return {
        "step": trainer.global_step,
        "saved_ns": time.time_ns(),
        "epochs": trainer.current_epoch,
        "metrics": metrics,
    }


def _tell(name: str, error: Exception) -> None:
    warn(f"checkpoints: {name} failed ({type(error).__name__}: {error}); nothing is lost, it is tried again.")


def _days(option: str, days: float | None) -> int | None:
    if days is not None and not days >= 0:
        raise config_error(f"CheckpointTiering({option}={days!r}): expected days of at least 0.")
    return None if days is None else round(days * DAY_NS)


def _class(name: str | None) -> Any:
    return None if name is None else storage_class(name)
