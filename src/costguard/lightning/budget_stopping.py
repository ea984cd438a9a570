"""The callback that keeps a budget: it stops a run before the limit, in order, and keeps it stopped."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from costguard.errors import STOPPED_CODE, StartRefused, StoppedForGood, config_error, warn
from costguard.lightning import clean_stop, private
from costguard.lightning.agreement import Agreement, Alone, Together
from costguard.lightning.budget_watch import BudgetWatch
from costguard.lightning.cost_monitor import CostMonitor
from costguard.lightning.instances import Instances
from costguard.lightning.joining import callbacks_of
from costguard.lightning.releasing import OnStop
from costguard.lightning.run import Run
from costguard.lightning.shield import shielded
from costguard.lightning.telling import OnAlert, Teller
from costguard.policies.alerts import AlertState
from costguard.policies.budget import DEFAULT_THRESHOLDS, Budget, Threshold, check_distinct
from costguard.policies.reserve import StopPriors
from costguard.prices import PriceBook
from costguard.records import Action, Activity, Verdict

OnBreach = Literal["auto", "return", "exit"]
OnStoreDown = Literal["stop_at_credit", "continue"]
_BY_SIGNAL, _BY_BUDGET = 1, 2
_TERMINATED_CODE = 128 + signal.SIGTERM
_FLAG_FILE = "FAULT_TOL_FINISHED_FLAG_FILE"
"""Where NVIDIA's resiliency launcher looks whether a run must not be started again."""


