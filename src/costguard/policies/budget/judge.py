"""When a budget speaks, stops a run, or refuses to start it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any

from costguard.policies.budget.limits import Budget, Threshold
from costguard.records import ACTIONS_IN_ORDER, Action, Amount, Verdict
from costguard.units import parse_money, plain, round_money

MIN_PROGRESS = 0.02
"""Share of the plan before which forecasts raise nothing: chosen, not measured."""
MIN_STEPS = 30
"""Steps after the warm-up before which forecasts raise nothing: chosen, not measured."""

_MEASURES: dict[str, str] = {
    "spent": "is spent",
    "forecast": "is the forecast",
    "forecast_high": "is the cautious forecast (9 in 10 such runs stay below)",
}


class BudgetReason(str, Enum):
    """Why a budget ends a run, or cannot judge it."""

    LIMIT = "limit"
    FORECAST = "forecast_over_limit"
    SPENT_BEFORE_START = "limit_already_spent"
    BELOW_RESERVE = "limit_below_reserve"
    PRICE_UNKNOWN = "price_unknown"


@dataclass(frozen=True, slots=True)
class Mark:
    """A threshold that has fired: never again in its window, unless the limit is raised above `limit`."""

    budget: str
    window: str
    reason: str
    limit: Fraction

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {"budget": self.budget, "window": self.window, "reason": self.reason, "limit": str(self.limit)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Mark:
        """Read what `to_json` wrote."""
        return Mark(data["budget"], data["window"], data["reason"], Fraction(data["limit"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What one budget is judged by; all amounts are of its scope, window and basis.

    Args:
        spent: Spent so far, in the prices' currency.
        reserve: What stopping now would cost.
        step: Optimizer step.
        window: Name of the window, for a day its date; thresholds fire anew in each.
        forecast: Expected at the end (median); `None` if unknown, which is never a reason for anything.
        forecast_high: Its 90th percentile.
        progress: Share of the plan done, 0 to 1, `None` if unknown.
        warm_steps: Steps since the warm-up.
        unpriced_device_ns: Device time in `spent` that has no price and so is missing from its money.
        prepaid: Whether the capacity is paid for already, so that stopping saves no cash.
    """

    spent: Amount
    reserve: Amount = field(default_factory=lambda: Amount(money=Fraction(0)))
    step: int | None = None
    window: str = "total"
    forecast: Amount | None = None
    forecast_high: Amount | None = None
    progress: float | None = None
    warm_steps: int = 0
    unpriced_device_ns: int = 0
    prepaid: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a budget says now, in the order in which it is to be done, and all thresholds that have fired by now."""

    verdicts: tuple[Verdict, ...]
    fired: frozenset[Mark]


def admit(budget: Budget, facts: Facts, start: Amount | None = None) -> Verdict | None:
    """Judge whether a run may start: not if it would have to stop before its first step.

    Args:
        budget: The budget.
        facts: What it is judged by, before the start.
        start: What it takes to get to the first step, as earlier attempts have shown; nothing if unknown.

    Returns:
        A verdict with action `refuse` that names the least workable budget, `None` if the run may start.
    """
    spent, reserve = budget.measure(facts.spent), budget.measure(facts.reserve)
    first = (budget.measure(start) if start else None) or Fraction(0)
    if spent is None or reserve is None or spent + first + reserve < budget.stop_line:
        return None
    least = _least_limit(budget, spent + first + reserve)
    show, whole = budget.show, f"{budget.show(budget.limit)} for {_scope(budget, facts)}"
    if spent >= budget.stop_line:
        reason, why = BudgetReason.SPENT_BEFORE_START, f"{show(spent)} of {whole} is spent"
    else:
        reason = BudgetReason.BELOW_RESERVE
        starting = f", starting costs {show(first)}" if first else ""
        why = f"{show(spent)} is spent{starting} and stopping costs up to {show(reserve)}"
        why += f", which leaves nothing of {whole}"
    message = f"Not started: {why}; the least budget that works is {show(least)}."
    return _verdict(budget, facts, Action.REFUSE, reason.value, message, least_limit=_number(least))


def evaluate(budget: Budget, facts: Facts, fired: frozenset[Mark]) -> Evaluation:
    """Judge a budget.

    Args:
        budget: The budget.
        facts: What it is judged by.
        fired: Thresholds that have fired, of this and earlier attempts and of any budgets.

    Returns:
        The verdicts and `fired` with what fired now. Of thresholds that are passed in one go, each action's
        highest speaks. A stop is said again each time: it is a state, not news.
    """
    spent, reserve = budget.measure(facts.spent), budget.measure(facts.reserve)
    found: list[tuple[str, Verdict | None]] = []
    if spent is None or reserve is None or (budget.in_money and facts.unpriced_device_ns):
        found.append((BudgetReason.PRICE_UNKNOWN.value, _unpriced(budget, facts)))
    found += _passed(budget, facts)
    news = [(reason, verdict) for reason, verdict in found if not _has_fired(budget, facts, reason, fired)]
    marks = {Mark(budget.key, facts.window, reason, budget.limit) for reason, _ in news}
    verdicts = [verdict for _, verdict in news if verdict is not None]
    if spent is not None and reserve is not None and spent + reserve >= budget.stop_line:
        verdicts.append(_limit_stop(budget, facts, spent, reserve))
    elif stop := _forecast_stop(budget, facts):
        verdicts.append(stop)
    return Evaluation(in_order(verdicts), fired | marks)


def evaluate_all(budgets: Iterable[Budget], facts: Mapping[str, Facts], fired: frozenset[Mark]) -> Evaluation:
    """Judge several budgets; the tightest decides.

    Args:
        budgets: The budgets.
        facts: What each is judged by, by its `key`.
        fired: Thresholds that have fired.
    """
    verdicts: list[Verdict] = []
    for budget in budgets:
        done = evaluate(budget, facts[budget.key], fired)
        verdicts += done.verdicts
        fired = done.fired
    return Evaluation(in_order(verdicts), fired)


def in_order(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Put verdicts into the order in which they are acted on: log, warn, alert, stop, refuse."""
    return tuple(sorted(verdicts, key=lambda verdict: ACTIONS_IN_ORDER.index(verdict.action)))


