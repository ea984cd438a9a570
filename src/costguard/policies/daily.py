"""The daily line: what one meter may use on a calendar day before somebody is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from costguard.days import Day
from costguard.errors import config_error
from costguard.records import Action, Verdict
from costguard.units import Money, format_count, format_money, parse_money

PACE_AFTER = Fraction(1, 4)
"""Share of a day before which its pace says nothing: chosen, not measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DailyLine:
    """What one meter may use on a day.

    Args:
        meter: Its name, such as `money`, `tokens`, `checkpoint_bytes` or `log_bytes`.
        per_day: Most on one day, above 0, in `unit`.
        unit: `usd`, `gpu_hours`, `tokens`, `bytes`.

    Raises:
        ConfigError: If it is no amount above 0.
    """

    meter: str
    per_day: Money
    unit: str = "usd"

    def __post_init__(self) -> None:
        try:
            if parse_money(self.per_day) == 0:
                raise ValueError("nothing may be used")
        except ValueError as why:
            raise config_error(
                f"DailyLine(per_day={self.per_day!r}): {why}; expected {self.unit} a day, above 0."
            ) from None

    @property
    def limit(self) -> Fraction:
        """The line, exactly."""
        return Fraction(parse_money(self.per_day))

    def show(self, amount: Fraction) -> str:
        """An amount in this unit, for a person."""
        if self.unit == "usd":
            return format_money(amount)
        return f"{format_count(float(amount))} {self.unit.replace('_', ' ')}"


def even_line(left: Fraction, days_left: int) -> Fraction:
    """What may be used a day so that what is left lasts evenly.

    Args:
        left: What is left, in any unit; below 0 counts as nothing.
        days_left: Calendar days until the plan's end, today included, at least 1.
    """
    return max(Fraction(0), left) / max(1, days_left)


@dataclass(frozen=True, slots=True)
class DayMark:
    """What was said of a meter on a day, so that it is said once."""

    meter: str
    day: str
    reason: str

    def to_json(self) -> list[str]:
        """Plain data that `from_json` reads back."""
        return [self.meter, self.day, self.reason]

    @staticmethod
    def from_json(data: list[str]) -> DayMark:
        """Read what `to_json` wrote."""
        return DayMark(*data)


def judge_day(
    line: DailyLine, day: Day, used: Fraction | None, at_ns: int, said: frozenset[DayMark]
) -> tuple[Verdict | None, frozenset[DayMark]]:
    """Judge what a meter has used today.

    Args:
        line: The line.
        day: Today, of 23 or 25 hours where clocks change.
        used: Used since midnight, in the line's unit, `None` if unknown.
        at_ns: Now, wall clock in nanoseconds since the Unix epoch.
        said: What has been said, also by earlier attempts.

    Returns:
        An alert when the line is passed, a line in the log when a quarter of the day or more is over and its pace would
        pass it; each once a day. With it, what has been said by now.
    """
    if used is None:
        return None, said
    gone = min(Fraction(1), Fraction(max(0, at_ns - day.start_ns), day.end_ns - day.start_ns))
    if used > line.limit:
        reason, action = "over_daily_line", Action.ALERT
    elif gone >= PACE_AFTER and used > line.limit * gone:
        reason, action = "pace_over_daily_line", Action.LOG
    else:
        return None, said
    mark, passed = (DayMark(line.meter, day.label, name) for name in (reason, "over_daily_line"))
    if mark in said or passed in said:
        return None, said
    evidence = {"meter": line.meter, "day": day.label, "used": float(used), "line": float(line.limit)}
    return _verdict(line, action, reason, used / gone if gone else used, used, evidence), said | {mark}


def _verdict(
    line: DailyLine, action: Action, reason: str, pace: Fraction, used: Fraction, evidence: Mapping[str, Any]
) -> Verdict:
    name, limit = line.meter.replace("_", " "), line.show(line.limit)
    if action is Action.ALERT:
        message = f"{line.show(used)} of {name} today is over the daily line of {limit}."
    else:
        message = (
            f"{line.show(used)} of {name} so far today leads to {line.show(pace)}, over the daily line of {limit}."
        )
    return Verdict(
        kind="daily_line", action=action, reason=f"{reason}_{line.meter}", message=message, evidence={**evidence}
    )