class BudgetStopping(Callback):
    """Stops a run in order before its limit is reached, and refuses to start it again until the limit is raised.

    Alone it meters by a `CostMonitor` of its own; beside one it shares that one's run. What stopping itself costs (the
    step in flight, a last checkpoint, the end of the process) is set aside beforehand.

    Args:
        limit_usd: US dollars that the run may cost, over all its attempts and paid devices.
        limit_gpu_hours: GPU-hours instead; works without a price.
        budgets: Further budgets, such as for a day, a project or a tag.
        warn_at: Shares of the limit at which an alert is sent, instead of the usual ones.
        usd_per_gpu_hour: Price of each GPU that is paid for, US dollars per hour, if no CostMonitor states it.
        usd_per_hour: Price of the whole allocation instead.
        on_breach: What comes after the stop: `return` from `fit` as after `EarlyStopping`; `exit` with code 93, so
            that nobody takes an unfinished model for a success; `auto` exits under a scheduler or launcher.
        webhook: URL to which alerts are posted as JSON.
        on_alert: Your own function of each alert (a `costguard.records.Verdict`), called on a thread beside.
        priors: What is assumed of stopping until it is measured.
        pot: A pot that many runs share, as `costguard pot create` has made it: a folder or a URL.
        on_store_down: What to do when the pot's store is away and the credit in hand is spent: `stop_at_credit` or
            `continue`.
        on_stop: Shell command that gives the machine back, such as `sudo poweroff`; a small process beside the
            training runs it when the training has ended (see docs/stopping.md).
        on_stop_when: Endings after which it is run, some of `breach`, `crash`, `end` and `stall`; `breach` by default.
        disk_survives: Your word that this machine's disk outlives it; without it on_stop is refused while the newest
            checkpoint lies only there.

    Raises:
        ConfigError: If a value cannot be used.
    """

    state_key = "BudgetStopping"

    def __init__(
        self,
        limit_usd: float | str | None = None,
        limit_gpu_hours: float | str | None = None,
        budgets: list[Budget] | None = None,
        warn_at: list[float] | None = None,
        usd_per_gpu_hour: float | str | None = None,
        usd_per_hour: float | str | None = None,
        on_breach: OnBreach = "auto",
        webhook: str | None = None,
        on_alert: OnAlert | None = None,
        priors: StopPriors | None = None,
        pot: str | None = None,
        on_store_down: OnStoreDown = "stop_at_credit",
        on_stop: str | None = None,
        on_stop_when: list[Literal["breach", "crash", "end", "stall"]] | None = None,
        disk_survives: bool = False,
    ) -> None:
        self._budgets = _all_budgets(limit_usd, limit_gpu_hours, budgets, warn_at, needed=pot is None)
        if on_store_down not in get_args(OnStoreDown):
            raise config_error(f"BudgetStopping(on_store_down={on_store_down!r}): expected stop_at_credit or continue.")
        self._pot = pot
        self._on_store_down = on_store_down
        self.stated_prices: PriceBook = PriceBook.for_run("BudgetStopping", usd_per_gpu_hour, usd_per_hour)
        if on_breach not in get_args(OnBreach):
            raise config_error(f"BudgetStopping(on_breach={on_breach!r}): expected auto, return or exit.")
        if webhook is not None and not webhook.startswith(("https://", "http://")):
            raise config_error(f"BudgetStopping(webhook={webhook!r}): expected a URL such as https://hooks.example/x.")
        self._on_breach = on_breach
        self._webhook = webhook
        self._on_alert = on_alert
        self._on_stop = OnStop("BudgetStopping", on_stop, on_stop_when, disk_survives=disk_survives)
        self._priors = priors or StopPriors()
        self._begin()

    def _begin(self) -> None:
        self._monitor: CostMonitor | None = None
        self._added: CostMonitor | None = None
        self._run: Run | None = None
        self._watch: BudgetWatch | None = None
        self._teller: Teller | None = None
        self._agreement: Agreement | None = None
        self._together: Together | None = None
        self._instances = Instances()
        self._admitted = False
        self._step = 0
        self._step_began_ns = 0
        self._stop: Verdict | None = None
        self._put_back: Callable[[], None] = _nothing
        self._restore_signal: Callable[[], None] = _nothing
        self.stopped_by: Verdict | None = None
        self.last_model_path = ""  # as ModelCheckpoint has it: what a restart goes on from

    # -- before the start -------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Join the run, and refuse to start one that must not, before loaders, the model's transfer and restore."""
        if stage != "fit":
            return
        self._leave()
        self._begin()
        self._monitor = self._find_monitor(trainer)
        self._run = self._monitor.join(trainer)
        private.skip_unused_hooks(self)
        self._admit(trainer)

    def _find_monitor(self, trainer: Trainer) -> CostMonitor:
        callbacks = callbacks_of(trainer)
        found = next((each for each in callbacks if isinstance(each, CostMonitor)), None)
        if found is None:
            # Lightning goes through this very list, so that it is set up after this.
            self._added = found = CostMonitor()
            callbacks.append(found)
        others = [each for each in callbacks if isinstance(each, BudgetStopping) and each is not self]
        if others:
            raise config_error(
                "BudgetStopping: two in one Trainer; put all budgets into one, BudgetStopping(budgets=[...])."
            )
        return found

    def _admit(self, trainer: Trainer) -> None:
        """Once it is known which run this is: may it start? All ranks are told the same."""
        run = self._run
        if run is None or self._admitted or not run.is_open:
            return
        self._admitted = True
        refusal: Verdict | None = None
        problem: BaseException | None = None
        if trainer.is_global_zero:
            try:
                self._watch = BudgetWatch(run, self._budgets, self._priors, self._pot, self._on_store_down)
                refusal = self._watch.refusal()
            except BaseException as error:  # the other ranks wait for word
                problem = error
        message, failed = trainer.strategy.broadcast(
            (refusal.message if refusal else None, str(problem) if problem else None)
        )
        if problem is not None:
            raise problem
        if failed is not None:
            raise config_error(failed)
        if message is not None:
            if refusal is not None:
                run.writer.verdict(refusal)
                self._on_stop.refused(run, self._webhook)
                print(f"costguard: {message}", flush=True)
            raise StartRefused(message)
        if self._watch is not None:
            self._watch.lift()
            state = run.account().fact("budget") or {}
            alerts = AlertState.from_json(state["alerts"]).next_attempt() if state.get("alerts") else None
            self._teller = Teller(trainer.loggers, self._webhook, self._on_alert, alerts)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """If only the checkpoint could say which run this is, it is known now."""
        self._admit(trainer)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Or now."""
        self._admit(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last chance to refuse; from here on ranks agree."""
        run = self._run
        if run is None:
            return
        run.open_new()
        self._admit(trainer)
        self._agreement = self._agree_with(trainer)
        if self._watch is not None:
            monitor = self._monitor
            self._watch.foreseen = lambda: monitor.forecast if monitor is not None else None
            self._watch.planned_steps = trainer.max_steps if trainer.max_steps > 0 else None
        self._on_stop.begin(run, clean_stop.checkpoint_folder(trainer), self._webhook)
        self._step, self._step_began_ns = trainer.global_step, run.meter.now_ns()

    def _agree_with(self, trainer: Trainer) -> Agreement:
        if trainer.world_size == 1:
            return Alone()
        # On the host and of its own: nothing of it is queued between the training's collectives.
        group = torch.distributed.new_group(backend="gloo")
        self._together = Together(trainer.global_rank, group)
        if threading.current_thread() is threading.main_thread():
            # Lightning's handler waits for all ranks from within the signal, and hangs if only one gets it.
            before = signal.signal(signal.SIGTERM, self._on_signal)
            self._restore_signal = lambda: _restore(before)
        return self._together

    def _on_signal(self, number: int, frame: Any) -> None:
        if self._agreement is not None:
            self._agreement.vote(_BY_SIGNAL)

    # -- each step --------------------------------------------------------------------------------------------

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After an optimizer step: look at the budgets when it is time, and act on what all ranks have agreed."""
        step, run = trainer.global_step, self._run
        if run is None or step == self._step or self._stop is not None:
            return
        self._step = step
        with run.meter.span(Activity.METERING):
            self._after_step(trainer, pl_module, run)

    def _after_step(self, trainer: Trainer, pl_module: LightningModule, run: Run) -> None:
        watch, agreement, now = self._watch, self._agreement, run.meter.now_ns()
        assert agreement is not None
        if watch is not None:
            watch.step_took(now - self._step_began_ns)
            if now >= watch.next_look_ns:
                self._look(watch, agreement)
        self._step_began_ns = now
        agreed = agreement.at_step(watch.step_s if watch is not None else None)
        if watch is not None:
            watch.delay_steps = agreement.delay_steps
        if agreed:
            self._end(trainer, pl_module, run, agreed)

    @shielded
    def _look(self, watch: BudgetWatch, agreement: Agreement) -> None:
        verdicts = watch.judge(self._step)
        stop = next((v for v in verdicts if v.action is Action.STOP), None)
        if stop is not None:
            self.stopped_by = stop
            agreement.vote(_BY_BUDGET)
        self._tell(watch, [v for v in verdicts if v.action is not Action.STOP])

    def _tell(self, watch: BudgetWatch, verdicts: Sequence[Verdict], *, closing: bool = False) -> None:
        run, teller = self._run, self._teller
        if run is None or teller is None:
            return
        for verdict in verdicts:
            if verdict.action is not Action.STOP:
                run.writer.verdict(verdict)
        if teller.tell(verdicts, run.wall_ns(), closing=closing):
            watch.write(alerts=teller.state.to_json())

    # -- the stop ---------------------------------------------------------------------------------------------

    def _end(self, trainer: Trainer, pl_module: LightningModule, run: Run, agreed: int) -> None:
        """All ranks are here at the same step."""
        signalled = agreed == _BY_SIGNAL
        stop = _stopped(agreed, self._step) if signalled or self.stopped_by is None else self.stopped_by
        self._stop = stop
        if self._watch is not None and not signalled:
            # First of all, so that it stays stopped whatever happens from here on.
            self._stop = self.stopped_by = stop = self._watch.stop(stop)
            self._tell(self._watch, [stop])
        self._put_back = clean_stop.end_here(trainer)
        finite = clean_stop.weights_are_finite(pl_module)
        if self._together is not None:
            finite = self._together.agree(int(not finite)) == 0
        if finite:
            with run.meter.span(Activity.CHECKPOINT):
                self.last_model_path = path = clean_stop.save_last(trainer, f"stopped-step={self._step}.ckpt")
            if trainer.is_global_zero:
                print(f"costguard: {stop.message} Stopped at step {self._step}; saved {path}.", flush=True)
        else:
            warn(f"stopped at step {self._step} without a checkpoint: weights are not finite; the last one stays.")
        if not signalled:
            private.never_requeue(trainer)
            _touch(os.environ.get(_FLAG_FILE))
        code = _TERMINATED_CODE if signalled else STOPPED_CODE
        if signalled or self._on_breach == "exit" or (self._on_breach == "auto" and run.supervised):
            self._exit_after_fit(trainer, StoppedForGood(stop.message, code))

    def _exit_after_fit(self, trainer: Trainer, end: StoppedForGood) -> None:
        def then_exit(original: Callable[..., Any]) -> Callable[..., Any]:
            def last(*args: Any, **kwargs: Any) -> Any:
                self._instances.put_back()
                original(*args, **kwargs)
                raise end

            return last

        self._instances.wrap(*private.last_of_fit(trainer), then_exit)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training is over: what waits is told, loggers are flushed."""
        if self._stop is not None:
            self._say_in_loggers(trainer, self._stop)
            late = clean_stop.flush_loggers(trainer.loggers)
            if late:
                warn(f"{', '.join(late)} did not flush in {clean_stop.FLUSH_CAP_S:.0f} s; the stop goes on without.")
        if self._together is not None:
            self._together.finish()
        if self._watch is not None:
            self._tell(self._watch, [], closing=True)
        if self._teller is not None:
            self._teller.wait()

    @shielded
    def _close_pot(self) -> None:
        if self._watch is not None and self._watch.pot is not None:
            pot, self._watch.pot = self._watch.pot, None
            pot.close()

    @shielded
    def _say_in_loggers(self, trainer: Trainer, stop: Verdict) -> None:
        for logger in trainer.loggers:
            summary = getattr(getattr(logger, "experiment", None), "summary", None)
            if summary is not None and trainer.is_global_zero:
                summary["costguard/stopped_by"] = f"{stop.kind}/{stop.reason}"
                summary["costguard/stopped_because"] = stop.message

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put everything back."""
        if stage == "fit":
            self._leave()
            if self._added is not None and self._added in callbacks_of(trainer):
                callbacks_of(trainer).remove(self._added)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put back what must not stay."""
        self._leave()
        self._instances.put_back()

    def _leave(self) -> None:
        self._put_back()
        self._restore_signal()
        self._close_pot()
        self._put_back = self._restore_signal = _nothing
        private.restore_hooks(self)


