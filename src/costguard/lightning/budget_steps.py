"""After each optimizer step: looks at the budgets when it is time, and acts on what all ranks have agreed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lightning.pytorch import Trainer

from costguard.errors import warn
from costguard.lightning import private
from costguard.lightning.agreement import Agreement
from costguard.lightning.budget_watch import BudgetWatch
from costguard.lightning.orderly_stop import OrderlyStop
from costguard.lightning.run import Run
from costguard.lightning.telling import Teller
from costguard.records import Action, Activity, Verdict
from costguard.units import NS_PER_S

BY_SIGNAL, BY_BUDGET = 1, 2
BLIND_LOOK_NS = 5 * NS_PER_S
BLIND_FOR_NS = 120 * NS_PER_S
"""How long a run goes on whose budget cannot be looked at: chosen."""
_CHECKPOINT, _METERING, _VALIDATION = (int(a) for a in (Activity.CHECKPOINT, Activity.METERING, Activity.VALIDATION))


class BudgetSteps:
    """The budgets of one training, from its first step to its last.

    Args:
        trainer: The Trainer.
        run: The run.
        agreement: How ranks agree.
        ending: What stops the training.
        watch: Rank 0's look at the budgets, `None` on the others.
        teller: Tells people, on rank 0.
    """

    def __init__(
        self,
        trainer: Trainer,
        run: Run,
        agreement: Agreement,
        ending: OrderlyStop,
        watch: BudgetWatch | None,
        teller: Teller | None,
    ) -> None:
        self.stop: Verdict | None = None
        self.proposed: Verdict | None = None
        self._trainer = trainer
        self._run = run
        self._meter = run.meter
        self._agreement = agreement
        self._ending = ending
        self._watch = watch
        self._teller = teller
        self._step, self._began_ns = trainer.global_step, run.meter.now_ns()
        self._automatic = trainer.lightning_module.automatic_optimization
        self._counts_steps = False
        self._validates = trainer.enable_validation
        self._blind_since_ns: int | None = None
        self._batches = 0
        self._ahead_from = 0
        self._paused_ns = self._validated_ns = 0
        self._count_pauses(trainer.num_sanity_val_batches)

    def after_batch(self, step: int) -> None:
        """A batch is done.

        Args:
            step: Optimizer step by Lightning's own counter: what is metered may fail on one rank, and ranks must agree.
        """
        self._batches += 1
        if self.stop is not None or (step == self._step and (self._counts_steps or self._automatic)):
            return
        # Who steps a bare optimizer by hand moves no counter of Lightning's: then each batch may be a step.
        self._counts_steps = self._counts_steps or step != self._step
        self._step = step
        watch, agreement, now = self._watch, self._agreement, self._meter.now_ns()
        if watch is not None:
            watch.step_took(now - self._began_ns - self._count_pauses())
            if now >= watch.next_look_ns:
                with self._meter.span(_METERING):
                    self._look(watch)
        self._began_ns = now
        agreed = agreement.at_step(self._step_s)
        if watch is not None:
            watch.delay_steps = agreement.delay_steps
        if not agreed and self._validates:
            agreed = self._before_validation()
        if agreed:
            with self._meter.span(_METERING):
                self._end(agreed)

    def _step_s(self) -> float | None:
        return self._watch.step_s if self._watch is not None else None

    def _before_validation(self) -> int:
        """Nothing can stop a validation once it runs, so all ranks decide before it, if one follows this step."""
        batches = self._batches
        if batches < self._ahead_from:
            return 0
        ahead, accumulate = private.batches_to_validation(self._trainer), self._trainer.accumulate_grad_batches
        if ahead is None or ahead >= accumulate:
            # It comes no sooner than so many batches later.
            self._ahead_from = batches + (0 if ahead is None else ahead - accumulate + 1)
            return 0
        with self._meter.span(_METERING):
            if self._watch is not None:
                self._look_ahead(self._watch, sum(self._trainer.num_val_batches))
            return self._agreement.now()

    def _count_pauses(self, val_batches: Iterable[float] | None = None) -> int:
        """Time since the last call that was no step: validation, which is noted, and the user's own checkpoints."""
        totals = self._meter.state.totals
        validated = totals[_VALIDATION]
        paused = validated + totals[_CHECKPOINT]
        since, validation = paused - self._paused_ns, validated - self._validated_ns
        self._paused_ns, self._validated_ns = paused, validated
        if validation and self._watch is not None:
            batches = sum(self._trainer.num_val_batches if val_batches is None else val_batches)
            if batches != float("inf"):
                self._watch.validation_took(validation, int(batches))
        return since

    def _look_ahead(self, watch: BudgetWatch, batches: float) -> None:
        """Before a validation: stop here if it cannot be paid for."""
        if batches != float("inf"):
            watch.ahead_ns = watch.validation_ns(int(batches))
        try:
            self._look(watch)
        finally:
            if self.proposed is None:
                watch.ahead_ns = 0

    def _look(self, watch: BudgetWatch) -> None:
        try:
            verdicts = watch.judge(self._step)
            self._blind_since_ns = None
        except Exception as error:  # files, stores and prices may fail in any way
            verdicts = self._blind(watch, error)
        stop = next((v for v in verdicts if v.action is Action.STOP), None)
        if stop is not None:
            self.proposed = stop
            self._agreement.vote(BY_BUDGET)
        self.tell([v for v in verdicts if v.action is not Action.STOP])

    def _blind(self, watch: BudgetWatch, error: Exception) -> tuple[Verdict, ...]:
        """The budgets cannot be looked at: this is told at once, and a run that stays so is stopped."""
        now = self._meter.now_ns()
        watch.next_look_ns = now + BLIND_LOOK_NS
        if self._blind_since_ns is None:
            self._blind_since_ns = now
            warn(
                f"the budget cannot be looked at ({type(error).__name__}: {error}); the run is stopped if that lasts "
                f"{BLIND_FOR_NS / NS_PER_S:.0f} s."
            )
        if now - self._blind_since_ns < BLIND_FOR_NS:
            return ()
        message = (
            f"The budget could not be looked at for {BLIND_FOR_NS / NS_PER_S:.0f} s ({type(error).__name__}: {error})."
        )
        return (Verdict(kind="budget", action=Action.STOP, reason="not_enforceable", message=message, step=self._step),)

    def tell(self, verdicts: Sequence[Verdict], *, closing: bool = False) -> None:
        """Write verdicts down, and tell people what is due.

        Args:
            verdicts: What came up.
            closing: Whether nothing comes after this.
        """
        watch, teller = self._watch, self._teller
        if watch is None or teller is None:
            return
        for verdict in verdicts:
            if verdict.action is not Action.STOP:
                self._run.writer.verdict(verdict)
        if teller.tell(verdicts, self._run.wall_ns(), closing=closing):
            watch.alerts = teller.state.to_json()
            watch.write()

    def _end(self, agreed: int) -> None:
        """All ranks are here at the same step."""
        for_good = agreed != BY_SIGNAL
        stop = self.proposed if for_good and self.proposed is not None else _stopped(agreed, self._step)
        self.stop = stop
        if self._watch is not None and for_good:
            # First of all, so that it stays stopped whatever happens from here on.
            self.stop = stop = _write_down(self._watch, stop)
            self.tell([stop])
        self._ending.stop(stop, self._step, for_good=for_good)


def _write_down(watch: BudgetWatch, stop: Verdict) -> Verdict:
    """Write the stop down; one that cannot be written is told, and carried out all the same: other ranks wait."""
    try:
        return watch.stop(stop)
    except Exception as error:  # a full disk, a store that is away
        warn(
            f"the stop could not be written down ({type(error).__name__}: {error}): it is carried out, but whoever "
            "starts this run again is not refused; free space there."
        )
        return stop


def _stopped(agreed: int, step: int) -> Verdict:
    """What ranks know that did not decide."""
    if agreed == BY_SIGNAL:
        return Verdict(kind="signal", action=Action.STOP, reason="sigterm", message="A rank got SIGTERM.", step=step)
    return Verdict(kind="budget", action=Action.STOP, reason="limit", message="The budget is spent.", step=step)
