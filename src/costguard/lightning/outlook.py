"""Where a run is heading while it trains: the forecast of its end with a band, and how it stands against its plan."""

from __future__ import annotations

from fractions import Fraction

from costguard.ledger.live import Figures
from costguard.ledger.samples import samples_of
from costguard.lightning.run import Run
from costguard.plan.backtest import POINTS
from costguard.plan.forecast import Forecast, forecast_run, money_from
from costguard.plan.history import History
from costguard.plan.series import Plan, Sample
from costguard.policies.progress import AlarmState, EarnedValue, judge_progress, planned_share
from costguard.records import ACTIVITY_LABELS, Verdict
from costguard.units import NS_PER_HOUR, NS_PER_S, Money, parse_money

SEE_EVERY_NS = 2 * NS_PER_S
FORECAST_EVERY_NS = 60 * NS_PER_S
"""A forecast takes some 30 ms."""
KEEP_EVERY_NS = 15 * 60 * NS_PER_S
"""How often a forecast is written down, so that it can be scored later; and whenever a share of `POINTS` is passed."""


class Outlook:
    """Rank 0's view of what is to come.

    Args:
        run: The run, its journal open.
        planned_steps: Optimizer steps of the plan, `None` if only tokens are planned, or nothing.
        planned_usd: What the whole plan is to cost, US dollars.
        planned_hours: How long it is to take, hours of paid wall time.
    """

    def __init__(
        self, run: Run, planned_steps: int | None, planned_usd: Money | None = None, planned_hours: float | None = None
    ) -> None:
        self.forecast: Forecast | None = None
        self.validations = 0
        self._run = run
        self._steps = planned_steps is not None
        total = planned_steps or run.config.planned_tokens
        self._plan = Plan(total=total) if total else None
        self._history = History()
        self._before = self._earlier()
        self._next_see_ns = self._next_forecast_ns = self._next_keep_ns = 0
        self._points = [point for point in POINTS if total and point > self._before.done / total]
        dollars = run.config.book.currency == "USD"  # a plan in another currency than the prices says nothing
        self._planned_usd = Fraction(parse_money(planned_usd)) if planned_usd is not None and dollars else None
        self._planned_hours = None if planned_hours is None else Fraction(str(planned_hours))
        self._alarm = AlarmState()

    def _earlier(self) -> Sample:
        account, attempt = self._run.account(), self._run.writer.seat.attempt
        if self._steps:  # the journal is gone through in steps
            for sample in samples_of(account):
                if sample.attempt < attempt:
                    self._history.see(sample)
        latest = self._history.latest
        return latest if latest is not None else Sample(elapsed_ns=0, done=0, spend=Fraction(0))

    def tick(self, figures: Figures) -> Verdict | None:
        """Once a second, between two batches.

        Args:
            figures: The live figures.

        Returns:
            A verdict on how the run stands against its plan, if there is one to be told.
        """
        now = self._run.meter.now_ns()
        if self._plan is None or now < self._next_see_ns:
            return None
        self._next_see_ns = now + SEE_EVERY_NS
        sample = self._sample(now, figures)
        if sample is None:
            return None
        self._history.see(sample)
        passed = [point for point in self._points if sample.done >= point * self._plan.total]
        if now >= self._next_forecast_ns or passed:
            self._next_forecast_ns = now + FORECAST_EVERY_NS
            self._make(self._plan, now, keep=bool(passed))
        self._points = [point for point in self._points if point not in passed]
        return self._against_plan(sample, now)

    def _make(self, plan: Plan, now: int, *, keep: bool) -> None:
        run = self._run
        money = money_from(run.config.book, run.wall_ns(), run.paid.total) if run.config.book.prices else None
        made = forecast_run(self._history, plan, money)
        if made is None:
            return
        self.forecast = made
        if keep or now >= self._next_keep_ns:
            self._next_keep_ns = now + KEEP_EVERY_NS
            run.writer.forecast(made.to_json())

    def _sample(self, now: int, figures: Figures) -> Sample | None:
        state, before = self._run.meter.state, self._before
        done = state.counters.step if self._steps else figures.tokens
        if done is None:
            return None
        own = {ACTIVITY_LABELS[i]: ns for i, ns in enumerate(state.totals)}
        own[ACTIVITY_LABELS[state.activity]] += max(0, now - state.since_ns)
        return Sample(
            elapsed_ns=before.elapsed_ns + now - state.start_ns,
            done=done,
            spend=figures.spend,
            activities_ns={name: ns + before.activities_ns.get(name, 0) for name, ns in own.items()},
            validations=before.validations + self.validations,
            saves=before.saves + self._run.writer.saves,
            attempt=self._run.writer.seat.attempt,
        )

    def _against_plan(self, sample: Sample, now: int) -> Verdict | None:
        plan, run = self._plan, self._run
        if plan is None or (self._planned_usd is None and self._planned_hours is None):
            return None
        devices = run.paid.total
        hour = run.config.book.device_money(run.wall_ns(), run.wall_ns() + NS_PER_HOUR, devices, devices)
        hours = self._planned_hours or (self._planned_usd / hour if self._planned_usd and hour else None)
        in_money = self._planned_usd is not None
        value = EarnedValue(
            progress=min(Fraction(1), Fraction(sample.done, plan.total)),
            planned_progress=planned_share(sample.elapsed_ns, None if hours is None else int(hours * NS_PER_HOUR)),
            spent=sample.spend if in_money else Fraction(sample.elapsed_ns * devices, NS_PER_HOUR),
            planned_spend=self._planned_usd if in_money else hours * devices if hours is not None else None,
            unit="usd" if in_money else "gpu_hours",
        )
        verdict, self._alarm = judge_progress(value, now, self._alarm)
        return verdict
