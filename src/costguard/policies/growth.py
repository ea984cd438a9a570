"""Abnormal growth of a meter: an hour that is far above the hours before it, by measures that outliers do not move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from costguard.errors import config_error
from costguard.records import Action, Verdict
from costguard.units import format_count, format_money

WINDOW = 24
"""Buckets that the latest one is compared with."""
COLD_BELOW = 8
"""With fewer than so many buckets before it, the latest is compared with the plan."""
MAX_Z = 3.5
"""Robust z-score from which on a value is an outlier. Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers,
ASQC 1993."""
MAD_TO_SIGMA = 0.6745
"""The median absolute deviation of a normal distribution in standard deviations, same source."""
MIN_INCREASE = 0.25
PLAN_RATIO = 1.5

_FLOORS = {"usd": 1.0, "gpu_hours": 1.0, "tokens": 100_000.0, "bytes": 1e9}
"""Increase an hour that is worth a sentence, chosen, not measured."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a meter counted in one hour.

    Args:
        amount: In the meter's unit, `None` if unknown.
        setting: What the hour can be compared within, such as stage and number of devices; where it changes,
            counting begins anew.
    """

    amount: float | None
    setting: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meter:
    """A meter whose growth is watched.

    Args:
        name: Such as `money`, `agent_tokens`, `checkpoint_bytes`, `log_bytes`.
        unit: `usd`, `gpu_hours`, `tokens` or `bytes`.
        floor: Increase an hour below which nothing is said, in the unit, >= 0; by default $1, 1 GPU-hour, 100,000
            tokens, 1 GB.

    Raises:
        ConfigError: If a value cannot be used.
    """

    name: str
    unit: str = "usd"
    floor: float | None = None

    def __post_init__(self) -> None:
        if self.unit not in _FLOORS:
            raise config_error(f"Meter(unit={self.unit!r}): unknown; expected one of {', '.join(_FLOORS)}.")
        if self.floor is not None and not (math.isfinite(self.floor) and self.floor >= 0):
            raise config_error(f"Meter(floor={self.floor!r}): expected an increase an hour of at least 0, such as 1.0.")

    @property
    def least(self) -> float:
        """The floor in force."""
        return _FLOORS[self.unit] if self.floor is None else self.floor

    def show(self, amount: float) -> str:
        """An amount in this unit, for a person."""
        return format_money(f"{amount:.12f}") if self.unit == "usd" else f"{format_count(float(amount))} {self.unit}"


def robust_z(value: float, others: Sequence[float]) -> float:
    """How far a value lies above the median of others, in robust standard deviations.

    Args:
        value: The value.
        others: At least one.

    Returns:
        0.6745 (value - median) / MAD; with a MAD of 0 it is infinite for any other value than the median.
    """
    middle = median(others)
    spread = median(abs(other - middle) for other in others)
    if value == middle:
        return 0.0
    return MAD_TO_SIGMA * (value - middle) / spread if spread else math.copysign(math.inf, value - middle)


def judge_growth(meter: Meter, buckets: Sequence[Bucket], planned: float | None = None) -> Verdict | None:
    """Judge the latest whole hour of a meter.

    Args:
        meter: The meter.
        buckets: Whole hours in the order of time, the latest last; an hour without use is an amount of 0.
        planned: What the plan has for an hour, `None` if unknown; asked while there are too few hours.

    Returns:
        An alert of kind `growth` if the hour is an outlier upward, and more than 25% and the floor above what is usual;
        in the first eight hours of a setting, if it is 1.5 times the plan.
    """
    if not buckets or buckets[-1].amount is None:
        return None
    value = buckets[-1].amount
    before = _comparable(buckets)
    if len(before) < COLD_BELOW:
        return _against_plan(meter, value, planned)
    usual = median(before)
    z = robust_z(value, before)
    if not (z > MAX_Z and value > usual * (1 + MIN_INCREASE) and value - usual > meter.least):
        return None
    message = (
        f"{_name(meter)} grew by {meter.show(value)} in the last hour, where {meter.show(usual)} was usual in the "
        f"{len(before)} hours before."
    )
    return _verdict(meter, message, value, usual, z if math.isfinite(z) else None)


def _comparable(buckets: Sequence[Bucket]) -> list[float]:
    """Known amounts of the hours before the latest, back to where its setting began."""
    setting = buckets[-1].setting
    amounts: list[float] = []
    for bucket in reversed(buckets[:-1]):
        if bucket.setting != setting or len(amounts) == WINDOW:
            break
        if bucket.amount is not None:
            amounts.append(bucket.amount)
    return amounts


def _against_plan(meter: Meter, value: float, planned: float | None) -> Verdict | None:
    if planned is None or value <= planned * PLAN_RATIO or value - planned <= meter.least:
        return None
    message = f"{_name(meter)} grew by {meter.show(value)} in the last hour, where {meter.show(planned)} is planned."
    return _verdict(meter, message, value, planned, None)


def _name(meter: Meter) -> str:
    name = meter.name.replace("_", " ")
    return f"{name[0].upper()}{name[1:]}"


def _verdict(meter: Meter, message: str, value: float, usual: float, z: float | None) -> Verdict:
    evidence = {"meter": meter.name, "unit": meter.unit, "value": value, "usual": usual, "z": z}
    return Verdict(
        kind="growth", action=Action.ALERT, reason=f"abnormal_{meter.name}", message=message, evidence=evidence
    )