def _scope(budget: Budget, facts: Facts) -> str:
    if budget.scope == "day":
        return f"{facts.window} ({budget.time_zone})"
    kind, _, tag = budget.scope.partition(":")
    return f"the tag {tag}" if tag else f"the {kind}"


def _least_limit(budget: Budget, needed: Fraction) -> Fraction:
    """The least number of hundredths with which it would not have to stop at once."""
    share = budget.stop_line / budget.limit
    return Fraction(math.floor(needed / share * 100) + 1, 100)


def _passed(budget: Budget, facts: Facts) -> list[tuple[str, Verdict | None]]:
    """All thresholds that are passed and do not stop; only each action's and measure's highest has a verdict."""
    found: list[tuple[str, Verdict | None]] = []
    said: set[tuple[str, str]] = set()
    for threshold in sorted(budget.thresholds, key=lambda t: -t.at):
        amount = _judged(budget, facts, threshold)
        if threshold.action == "stop" or amount is None or amount < threshold.share * budget.limit:
            continue
        key = (threshold.on, threshold.action)
        found.append((threshold.reason, None if key in said else _crossing(budget, facts, threshold, amount)))
        said.add(key)
    return found


def _judged(budget: Budget, facts: Facts, threshold: Threshold) -> Fraction | None:
    if threshold.on == "spent":
        return budget.measure(facts.spent)
    if facts.progress is None or facts.progress < MIN_PROGRESS or facts.warm_steps < MIN_STEPS:
        return None
    return budget.measure(facts.forecast if threshold.on == "forecast" else facts.forecast_high)


def _has_fired(budget: Budget, facts: Facts, reason: str, fired: frozenset[Mark]) -> bool:
    place = (budget.key, facts.window, reason)
    return any((m.budget, m.window, m.reason) == place and m.limit >= budget.limit for m in fired)


def _crossing(budget: Budget, facts: Facts, threshold: Threshold, amount: Fraction) -> Verdict:
    share = f"{float(amount / budget.limit):.0%} of {budget.show(budget.limit)} for {_scope(budget, facts)}"
    message = f"{budget.show(amount)}, {share}, {_MEASURES[threshold.on]}.{_prepaid(facts)}"
    return _verdict(budget, facts, Action(threshold.action), threshold.reason, message)


def _limit_stop(budget: Budget, facts: Facts, spent: Fraction, reserve: Fraction) -> Verdict:
    line = "" if budget.stop_line == budget.limit else f" ({budget.show(budget.stop_line)} is where it stops)"
    message = (
        f"{budget.show(spent)} is spent and stopping costs up to {budget.show(reserve)}, which reaches the limit of "
        f"{budget.show(budget.limit)} for {_scope(budget, facts)}{line}.{_prepaid(facts)}"
    )
    return _verdict(budget, facts, Action.STOP, BudgetReason.LIMIT.value, message)


def _forecast_stop(budget: Budget, facts: Facts) -> Verdict | None:
    for threshold in budget.thresholds:
        if threshold.action != "stop" or threshold.on == "spent":
            continue
        amount = _judged(budget, facts, threshold)
        if amount is not None and amount >= threshold.share * budget.limit:
            crossing = _crossing(budget, facts, threshold, amount)
            return _verdict(budget, facts, Action.STOP, BudgetReason.FORECAST.value, crossing.message)
    return None


def _unpriced(budget: Budget, facts: Facts) -> Verdict:
    message = (
        f"Some device time of {_scope(budget, facts)} has no price, so the budget of {budget.show(budget.limit)} "
        "does not hold for it; give a price for that time, or use limit_gpu_hours."
    )
    return _verdict(budget, facts, Action.ALERT, BudgetReason.PRICE_UNKNOWN.value, message)


def _prepaid(facts: Facts) -> str:
    return " The capacity is prepaid: stopping saves no cash." if facts.prepaid else ""


def _verdict(budget: Budget, facts: Facts, action: Action, reason: str, message: str, **more: Any) -> Verdict:
    money = facts.spent.money
    evidence = {
        "budget": budget.key,
        "window": facts.window,
        "limit": _number(budget.limit),
        "spent": _number(budget.measure(facts.spent)),
        "reserve": _number(budget.measure(facts.reserve)),
        "forecast": _number(budget.measure(facts.forecast)),
        "usd_rate": None if budget.usd_rate is None else [plain(parse_money(budget.usd_rate)), budget.usd_rate_date],
    }
    return Verdict(
        kind="budget",
        action=action,
        reason=reason,
        message=message,
        step=facts.step,
        spend=None if money is None else plain(round_money(money)),
        evidence={**evidence, **more},
    )


def _number(amount: Fraction | None) -> str | None:
    return None if amount is None else plain(round_money(amount))