def _all_budgets(
    limit_usd: float | str | None,
    limit_gpu_hours: float | str | None,
    budgets: Sequence[Budget] | None,
    warn_at: Sequence[float] | None,
    *,
    needed: bool,
) -> list[Budget]:
    thresholds: Sequence[Threshold] = DEFAULT_THRESHOLDS
    if warn_at is not None:
        kept = [t for t in DEFAULT_THRESHOLDS if t.on != "spent"]
        thresholds = (*(Threshold(at=at) for at in warn_at), *kept)
    found = list(budgets or ())
    if any(not isinstance(each, Budget) for each in found):
        raise config_error(
            f"BudgetStopping(budgets={budgets!r}): expected Budget objects, such as [Budget(limit_usd=250)]."
        )
    if limit_usd is not None or limit_gpu_hours is not None or (needed and not found):
        found.insert(0, Budget(limit_usd=limit_usd, limit_gpu_hours=limit_gpu_hours, thresholds=thresholds))
    check_distinct(found)
    return found


def _stopped(agreed: int, step: int) -> Verdict:
    """What ranks know that did not decide."""
    if agreed == _BY_SIGNAL:
        return Verdict(kind="signal", action=Action.STOP, reason="sigterm", message="A rank got SIGTERM.", step=step)
    return Verdict(kind="budget", action=Action.STOP, reason="limit", message="The budget is spent.", step=step)


def _restore(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _touch(path: str | None) -> None:
    if path:
        try:
            with open(path, "a", encoding="utf-8"):
                pass
        except OSError as error:
            warn(f"cannot touch {path} ({error.strerror}): a launcher that looks there may start this run again.")


def _nothing() -> None:
    """Nothing to put back."""
