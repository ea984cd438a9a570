"""The callback that meters a run: Lightning's hooks in, activities and counters out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as missing:
    raise ImportError(
        f"costguard.CostMonitor needs torch and lightning ({missing}); pip install 'lightning-costguard[lightning]', "
        "or use it where your training already runs. Reading reports needs neither."
    ) from missing

from costguard.errors import config_error, warn
from costguard.ledger.attempt import count
from costguard.ledger.devices import check_gpus
from costguard.ledger.live import Figures
from costguard.ledger.opening import check_run_id
from costguard.lightning import private
from costguard.lightning.batches import BatchCounter, CountTokens
from costguard.lightning.instances import Instances
from costguard.lightning.joining import make_run
from costguard.lightning.progress import ProgressFields
from costguard.lightning.rows import CostRows
from costguard.lightning.run import STATE_KEY, Run, RunConfig
from costguard.lightning.wrapping import wrap_checkpoints
from costguard.policies.gap import GAP_MODES, GapMode
from costguard.policies.rows import RowCadence
from costguard.prices import PriceBook
from costguard.records import Activity
from costguard.units import NS_PER_S, Money

_TRAIN = int(Activity.TRAIN)
_DATA_WAIT = int(Activity.DATA_WAIT)
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
        tags: Labels such as `{"project": "tiny-llm", "stage": "pretrain"}`, by which money is broken down.
        run_id: Name of the run; by default it is found out (see README, "One run over restarts").
        dir: Folder in which runs lie, by default the Trainer's `default_root_dir`; or an fsspec URL such as
            `s3://bucket/runs`, to which the journal is then copied about every minute.
        gap: Whether the time between two attempts is billed: `auto` (only if the machine provably stayed yours),
            `held` (always) or `released` (never).
        count_tokens: Your own function from a batch to its tokens, or to tokens and padding.
        peak_flops_per_s: Peak FLOP/s of one device for the dtype of your matrix products, to compute MFU against; on
            a CPU it is measured.
        log_every_s: Shortest time between two logger rows that take costs, seconds, at least 0.
        progress_bar: Whether spend and MFU are shown in the progress bar.

    Raises:
        ConfigError: If a value cannot be used.
    """

    def __init__(
        self,
        usd_per_gpu_hour: float | str | None = None,
        usd_per_hour: float | str | None = None,
        prices: PriceBook | None = None,
        gpus: int | None = None,
        planned_tokens: float | None = None,
        tags: dict[str, str] | None = None,
        run_id: str | None = None,
        dir: str | None = None,
        gap: GapMode = "auto",
        count_tokens: CountTokens | None = None,
        peak_flops_per_s: float | None = None,
        log_every_s: float = 1.0,
        progress_bar: bool = True,
    ) -> None:
        self._book = _book(usd_per_gpu_hour, usd_per_hour, prices)
        check_gpus("CostMonitor", gpus)
        _check_positive("planned_tokens", planned_tokens, "a count of tokens such as 20e9")
        _check_positive("peak_flops_per_s", peak_flops_per_s, "FLOP/s of one device such as 989.4e12")
        if not log_every_s >= 0:
            raise config_error(f"CostMonitor(log_every_s={log_every_s!r}): expected seconds of at least 0, such as 1.")
        if gap not in GAP_MODES:
            raise config_error(f"CostMonitor(gap={gap!r}): expected one of {', '.join(GAP_MODES)}.")
        if run_id is not None:
            check_run_id("CostMonitor", run_id)
        self._gpus = gpus
        self._planned_tokens = None if planned_tokens is None else round(planned_tokens)
        self._tags = {str(k): str(v) for k, v in (tags or {}).items()}
        self._run_id = run_id
        self._dir = dir
        self._gap = gap
        self._peak = peak_flops_per_s
        self._progress_bar = progress_bar
        self._cadence = RowCadence(every_ns=round(log_every_s * NS_PER_S))
        self._counter = BatchCounter(count_tokens)
        self._instances = Instances()
        self._run: Run | None = None
        self._rows: CostRows | None = None
        self._bar = ProgressFields(self._book.currency)
        self._next_tick_ns = 0
        self._last_work_ns = 0
        self._came_from: int = int(Activity.IDLE)
        self._loaded: Mapping[str, Any] | None = None

    @property
    def state_key(self) -> str:
        """Fixed, so that a checkpoint's word is found again whatever the arguments are."""
        return STATE_KEY

    @property
    def run_dir(self) -> str | None:
        """Folder of the run's journal, once it is known which run this is."""
        return self._run.writer.folder if self._run is not None and self._run.is_open else None

    # -- set up and tear down ---------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to meter, decide which run this is as far as possible, and wrap what has no hook."""
        if self._run is None or self._run.ended:
            # Another run has had this process since: this is the same run's next attempt.
            self._run_id = self._run.run_id if self._run is not None and self._run.is_open else self._run_id
            self._run = make_run(trainer, self._config(trainer))
        run = self._run
        run.meter.enter(Activity.METERING)
        run.failed(None)
        if not run.is_open:
            run.identify(trainer.strategy.broadcast)
        self._rows = CostRows(run.meter, self._costs, self._cadence, inject=trainer.is_global_zero)
        for logger in trainer.loggers:
            self._rows.wrap(self._instances, logger)
        wrap_checkpoints(self._instances, trainer, run, self._on_loaded)
        if self._progress_bar and trainer.progress_bar_callback is not None:
            self._bar.wrap(self._instances, trainer.progress_bar_callback)
        private.skip_unused_hooks(self)
        run.count_parameters(pl_module)
        run.meter.enter(Activity.STARTUP)

    def _config(self, trainer: Trainer) -> RunConfig:
        remote = self._dir is not None and "://" in self._dir
        return RunConfig(
            book=self._book,
            gpus=self._gpus,
            planned_tokens=self._planned_tokens,
            tags=self._tags,
            run_id=self._run_id,
            root=os.path.abspath(self._dir if self._dir and not remote else trainer.default_root_dir),
            mirror=self._dir.rstrip("/") if self._dir and remote else None,
            gap=self._gap,
        )

    def _on_loaded(self, word: Mapping[str, Any]) -> None:
        self._loaded = word

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put everything back and write where things stand; the process may go on with other work."""
        self._leave(Activity.IDLE)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Note the reason, save the account, put everything back."""
        if self._run is None:
            return
        self._run.meter.enter(Activity.TEARDOWN)
        self._run.failed(exception)
        self._run.open_new()
        self._closing_row(trainer)
        self._leave(Activity.TEARDOWN)

    def _leave(self, activity: Activity) -> None:
        self._instances.put_back()
        private.restore_hooks(self)
        if self._run is not None:
            self._run.meter.enter(activity)
            if self._run.is_open:
                self._run.writer.settle()

    # -- from here on the run is known ------------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The model stands; unless the strategy reads checkpoints later, it is now known which run this is."""
        run = self._metering()
        run.count_parameters(pl_module)
        if not private.is_restored_after_setup(trainer):
            run.open_new()
        run.measure_peak(trainer, self._peak)
        run.meter.enter(Activity.STARTUP)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last chance before the first batch."""
        self._open()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training begins: say what it goes on from, record the model's size, and wait for data."""
        run = self._open()
        run.meter.enter(Activity.METERING)
        run.at_step(trainer.global_step)
        if self._loaded is not None:
            run.resumed(self._loaded)
            self._loaded = None
        run.begin_training(trainer)
        run.meter.enter(Activity.DATA_WAIT)

    def _open(self) -> Run:
        assert self._run is not None
        self._run.open_new()
        return self._run

    def _metering(self) -> Run:
        assert self._run is not None
        self._run.meter.enter(Activity.METERING)
        return self._run

    # -- each batch -------------------------------------------------------------------------------------------

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Waiting for data is over."""
        self._run.meter.enter(_TRAIN)  # type: ignore[union-attr]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A micro-batch is done: count it."""
        meter = self._run.meter  # type: ignore[union-attr]
        now = meter.now_ns()
        counted = self._counter.count(batch)
        counters = count(meter.state.counters, trainer.global_step, *counted)
        self._last_work_ns = now
        if now >= self._next_tick_ns:
            self._next_tick_ns = now + NS_PER_S
            counters = counters.moved_to_padding(self._counter.late())
            self._tick(trainer)
        meter.settle(now, _DATA_WAIT, counters)

    def _tick(self, trainer: Trainer) -> None:
        assert self._rows is not None
        self._costs()
        # A user who logs nothing at all gets rows of costs; one who may still log in validation is waited for.
        if self._rows.users_rows == 0 and trainer.loggers and not private.logs_in_training(trainer):
            if trainer.is_global_zero and self._validated(trainer):
                self._rows.own_row(trainer.loggers, private.logging_step(trainer))

    @staticmethod
    def _validated(trainer: Trainer) -> bool:
        loop = trainer.fit_loop.epoch_loop
        return not trainer.enable_validation or loop.val_loop.batch_progress.total.completed > 0

    def _costs(self) -> Mapping[str, float]:
        figures = self._figures()
        if figures is None:
            return {}
        self._bar.show(figures)
        return figures.metrics(self._book.currency)

    def _figures(self) -> Figures | None:
        run = self._run
        return run.figures() if run is not None and run.live is not None else None

    # -- what is not training ---------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation begins, inside of training or alone."""
        self._came_from = self._open().meter.enter(Activity.VALIDATION)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to what was before."""
        self._open().meter.enter(self._came_from)

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

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training is over: the last figures go where no row has had them."""
        run = self._metering()
        state = run.meter.state
        run.meter.settle(
            state.since_ns, int(Activity.METERING), state.counters.moved_to_padding(self._counter.late(wait=True))
        )
        self._closing_row(trainer)
        run.meter.enter(Activity.TEARDOWN)

    def _closing_row(self, trainer: Trainer) -> None:
        if self._rows is None or not self._last_work_ns:
            return
        try:
            self._rows.closing_row(trainer.loggers, private.logging_step(trainer), self._last_work_ns)
        except Exception as error:  # a logger may raise anything, and this may be an exception's path already
            warn(f"the last costs could not be logged ({type(error).__name__}: {error}); the receipt has them.")

    # -- checkpoints ------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of the account: only where in the journal it stands."""
        run = self._run
        if run is None or not run.is_open:
            return {}
        return {
            "v": _STATE_VERSION,
            "run": run.run_id,
            "attempt": run.writer.seat.attempt,
            "save": run.writer.mark(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember where the checkpoint stands; it counts when training goes on from it."""
        self._loaded = dict(state_dict)


def _book(usd_per_gpu_hour: Money | None, usd_per_hour: Money | None, prices: PriceBook | None) -> PriceBook:
    short = PriceBook.for_run("CostMonitor", usd_per_gpu_hour, usd_per_hour)
    if prices is not None and short.prices:
        raise config_error(
            "CostMonitor(prices=..., usd_per_...=...): two sources of one price; give the price book or the short form."
        )
    return prices or short


def _check_positive(option: str, value: float | None, expected: str) -> None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf")
    ):
        raise config_error(f"CostMonitor({option}={value!r}): expected {expected}.")
