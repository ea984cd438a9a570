"""The callback that meters a run: Lightning's hooks in, activities and counters out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as missing:
    raise ImportError(
        f"costguard.CostMonitor needs torch and lightning ({missing}); pip install 'lightning-costguard[lightning]', "
        "or use it where your training already runs. Reading reports needs neither."
    ) from missing

from costguard.lightning import private
from costguard.lightning.batches import BatchCounter, CountTokens
from costguard.lightning.instances import Instances
from costguard.lightning.joining import agreed_book, callbacks_of, make_run
from costguard.lightning.progress import ProgressFields
from costguard.lightning.rows import CostRows
from costguard.lightning.run import STATE_KEY, Run
from costguard.lightning.settings import Settings
from costguard.lightning.shield import shielded, tell
from costguard.lightning.training import Training
from costguard.lightning.wrapping import wrap_checkpoints
from costguard.plan.forecast import Forecast
from costguard.policies.gap import GapMode
from costguard.prices import PriceBook
from costguard.records import Activity

_TRAIN = int(Activity.TRAIN)
_COMPILE = int(Activity.COMPILE)
_DATA_WAIT = int(Activity.DATA_WAIT)
_METERING = int(Activity.METERING)
_STATE_VERSION = 1


class CostMonitor(Callback):
    """Meters what a run costs, second by second, and keeps the account over restarts.

    Args:
        usd_per_gpu_hour: Price of each GPU that is paid for, US dollars per hour, at least 0. A CPU rank counts as
            one device.
        usd_per_hour: Price of the whole allocation instead, US dollars per hour.
        prices: A price book instead, for prices that change, other currencies or several modes.
        gpus: GPUs that are paid for over all nodes, also those left unused. By default the scheduler's allocation,
            else the visible GPUs, never less than the ranks.
        planned_tokens: Tokens of the whole plan, for the forecast; by default `max_steps` is the plan.
        planned_usd: What the whole plan is to cost, US dollars; with `planned_hours` or a price it is told when the run
            is behind its plan and over its cost.
        planned_hours: How long the whole plan is to take, hours.
        tags: Labels such as `{"project": "tiny-llm", "stage": "pretrain"}`, by which money is broken down.
        run_id: Name of the run; by default it is found out (see README, "One run over restarts").
        dir: Folder in which runs lie, by default the Trainer's `default_root_dir`; or an fsspec URL such as
            `s3://bucket/runs`, to which the journal is then copied about every minute.
        gap: Whether the time between two attempts is billed: `auto` (only if the machine provably stayed yours),
            `held` (always) or `released` (never).
        count_tokens: Your own function from a batch to its tokens, or to tokens and padding.
        peak_flops_per_s: Peak FLOP/s of one device for the dtype of your matrix products, to compute MFU against; by
            default from the table of NVIDIA cards, on a CPU measured.
        log_every_s: Shortest time between two logger rows that take costs, seconds, at least 0.
        progress_bar: Whether spend and MFU are shown in the progress bar.
        report_html: File to which the page is written when the account ends with the process; the receipt is printed
            too, however training ended.

    Raises:
        ConfigError: If a value cannot be used.
    """

    # Fixed, so that a checkpoint's word is found again whatever the arguments are; plain, since Lightning reads it at
    # each hook.
    state_key = STATE_KEY

    def __init__(
        self,
        usd_per_gpu_hour: float | str | None = None,
        usd_per_hour: float | str | None = None,
        prices: PriceBook | None = None,
        gpus: int | None = None,
        planned_tokens: float | None = None,
        planned_usd: float | str | None = None,
        planned_hours: float | None = None,
        tags: dict[str, str] | None = None,
        run_id: str | None = None,
        dir: str | None = None,
        gap: GapMode = "auto",
        count_tokens: CountTokens | None = None,
        peak_flops_per_s: float | None = None,
        log_every_s: float = 1.0,
        progress_bar: bool = True,
        report_html: str | None = None,
    ) -> None:
        self._said = Settings.checked(
            usd_per_gpu_hour=usd_per_gpu_hour,
            usd_per_hour=usd_per_hour,
            prices=prices,
            gpus=gpus,
            planned_tokens=planned_tokens,
            planned_usd=planned_usd,
            planned_hours=planned_hours,
            tags=tags,
            run_id=run_id,
            dir=dir,
            gap=gap,
            count_tokens=count_tokens,
            peak_flops_per_s=peak_flops_per_s,
            log_every_s=log_every_s,
            progress_bar=progress_bar,
            report_html=report_html,
        )
        self._begin()

    def _begin(self) -> None:
        """What belongs to one process, and is made anew in a copy or a forked one."""
        self._counter = BatchCounter(self._said.count_tokens)
        self._instances = Instances()
        self._currency = self._said.book.currency
        self._bar = ProgressFields()
        self._trainer: Trainer | None = None
        self._run: Run | None = None
        self._rows: CostRows | None = None
        self._saves_are_done: Callable[[], None] = _nothing
        self._came_from = int(Activity.IDLE)
        self._loaded: Mapping[str, Any] | None = None
        self._training: Training | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Only what the user said goes along into a copy or to another process."""
        return {"_said": self._said}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy meters for itself."""
        self._said = state["_said"]
        self._begin()

    @property
    def run_dir(self) -> str | None:
        """Folder of the run's journal, once it is known which run this is."""
        return self._run.writer.folder if self._run is not None and self._run.is_open else None

    # -- set up and tear down ---------------------------------------------------------------------------------

    @shielded
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to meter, decide which run this is as far as possible, and wrap what has no hook."""
        run = self.join(trainer)
        run.meter.enter(Activity.METERING)
        run.failed(None)
        self._trainer = trainer
        if self._rows is None:
            self._rows = CostRows(run.meter, self._costs, self._said.cadence, inject=trainer.is_global_zero)
        for logger in trainer.loggers:
            self._rows.wrap(self._instances, logger)
        self._saves_are_done = wrap_checkpoints(self._instances, trainer, run, self._on_loaded)
        if self._said.progress_bar and trainer.progress_bar_callback is not None:
            self._bar.wrap(self._instances, trainer.progress_bar_callback)
        private.skip_unused_hooks(self)
        run.count_parameters(pl_module)
        run.meter.enter(Activity.STARTUP)

    @property
    def stated_prices(self) -> PriceBook:
        """The prices that were said here, empty if none were."""
        return self._said.book

    @property
    def forecast(self) -> Forecast | None:
        """How the run is expected to end, `None` until that can be said, or on another rank than the first."""
        return self._training.forecast if self._training is not None else None

    @property
    def metered(self) -> Run | None:
        """The run that is metered, once it is set up."""
        return self._run

    def join(self, trainer: Trainer) -> Run:
        """The run that this process is metered for, known as far as it can be without a checkpoint.

        For the other callbacks of costguard, which may be set up before this one; to be called on all ranks.
        """
        run = self._run_of(trainer)
        if not run.is_open and not run.asked:
            run.identify(trainer.strategy.broadcast)
        return run

    def _run_of(self, trainer: Trainer) -> Run:
        if self._run is not None and self._run.pid != os.getpid():
            self._begin()  # a forked rank is a process of its own
        before = self._run
        if before is None or before.ended:
            config = replace(self._said.config(trainer), book=agreed_book(callbacks_of(trainer)))
            self._currency = config.book.currency
            if before is not None and before.is_open:
                # Another run has had this process since: this is the same run's next attempt.
                config = replace(config, run_id=before.run_id)
            self._run = make_run(trainer, config)
        assert self._run is not None
        return self._run

    def _on_loaded(self, word: Mapping[str, Any]) -> None:
        self._loaded = word

    @shielded
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put everything back and write where things stand; the process may go on with other work."""
        self._leave()

    @shielded
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Note the reason and save the account; everything is put back once the strategy has been torn down.

        Until then checkpoints that are written because of the exception are still metered.
        """
        run = self._run
        if run is None:
            return
        # First of all: whatever happens from here on, the end of this is seen.
        self._instances.wrap(*private.last_after_an_exception(trainer), self._then_leave)
        run.meter.enter(Activity.TEARDOWN)
        run.failed(exception)
        run.open_new()
        if self._training is not None:
            self._training.tell_flops()
        self._closing_row(trainer)
        if run.is_open:
            run.writer.settle()

    def _then_leave(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def teardown(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                self._leave()

        return teardown

    @shielded
    def _leave(self) -> None:
        self._instances.put_back()
        private.restore_hooks(self)
        if self._rows is not None:
            self._rows.on = False  # where somebody has wrapped on our wraps, these stay, and are silent
        if self._training is not None:
            self._training.leave()
        self._rows = self._trainer = self._training = None
        if self._run is not None:
            self._run.meter.enter(_METERING)
            if self._run.is_open:
                self._saves_are_done()
                self._run.writer.rest()
            meter = self._run.meter
            meter.settle(meter.now_ns(), int(Activity.IDLE), meter.state.counters)

    # -- from here on the run is known ------------------------------------------------------------------------

    @shielded
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The model stands; unless the strategy reads checkpoints later, it is now known which run this is."""
        run = self._metering()
        run.count_parameters(pl_module)
        if not private.is_restored_after_setup(trainer):
            run.open_new()
        run.find_peak(trainer, self._said.peak_flops_per_s)
        run.meter.enter(Activity.STARTUP)

    @shielded
    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last chance before the first batch."""
        self._open()

    @shielded
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training begins: say what it goes on from, record the model's size, and wait for data."""
        run = self._open()
        run.meter.enter(Activity.METERING)
        loaded, self._loaded = self._loaded, None
        run.begin_training(trainer, loaded)
        self._training = Training(trainer, pl_module, run, self._counter, self._said)
        # A hook of the strategy's in place of one of ours, which would cost each batch several microseconds.
        self._instances.wrap(trainer.strategy, "on_train_batch_start", self._training.begin_batch, direct=True)
        run.meter.enter(Activity.DATA_WAIT)

    def _open(self) -> Run:
        assert self._run is not None, "setup has not run"
        self._run.open_new()
        return self._run

    def _metering(self) -> Run:
        assert self._run is not None, "setup has not run"
        self._run.meter.enter(Activity.METERING)
        return self._run

    # -- each batch -------------------------------------------------------------------------------------------

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A micro-batch is done: count it."""
        training, run = self._training, self._run
        if training is None or run is None:
            return
        now = run.meter.now_ns()
        try:
            if training.end_batch(batch, now):
                with run.meter.span(_METERING):
                    self._tick(trainer, training)
        except Exception as error:  # as `shielded` does, without its cost at each batch
            tell("on_train_batch_end", error)
        # Others of costguard act here; a hook of their own would cost each batch several microseconds.
        for act in run.after_batch:
            act(training.steps.step())

    def _tick(self, trainer: Trainer, training: Training) -> None:
        figures = training.tick()
        if figures is None:
            return
        self._bar.show(figures, self._currency)
        # Who has gone through a whole epoch without a row logs nothing at all, and gets rows of costs.
        rows = self._rows
        if rows is not None and rows.users_rows == 0 and trainer.current_epoch > 0 and trainer.loggers:
            rows.own_row(trainer.loggers, private.logging_step(trainer))

    def _costs(self) -> Mapping[str, float]:
        figures = self._run.figures() if self._run is not None else None
        if figures is None:
            return {}
        self._bar.show(figures, self._currency)
        more = self._training.metrics() if self._training is not None else {}
        return {**figures.metrics(self._currency), **more}

    # -- what is not training ---------------------------------------------------------------------------------

    @shielded
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation begins, inside of training or alone."""
        self._came_from = self._open().meter.enter(Activity.VALIDATION)

    @shielded
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to what was before."""
        self._open().meter.enter(self._came_from)
        if self._training is not None and self._training.outlook is not None:
            self._training.outlook.validations += 1

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Testing is charged as validation."""
        self.on_validation_start(trainer, pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to what was before."""
        self.on_validation_end(trainer, pl_module)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prediction is charged as validation."""
        self.on_validation_start(trainer, pl_module)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to what was before."""
        self.on_validation_end(trainer, pl_module)

    @shielded
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training is over: the last figures go where no row has had them."""
        run = self._metering()
        if self._training is not None:
            self._training.finish()
        self._closing_row(trainer)
        run.meter.enter(Activity.TEARDOWN)

    def _closing_row(self, trainer: Trainer) -> None:
        training = self._training
        if self._rows is not None and training is not None and training.last_work_ns:
            self._rows.closing_row(trainer.loggers, private.logging_step(trainer), training.last_work_ns)

    # -- checkpoints ------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of the account: only where in the journal it stands."""
        return self._word() or {}

    @shielded
    def _word(self) -> dict[str, Any] | None:
        run = self._run
        if run is None or not run.is_open:
            return None
        if self._training is not None and self._trainer is not None:
            # A callback before us may save after a batch whose end we have not seen.
            self._training.steps.end_early(self._trainer.global_step)
        seat = run.writer.seat
        return {"v": _STATE_VERSION, "run": run.run_id, "attempt": seat.attempt, "save": run.writer.mark()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to do: what the checkpoint says was read when it was loaded, for all ranks alike."""


def _nothing() -> None:
    """No save has been wrapped yet."""
