"""Whether a run is behind its plan and over its cost, by the rule of earned value: both together raise the alarm."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any, Literal

from costguard.errors import config_error
from costguard.records import Action, Verdict
from costguard.units import NS_PER_S, format_money, plain, round_money

OVER = Fraction(110, 100)
"""Spent over earned from which on a run is over: a cost performance index of 0.909."""
CLEAR = Fraction(105, 100)
"""Spent over earned below which a raised alarm is cleared."""
BEHIND = Fraction(2, 100)
"""Share of the plan by which a run may lag before it is behind: chosen, not measured."""
MUTED_BELOW = Fraction(2, 100)
"""Share of the plan before which nothing is said: starting up is slow and dear in every run."""
CONFIRMATIONS = 3
CONFIRM_NS = 10 * 60 * NS_PER_S

Unit = Literal["usd", "gpu_hours"]
Baseline = Literal["earned", "planned"]


class Standing(str, Enum):
    """Where a run stands on both axes."""

    ON_PLAN = "on_plan"
    BEHIND = "behind_plan"
    OVER = "over_cost"
    BEHIND_AND_OVER = "behind_plan_and_over_cost"


def progress_of(
    *, tokens: int | None = None, planned_tokens: int | None = None, steps: int = 0, planned_steps: int | None = None
) -> Fraction | None:
    """Share of the plan that is done, in tokens where they are planned and counted, else in steps; never in time.

    Returns:
        0 to 1, `None` if neither is known.
    """
    if planned_tokens and tokens is not None:
        return min(Fraction(1), Fraction(tokens, planned_tokens))
    return min(Fraction(1), Fraction(steps, planned_steps)) if planned_steps else None


def planned_share(elapsed_ns: int, planned_ns: int | None) -> Fraction | None:
    """Share of the plan that an even schedule has done by now.

    Args:
        elapsed_ns: Paid time so far.
        planned_ns: Time that the whole plan is to take, above 0; `None` if there is no schedule.

    Returns:
        0 to 1, `None` without a schedule.
    """
    return min(Fraction(1), Fraction(elapsed_ns, planned_ns)) if planned_ns else None


@dataclass(frozen=True, kw_only=True, slots=True)
class EarnedValue:
    """A run against its plan at one instant, all exact.

    Args:
        progress: Share of the plan done, 0 to 1, `None` if unknown.
        planned_progress: Share that the plan has done by now, 0 to 1, `None` without a schedule.
        spent: Spent so far, in `unit`, `None` if unknown.
        planned_spend: What the whole plan is to cost, in `unit`, above 0; `None` if unknown.
        unit: `usd` or `gpu_hours`.
        baseline: What spend is measured against: `earned` (the planned cost of what is done) or `planned` (the planned
            cost of what was to be done by now).

    Source:
        Earned value management (ANSI/EIA-748): CPI = EV / AC, SPI = EV / PV, EAC = BAC / CPI.
    """

    progress: Fraction | None
    planned_progress: Fraction | None
    spent: Fraction | None
    planned_spend: Fraction | None
    unit: Unit = "usd"
    baseline: Baseline = "earned"

    def __post_init__(self) -> None:
        if self.planned_spend is not None and self.planned_spend <= 0:
            raise config_error(
                f"EarnedValue(planned_spend={self.planned_spend!r}): expected what the whole plan is to cost, above 0."
            )

    @property
    def earned(self) -> Fraction | None:
        """Planned cost of what is done (EV)."""
        known = self.progress is not None and self.planned_spend is not None
        return self.progress * self.planned_spend if known else None  # type: ignore[operator]

    @property
    def planned(self) -> Fraction | None:
        """Planned cost of what was to be done by now (PV)."""
        known = self.planned_progress is not None and self.planned_spend is not None
        return self.planned_progress * self.planned_spend if known else None  # type: ignore[operator]

    @property
    def cost(self) -> Fraction | None:
        """What spend is measured against."""
        return self.earned if self.baseline == "earned" else self.planned

    @property
    def cost_index(self) -> Fraction | None:
        """Earned over spent (CPI): below 1 is dearer than planned."""
        return self.earned / self.spent if self.earned is not None and self.spent else None

    @property
    def schedule_index(self) -> Fraction | None:
        """Earned over planned (SPI): below 1 is later than planned."""
        if self.progress is None or not self.planned_progress:
            return None
        return self.progress / self.planned_progress

    @property
    def at_completion(self) -> Fraction | None:
        """What the plan will cost at the present index (EAC)."""
        index = self.cost_index
        return self.planned_spend / index if index and self.planned_spend is not None else None

    def show(self, amount: Fraction) -> str:
        """An amount in this unit, for a person."""
        return format_money(amount) if self.unit == "usd" else f"{float(amount):,.2f} GPU-hours"


@dataclass(frozen=True, kw_only=True, slots=True)
class AlarmState:
    """What has been seen of a run so far.

    Args:
        standing: Where it stood at the latest evaluations.
        count: How many in a row.
        since_ns: Since when.
        said: The standing that was last confirmed and said.
    """

    standing: Standing = Standing.ON_PLAN
    count: int = 0
    since_ns: int = 0
    said: Standing = Standing.ON_PLAN

    @property
    def raised(self) -> bool:
        """Whether the alarm is on."""
        return self.said is Standing.BEHIND_AND_OVER


def standing_of(value: EarnedValue) -> Standing | None:
    """Where a run stands.

    Returns:
        `None` where something is unknown or the plan is not 2% on.
    """
    cost = value.cost
    if value.progress is None or value.planned_progress is None or value.spent is None or cost is None:
        return None
    if value.planned_progress < MUTED_BELOW:
        return None
    behind, over = value.progress < value.planned_progress - BEHIND, value.spent > OVER * cost
    if behind:
        return Standing.BEHIND_AND_OVER if over else Standing.BEHIND
    return Standing.OVER if over else Standing.ON_PLAN


def judge_progress(value: EarnedValue, at_ns: int, state: AlarmState) -> tuple[Verdict | None, AlarmState]:
    """Judge a run against its plan.

    A standing is said once, when three evaluations in a row and ten minutes have confirmed it: behind and over is an
    alert, one of the two a line in the log, neither nothing. The alarm is cleared, without further ado, when
    spend is below 1.05 times its baseline or the plan is caught up with; in between it stays as it is.

    Args:
        value: The run now.
        at_ns: Now, on the meter's clock.
        state: What the last call returned.

    Returns:
        A verdict of kind `progress`, or `None`, and the state for the next call.
    """
    standing = standing_of(value)
    if standing is None:
        return None, AlarmState(said=state.said)
    if state.raised:
        if not _is_cleared(value):
            return None, AlarmState(standing=standing, count=1, since_ns=at_ns, said=state.said)
        return _cleared(value), AlarmState(standing=standing, count=1, since_ns=at_ns)
    same = standing is state.standing and state.count > 0
    count, since_ns = (state.count + 1, state.since_ns) if same else (1, at_ns)
    confirmed = count >= CONFIRMATIONS and at_ns - since_ns >= CONFIRM_NS and standing is not state.said
    said = standing if confirmed else state.said
    verdict = _say(value, standing) if confirmed and standing is not Standing.ON_PLAN else None
    return verdict, AlarmState(standing=standing, count=count, since_ns=since_ns, said=said)


def _is_cleared(value: EarnedValue) -> bool:
    """Of figures that are known, as `standing_of` has found."""
    spent, cost, zero = value.spent or 0, value.cost or 0, Fraction(0)
    return spent < CLEAR * cost or (value.progress or zero) >= (value.planned_progress or zero)


def _cleared(value: EarnedValue) -> Verdict:
    return _verdict(value, Action.LOG, "recovered", f"No longer behind plan and over cost: {_figures(value)}.")


_SAYINGS: dict[Standing, tuple[Action, str]] = {
    Standing.BEHIND: (Action.LOG, "Behind plan, not over cost"),
    Standing.OVER: (Action.LOG, "Over cost, not behind plan"),
    Standing.BEHIND_AND_OVER: (Action.ALERT, "Behind plan and over cost"),
}


def _say(value: EarnedValue, standing: Standing) -> Verdict:
    action, words = _SAYINGS[standing]
    end = value.at_completion
    outlook = (
        f"; at this rate the plan will cost {value.show(end)}" if end is not None and action is Action.ALERT else ""
    )
    return _verdict(value, action, standing.value, f"{words}: {_figures(value)}{outlook}.")


def _figures(value: EarnedValue) -> str:
    earned, spent = value.earned or Fraction(0), value.spent or Fraction(0)
    done, planned = float(value.progress or 0), float(value.planned_progress or 0)
    return (
        f"{done:.1%} is done where {planned:.1%} was planned, and {value.show(spent)} is spent for what was to cost "
        f"{value.show(earned)}"
    )


def _verdict(value: EarnedValue, action: Action, reason: str, message: str) -> Verdict:
    spent = value.spent
    figures: dict[str, Any] = {
        "unit": value.unit,
        "progress": _float(value.progress),
        "planned_progress": _float(value.planned_progress),
        "cost_index": _float(value.cost_index),
        "schedule_index": _float(value.schedule_index),
        "at_completion": _float(value.at_completion),
    }
    spend = plain(round_money(spent)) if spent is not None and value.unit == "usd" else None
    return Verdict(kind="progress", action=action, reason=reason, message=message, spend=spend, evidence=figures)


def _float(number: Fraction | None) -> float | None:
    return None if number is None else float(number)
