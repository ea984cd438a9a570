"""The callback that keeps a budget: it stops a run before the limit, in order, and keeps it stopped."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from costguard.errors import StartRefused, config_error
from costguard.ledger.allocation import restarts_left
from costguard.lightning import clean_stop, private
from costguard.lightning.agreement import Agreement, Alone, Together
from costguard.lightning.budget_arguments import OnBreach, OnStoreDown, all_budgets, check_choices, check_kinds
from costguard.lightning.budget_steps import BY_SIGNAL, BudgetSteps
from costguard.lightning.budget_watch import BudgetWatch
from costguard.lightning.cost_monitor import CostMonitor
from costguard.lightning.joining import callbacks_of
from costguard.lightning.orderly_stop import OrderlyStop
from costguard.lightning.own_monitor import OwnMonitor
from costguard.lightning.releasing import OnStop
from costguard.lightning.run import Run
from costguard.lightning.shield import metering, shielded
from costguard.lightning.telling import OnAlert, Teller
from costguard.policies.alerts import AlertState
from costguard.policies.budget import Budget
from costguard.policies.reserve import StopPriors
from costguard.prices import PriceBook
from costguard.records import Verdict
from costguard.units import NS_PER_S, parse_money
from costguard.webhook import TIMEOUT_S

LEAST_PATIENCE_S = 0.5
"""Shortest time that loggers and webhooks get at a stop."""


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
        check_kinds(budgets=budgets, warn_at=warn_at, webhook=webhook, on_alert=on_alert, priors=priors, pot=pot)
        check_choices(on_breach, on_store_down)
        self._budgets = all_budgets(limit_usd, limit_gpu_hours, budgets, warn_at, needed=pot is None)
        self._pot = pot
        self._on_store_down = on_store_down
        self.stated_prices: PriceBook = PriceBook.for_run("BudgetStopping", usd_per_gpu_hour, usd_per_hour)
        self._on_breach = on_breach
        self._webhook = webhook
        self._on_alert = on_alert
        self._on_stop = OnStop("BudgetStopping", on_stop, on_stop_when, disk_survives=disk_survives)
        self._priors = priors or StopPriors()
        self._added: OwnMonitor | None = None
        self._said = dict(vars(self))
        self._begin()

    @property
    def limit_usd(self) -> Fraction | None:
        """The smallest limit in US dollars of the run itself, `None` if it has none."""
        limits = [b.limit_usd for b in self._budgets if b.scope == "run" and b.limit_usd is not None]
        return min((Fraction(parse_money(limit)) for limit in limits), default=None)

    @property
    def stopped_by(self) -> Verdict | None:
        """Why the run was stopped, as far as this rank knows; `None` if it was not."""
        return self._steps.stop or self._steps.proposed if self._steps is not None else None

    @property
    def last_model_path(self) -> str:
        """The checkpoint of the stop, empty without one; named as ModelCheckpoint names what a restart goes on from."""
        return self._ending.path if self._ending is not None else ""

    def __getstate__(self) -> dict[str, Any]:
        """Only what the user said goes along into a copy or to another process."""
        return {**self._said, "_said": self._said}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy begins anew."""
        vars(self).update(state)
        self._begin()

    def _begin(self) -> None:
        self._monitor: CostMonitor | None = None
        self._run: Run | None = None
        self._watch: BudgetWatch | None = None
        self._teller: Teller | None = None
        self._agreement: Agreement | None = None
        self._together: Together | None = None
        self._steps: BudgetSteps | None = None
        self._ending: OrderlyStop | None = None
        self._admitted = False
        self._restore_signal: Callable[[], None] = _nothing

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
        if any(isinstance(each, BudgetStopping) and each is not self for each in callbacks):
            raise config_error(
                "BudgetStopping: two in one Trainer; put all budgets into one, BudgetStopping(budgets=[...])."
            )
        found = next((each for each in callbacks if isinstance(each, CostMonitor)), None)
        if found is None:
            # The same in each fit of this callback, so that they are one run. Lightning goes through this very list,
            # so that it is set up after this.
            self._added = found = self._added or OwnMonitor()
            self._added.trainer = trainer
            callbacks.append(found)
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
                self._watch.restarts = 0 if self._on_breach == "return" else restarts_left(os.environ)
                refusal = self._watch.refusal()
                if refusal is None:
                    self._watch.lift()
                    self._watch.write()
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
            alerts = AlertState.from_json(self._watch.alerts).next_attempt() if self._watch.alerts else None
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
        self._agreement = agreement = self._agree_with(trainer)
        if self._watch is not None:
            monitor = self._monitor
            self._watch.foreseen = lambda: monitor.forecast if monitor is not None else None
            self._watch.planned_steps = trainer.max_steps if trainer.max_steps > 0 else None
            self._watch.saves_routinely = bool(trainer.checkpoint_callbacks)
        self._on_stop.begin(run, clean_stop.checkpoint_folder(trainer), self._webhook)
        self._ending = ending = OrderlyStop(trainer, pl_module, run, self._on_breach, self._together)
        self._steps = BudgetSteps(trainer, run, agreement, ending, self._watch, self._teller)
        run.after_batch.append(self._steps.after_batch)

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
            self._agreement.vote(BY_SIGNAL)

    # -- the end ----------------------------------------------------------------------------------------------

    @shielded
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training is over: what waits is told, loggers are flushed."""
        if self._ending is not None and self._steps is not None and self._steps.stop is not None:
            self._ending.flush(self._steps.stop, self._patience_s(clean_stop.FLUSH_CAP_S))
        if self._together is not None:
            self._together.finish()
        if self._steps is not None:
            self._steps.tell([], closing=True)
        if self._teller is not None:
            self._teller.wait(self._patience_s(TIMEOUT_S))

    def _patience_s(self, most_s: float) -> float:
        """How long to wait for others: at a stop not longer than the money lasts, but a moment."""
        stopped = self._steps is not None and self._steps.stop is not None
        patience_ns = None
        if self._watch is not None and stopped:
            patience_ns = 0
            with metering():
                patience_ns = self._watch.patience_ns()
        return most_s if patience_ns is None else min(most_s, max(LEAST_PATIENCE_S, patience_ns / NS_PER_S))

    @shielded
    def _close_pot(self) -> None:
        if self._watch is not None and self._watch.pot is not None:
            pot, self._watch.pot = self._watch.pot, None
            pot.close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Put everything back."""
        if stage == "fit":
            self._leave()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put back what must not stay."""
        self._leave()
        if self._ending is not None:
            self._ending.call_off_exit()
        if self._run is None and self._added is not None:
            self._added.withdraw()  # nothing was begun, so nobody else does it

    def _leave(self) -> None:
        if self._run is not None and self._steps is not None and self._steps.after_batch in self._run.after_batch:
            self._run.after_batch.remove(self._steps.after_batch)
        if self._ending is not None:
            self._ending.put_back()
        self._restore_signal()
        self._close_pot()
        self._restore_signal = _nothing
        private.restore_hooks(self)


def _restore(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _nothing() -> None:
    """Nothing to put back."""
