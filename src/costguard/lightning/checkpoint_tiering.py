"""The callback that moves checkpoints to cold storage instead of deleting them, and brings them back when asked."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from costguard.checkpoints.cabinet import leave_word, open_room, remember_policy
from costguard.checkpoints.faults import CheckpointError, scrub_url
from costguard.checkpoints.room import new_id
from costguard.checkpoints.stripping import check_resumable
from costguard.errors import ConfigError, config_error, warn
from costguard.keep import Rule
from costguard.lightning import private
from costguard.lightning.checkpoint_facts import facts_of, metrics_of
from costguard.lightning.checkpoint_figures import metered_run
from costguard.lightning.cost_monitor import CostMonitor
from costguard.lightning.instances import Instances, Method
from costguard.lightning.joining import callbacks_of
from costguard.lightning.shield import metering
from costguard.lightning.tiering_moves import Moves
from costguard.lightning.tiering_nodes import Nodes
from costguard.lightning.tiering_outlook import CheckpointOutlook
from costguard.lightning.tiering_settings import Demote, Verify, checked
from costguard.prices.storage import StorageClass
from costguard.records import Activity

WAIT_AFTER_EXCEPTION_S = 10.0
"""Longest that a failed training waits for moves, so that others learn of the failure soon: chosen."""


class CheckpointTiering(Callback):
    """Keeps the checkpoints that are worth it, and moves the others to cold storage instead of deleting them.

    Works beside an unmodified `ModelCheckpoint`: with rules they decide over all checkpoints, what none keeps is
    demoted, and a demoted checkpoint resumes by its old path as if it had never left. Without rules
    `ModelCheckpoint`'s own deletions pass untouched, nothing moves, and the end of `fit` says what would have.

    Args:
        cold: Folder or URL that checkpoints are demoted to, such as `s3://bucket/run`; `None` to only keep by rules.
        keep: What stays on the hot disk, such as `last(3) | best("val_loss", n=2)` of `costguard.keep`, or its text.
            `by_model_checkpoint()` moves just what `ModelCheckpoint` would delete.
        demote: `rest` demotes what no rule keeps; `none` deletes what `ModelCheckpoint` deletes, and moves nothing.
        expire_after: How long after its save what no rule keeps is deleted everywhere, such as `90d`; never if `None`.
        on_failed_run: What becomes of what no rule keeps of a run that an exception ended: `expire 7d`, or `keep`.
        expire_tagged: The same by tag of the run, such as `{"debug": "1d", "stage=warmup": "3d"}`: tags are those of
            `CostMonitor(tags=...)`, and `stage`, which `begin_stage` sets; the shortest that fits holds.
        strip_optimizer_after: Age, such as `14d`, from which on what no rule keeps is kept without its optimizer state,
            in the cold store: 3 times smaller with Adam. It can be tested and fetched, and not be trained on.
        hot_quota: Bytes of the hot disk, such as `500GB`, above which also what a rule keeps is demoted, the oldest
            first.
        min_free: Bytes of the hot disk, or a share such as `10%`, that stay free by the same means.
        storage_class: A class of the price table, such as `s3:GLACIER_IR`, or a `StorageClass` with prices of your own;
            with `hot_class` a move that costs more than it saves is not made.
        hot_class: The hot disk's class likewise, such as `ebs:gp3`.
        verify: How far a cold copy is verified before the hot one goes: by its `size`, by the `etag` that its parts
            should have (or, where a store has none, its content), or always by reading its `content` back.
        bandwidth: Most bytes a second of a demotion beside training, such as `50MB`; `auto` is 6 MB a second for each
            core that this process may use.
        storage_options: Given to fsspec, encryption included; never written down.
        allow_plain_http: Whether a store that is not this machine may be spoken to without TLS.
        finish_timeout: Seconds that the end of training waits for moves; the rest is for `costguard ckpt apply`, or
            for the next training in this folder.

    Raises:
        ConfigError: If a value cannot be used.
    """

    def __init__(
        self,
        cold: str | None = None,
        keep: Rule | str | None = None,
        demote: Demote = "rest",
        expire_after: str | None = None,
        on_failed_run: str | None = None,
        expire_tagged: dict[str, str] | None = None,
        strip_optimizer_after: str | None = None,
        hot_quota: str | float | None = None,
        min_free: str | float | None = None,
        storage_class: str | StorageClass | None = None,
        hot_class: str | StorageClass | None = None,
        verify: Verify = "etag",
        bandwidth: float | str = "auto",
        storage_options: dict[str, Any] | None = None,
        allow_plain_http: bool = False,
        finish_timeout: float = 60.0,
    ) -> None:
        self._settings = checked(
            cold=cold,
            keep=keep,
            demote=demote,
            expire_after=expire_after,
            on_failed_run=on_failed_run,
            expire_tagged=expire_tagged,
            strip_optimizer_after=strip_optimizer_after,
            hot_quota=hot_quota,
            min_free=min_free,
            storage_class=storage_class,
            hot_class=hot_class,
            verify=verify,
            bandwidth=bandwidth,
            storage_options=storage_options,
            allow_plain_http=allow_plain_http,
            finish_timeout=finish_timeout,
        )
        self._hot_class = hot_class
        self._stage: str | None = None
        self._trained: tuple[weakref.ref[Trainer] | None, str] = (None, "")
        self._begin()

    def _begin(self) -> None:
        self._instances = Instances()
        self._moves: Moves | None = None
        self._nodes: Nodes | None = None
        self._elsewhere = False
        self._outlook: CheckpointOutlook | None = None
        self._patience_s = min(self._settings.finish_timeout, WAIT_AFTER_EXCEPTION_S)

    def __getstate__(self) -> dict[str, Any]:
        """Only what the user said goes along into a copy or to another process."""
        return {name: vars(self)[name] for name in ("_settings", "_hot_class", "_stage")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has its own room."""
        vars(self).update(state)
        self._trained = (None, "")
        self._begin()

    # -- set up and tear down ---------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Open the list, go on with what was interrupted, and wrap what saves, removes and loads."""
        self._leave()
        self._begin()
        if any(isinstance(each, CheckpointTiering) and each is not self for each in callbacks_of(trainer)):
            raise config_error("CheckpointTiering: two in one Trainer; join their rules by `|` in one.")
        private.skip_unused_hooks(self)
        _on_first_rank(trainer, lambda: self._open(trainer), ConfigError)
        self._nodes = Nodes(trainer, self._moves, self._settings.cold)
        strategy, wrap = trainer.strategy, self._instances.wrap
        wrap(trainer, "save_checkpoint", lambda original: self._saving(original, trainer))
        wrap(strategy.checkpoint_io, "remove_checkpoint", lambda original: self._removing(original, trainer))
        wrap(strategy, "load_checkpoint", lambda original: self._loading(original, trainer))

    def _open(self, trainer: Trainer) -> None:
        root = str(trainer.default_root_dir)
        if "://" in root:
            raise config_error(
                f"CheckpointTiering: default_root_dir={root!r} is not on this machine's disk; give the Trainer a "
                "folder that is, in which the list of checkpoints lies."
            )
        try:
            room = open_room(root, self._settings.cold)
        except OSError as error:
            if trainer.state.fn != TrainerFn.FITTING:
                return  # what only reads may run where nothing can be written
            raise config_error(
                f"CheckpointTiering: the list of checkpoints cannot be kept in {root} ({error.strerror}); give the "
                "Trainer a default_root_dir that can be written to."
            ) from error
        trained, run = self._trained
        if trained is None or trained() is not trainer:
            run = new_id()
        self._trained = weakref.ref(trainer), run  # a Trainer that goes on without a checkpoint is the same run
        self._moves = Moves(room, self._settings, lambda: _last_paths(trainer), run, lambda: metered_run(trainer))
        if trainer.state.fn == TrainerFn.FITTING:
            self._outlook = CheckpointOutlook(room, self._settings)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what the run's checkpoints will take up and cost."""
        if self._moves is not None and self._outlook is not None:
            room, run = self._moves.room, self._moves.run
            with metering(), _charged(trainer, Activity.METERING):
                remember_policy(room, replace(self._settings.retention, run=run), self._hot_class)
                room.inventory.note_failed(run, False)
                self._outlook.begin(trainer, run)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Everything is saved: give moves a last while; it is charged to them."""
        if self._nodes is not None and self._moves is None:
            with metering(), _charged(trainer, Activity.DEMOTION):
                self._nodes.finish(self._settings.finish_timeout)
        if self._moves is None or self._outlook is None:
            return
        with metering(), _charged(trainer, Activity.DEMOTION):
            left = self._moves.finish(self._settings.finish_timeout)
            if left:
                warn(
                    f"checkpoints: {left} moves are not done after {self._settings.finish_timeout:.0f} s; nothing is "
                    f"lost, `costguard ckpt apply {trainer.default_root_dir} --yes` or the next training in this "
                    "folder goes on."
                )
            self._outlook.end(self._moves.deleted)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """A run that failed may keep less, for shorter; a user or a budget that stops it is no failure.

        What `ModelCheckpoint` saves because of the exception is still taken up, so this leaves last.
        """
        self._instances.wrap(*private.last_after_an_exception(trainer), self._then_leave)
        if self._moves is not None and trainer.state.fn == TrainerFn.FITTING:
            with metering():
                self._moves.room.inventory.note_failed(self._moves.run, isinstance(exception, Exception))
        if isinstance(exception, KeyboardInterrupt):
            self._patience_s = 0.0  # somebody waits at the keyboard

    # -- what others may tell -----------------------------------------------------------------------------------

    def note_anomaly(self, step: int | None = None) -> None:
        """Tell that the loss or the gradients went wrong, for `keep.before_anomaly`; on rank 0, others do nothing.

        Args:
            step: Optimizer step at which it began, the present one if `None`.
        """
        trainer = self._trained[0]() if self._trained[0] is not None else None
        if self._moves is not None and trainer is not None:
            self._moves.room.inventory.note_anomaly(self._moves.run, trainer.global_step if step is None else step)
            self._moves.consider()

    def begin_stage(self, name: str) -> None:
        """Label what is saved from now on with the tag `stage`, for `expire_tagged`."""
        self._stage = name

    def end_stage(self, name: str) -> None:
        """Mark the checkpoint of the present step, or else the next one, as a stage's end, for `keep.stage_end`."""
        trainer = self._trained[0]() if self._trained[0] is not None else None
        if self._moves is not None and trainer is not None:
            self._moves.end_stage(name, trainer.global_step)

    def _then_leave(self, original: Method) -> Method:
        def teardown(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                with metering():
                    if self._moves is not None:
                        self._moves.finish(self._patience_s)
                    elif self._nodes is not None:
                        self._nodes.finish(self._patience_s)
                self._leave()

        return teardown

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put everything back."""
        self._leave()

    def _leave(self) -> None:
        self._instances.put_back()
        private.restore_hooks(self)
        if self._moves is not None:
            self._moves.close()
            self._moves = None
        if self._nodes is not None:
            self._nodes.close()
            self._nodes = None

    # -- what Lightning does with checkpoints -----------------------------------------------------------------

    def _saving(self, original: Method, trainer: Trainer) -> Method:
        def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            begin = time.monotonic_ns()
            result = original(filepath, *args, **kwargs)
            blocked_ns = time.monotonic_ns() - begin
            metrics: dict[str, float | None] = {}
            with metering(), _charged(trainer, Activity.METERING):
                metrics = metrics_of(trainer)
            if self._moves is not None:
                with metering(), _charged(trainer, Activity.METERING):
                    self._saved(
                        trainer, self._moves, os.fspath(filepath), {"metrics": metrics, "blocked_ns": blocked_ns}
                    )
            elif self._nodes is not None:
                with metering(), _charged(trainer, Activity.METERING):
                    self._nodes.saved(os.path.abspath(os.fspath(filepath)), trainer.global_step)
            return result

        return save_checkpoint

    def _saved(self, trainer: Trainer, moves: Moves, path: str, measured: Mapping[str, Any]) -> None:
        """Take a checkpoint up once it is written, which for a background save is later."""
        if "://" in path:
            if not self._elsewhere:
                self._elsewhere = True
                warn(f"checkpoints: {scrub_url(path)} is not on this machine's disk; what is saved there stays as is.")
            return
        if os.path.basename(path).startswith("."):
            return  # what a tuner goes back to and deletes again
        written = private.when_saved(trainer) if private.saves_beside(trainer) else None
        path = os.path.abspath(path)
        leave_word(path, moves.room)
        facts = {**facts_of(trainer, self._stage), **measured}
        moves.take_up(path, facts, written, *([self._outlook.saved] if self._outlook is not None else []))

    def _removing(self, original: Method, trainer: Trainer) -> Method:
        def remove_checkpoint(path: Any, *args: Any, **kwargs: Any) -> Any:
            moves = self._moves
            if moves is None or "://" in os.fspath(path):
                return original(path, *args, **kwargs)
            # Where it cannot be told, by a full disk or a rule that fails, what rules may keep stays.
            stays = self._settings.retention.keep is not None
            with metering(), _charged(trainer, Activity.METERING):
                stays = moves.stays(os.path.abspath(os.fspath(path)))
            if stays:
                return None
            result = original(path, *args, **kwargs)
            with metering(), _charged(trainer, Activity.METERING):
                moves.forget()
            return result

        return remove_checkpoint

    def _loading(self, original: Method, trainer: Trainer) -> Method:
        def load_checkpoint(checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
            path = os.fspath(checkpoint_path)
            if "://" not in path:
                with _charged(trainer, Activity.RESTORE):
                    _on_first_rank(trainer, lambda: self._bring_back(trainer, os.path.abspath(path)), CheckpointError)
                    if self._nodes is not None:
                        self._nodes.bring_back(trainer, os.path.abspath(path))
            return original(checkpoint_path, *args, **kwargs)

        return load_checkpoint

    def _bring_back(self, trainer: Trainer, path: str) -> None:
        if self._moves is None:
            return
        fitting = trainer.state.fn == TrainerFn.FITTING and not os.path.basename(path).startswith(".")
        if fitting:
            check_resumable(self._moves.room.inventory.find(path))
        record = self._moves.bring_back(path, self._settings.finish_timeout)
        if record is not None and fitting:
            check_resumable(record)
            self._moves.resumed_from(record)
            self._trained = self._trained[0], record.run


def _on_first_rank(trainer: Trainer, work: Callable[[], None], kind: Callable[[str], Exception]) -> None:
    """Do something on one rank; what goes wrong there goes wrong on all, so that none waits for another."""
    problem: Exception | None = None
    if trainer.is_global_zero:
        try:
            work()
        except Exception as error:  # the other ranks wait for word
            problem = error
    failed = trainer.strategy.broadcast(str(problem) if problem else None)
    if problem is not None:
        raise problem
    if failed is not None:
        raise kind(failed)


@contextmanager
def _charged(trainer: Trainer, activity: Activity) -> Iterator[None]:
    """Charge a block to an activity, where there is a monitor in the Trainer; BudgetStopping may add one late."""
    monitor = next((c for c in callbacks_of(trainer) if isinstance(c, CostMonitor)), None)
    run = monitor.metered if monitor is not None else None
    with run.meter.span(activity) if run is not None else nullcontext():
        yield


def _last_paths(trainer: Trainer) -> list[str]:
    """What a restart goes on from: what `ckpt_path="last"` may choose, and what BudgetStopping has saved."""
    return [str(getattr(each, "last_model_path", "")) for each in callbacks_of(trainer)]
