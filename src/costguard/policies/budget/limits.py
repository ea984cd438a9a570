"""What may be spent at most, and what is said on the way there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import Literal

from costguard.days import zone_argument
from costguard.errors import config_error
from costguard.records import Amount
from costguard.units import NS_PER_HOUR, Money, format_money, parse_money

Basis = Literal["billed", "effective"]
Measure = Literal["spent", "forecast", "forecast_high"]
ThresholdAction = Literal["log", "alert", "stop"]

MEASURES: tuple[str, ...] = ("spent", "forecast", "forecast_high")
_ACTIONS = ("log", "alert", "stop")


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """Says or does something when a share of the limit is reached.

    Args:
        at: Share of the limit, above 0; at most 1 for what is spent.
        action: `log`, `alert` or `stop`; a stop on what is spent is made early enough for its own price.
        on: `spent`, `forecast` (the median) or `forecast_high` (its 90th percentile).

    Raises:
        ConfigError: If a value cannot be used.
    """

    at: float
    action: ThresholdAction = "alert"
    on: Measure = "spent"

    def __post_init__(self) -> None:
        if self.on not in MEASURES:
            raise config_error(f"Threshold(on={self.on!r}): unknown; expected one of {', '.join(MEASURES)}.")
        if self.action not in _ACTIONS:
            raise config_error(f"Threshold(action={self.action!r}): unknown; expected one of {', '.join(_ACTIONS)}.")
        number = not isinstance(self.at, bool) and isinstance(self.at, (int, float)) and math.isfinite(self.at)
        if not number or self.at <= 0 or (self.on == "spent" and self.at > 1):
            upper = "to 1" if self.on == "spent" else "upward"
            raise config_error(
                f"Threshold(at={self.at!r}): expected a share of the limit above 0 {upper}, such as 0.8."
            )

    @property
    def share(self) -> Fraction:
        """The share as it was written: 0.95 is 95 hundredths."""
        return Fraction(str(self.at))

    @property
    def reason(self) -> str:
        """Machine-readable cause of its verdicts, such as `spent_80`."""
        return f"{self.on}_{self.at * 100:.10g}"


DEFAULT_THRESHOLDS: tuple[Threshold, ...] = (
    Threshold(at=0.5, action="log"),
    Threshold(at=0.8, action="alert"),
    Threshold(at=0.95, action="alert"),
    Threshold(at=1.0, action="stop"),
    Threshold(at=1.0, action="alert", on="forecast"),
    Threshold(at=1.0, action="log", on="forecast_high"),
)


def limit_argument(owner: str, option: str, value: Money) -> Fraction:
    """Read a limit, or say in one sentence what is wrong with it.

    Args:
        owner: Whose argument it is.
        option: `limit_usd` or `limit_gpu_hours`.
        value: A finite amount above 0.

    Raises:
        ConfigError: If it is none.
    """
    try:
        amount = parse_money(value)
        if amount == 0:
            raise ValueError("nothing may be spent")
    except ValueError as why:
        what = "US dollars such as 250 or '2.49'" if option == "limit_usd" else "GPU-hours such as 100 or '0.5'"
        raise config_error(f"{owner}({option}={value!r}): {why}; expected {what}.") from None
    return Fraction(amount)


def check_limits(owner: str, limit_usd: Money | None, limit_gpu_hours: Money | None) -> None:
    """See to it that there is exactly one limit, and that it can be used.

    Raises:
        ConfigError: If there are none or two, or the one cannot be used.
    """
    if limit_usd is not None and limit_gpu_hours is not None:
        raise config_error(
            f"{owner}(limit_usd={limit_usd!r}, limit_gpu_hours={limit_gpu_hours!r}): two limits in one budget; give "
            "one of them, or two Budget objects."
        )
    if limit_usd is not None:
        limit_argument(owner, "limit_usd", limit_usd)
    elif limit_gpu_hours is not None:
        limit_argument(owner, "limit_gpu_hours", limit_gpu_hours)
    else:
        raise config_error(f"{owner}(): no limit; give limit_usd=250, or limit_gpu_hours=100, which needs no price.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What may be spent at most.

    Args:
        limit_usd: Most US dollars, above 0; needs prices.
        limit_gpu_hours: Most hours of paid devices, above 0; needs no price. One of the two.
        scope: Whose spend counts: `run`, `stage`, `project`, `day` (what is spent on one calendar day), or
            `tag:NAME` (all runs that have the same value of this tag).
        time_zone: IANA name of the zone whose midnight begins a day.
        basis: `billed` (what the vendor charges) or `effective` (what is prepaid is shared out over its use).
        thresholds: What is said and done on the way. The limit itself always stops.
        usd_rate: US dollars for one unit of the prices' currency, where they are in another one.
        usd_rate_date: Date of that rate, ISO 8601.

    Raises:
        ConfigError: If a value cannot be used.
    """

    limit_usd: Money | None = None
    limit_gpu_hours: Money | None = None
    scope: str = "run"
    time_zone: str = "UTC"
    basis: Basis = "billed"
    thresholds: Sequence[Threshold] = DEFAULT_THRESHOLDS
    usd_rate: Money | None = None
    usd_rate_date: str | None = None

    def __post_init__(self) -> None:
        check_limits("Budget", self.limit_usd, self.limit_gpu_hours)
        tag = self.scope.partition(":")[2] if isinstance(self.scope, str) and self.scope.startswith("tag:") else ""
        if self.scope not in ("run", "stage", "project", "day") and not tag:
            raise config_error(f"Budget(scope={self.scope!r}): unknown; expected run, stage, project, day or tag:NAME.")
        if self.basis not in ("billed", "effective"):
            raise config_error(f"Budget(basis={self.basis!r}): unknown; expected billed or effective.")
        zone_argument("Budget", "time_zone", self.time_zone)
        listed = isinstance(self.thresholds, (list, tuple)) and all(isinstance(t, Threshold) for t in self.thresholds)
        if not listed:
            raise config_error(
                f"Budget(thresholds={self.thresholds!r}): expected Threshold objects, such as [Threshold(at=0.8)]."
            )
        object.__setattr__(self, "thresholds", tuple(self.thresholds))
        self._check_rate()

    def _check_rate(self) -> None:
        if (self.usd_rate is None) != (self.usd_rate_date is None):
            raise config_error(
                f"Budget(usd_rate={self.usd_rate!r}, usd_rate_date={self.usd_rate_date!r}): an exchange rate is worth "
                "nothing without its date; give both, such as usd_rate='1.08', usd_rate_date='2026-11-30'."
            )
        if self.usd_rate is None:
            return
        try:
            if parse_money(self.usd_rate) == 0:
                raise ValueError("zero")
            date.fromisoformat(str(self.usd_rate_date))
        except ValueError:
            raise config_error(
                f"Budget(usd_rate={self.usd_rate!r}, usd_rate_date={self.usd_rate_date!r}): not a rate above 0 with "
                "its date; expected for example usd_rate='1.08', usd_rate_date='2026-11-30'."
            ) from None

    @property
    def in_money(self) -> bool:
        """Whether money is limited; else it is device time."""
        return self.limit_usd is not None

    @property
    def limit(self) -> Fraction:
        """The limit, exactly, in US dollars or GPU-hours."""
        return Fraction(parse_money(self.limit_usd if self.limit_usd is not None else self.limit_gpu_hours or 0))

    @property
    def key(self) -> str:
        """Name of what is limited, the same whatever the limit is."""
        return f"{self.scope}/{'usd' if self.in_money else 'gpu_hours'}/{self.basis}"

    @property
    def stop_line(self) -> Fraction:
        """Where it stops: the limit, or less where a threshold says so."""
        shares = [t.share for t in self.thresholds if t.on == "spent" and t.action == "stop"]
        return self.limit * min([Fraction(1), *shares])

    def measure(self, amount: Amount | None) -> Fraction | None:
        """An amount in the limit's unit, exactly; `None` if it is unknown."""
        if amount is None:
            return None
        if not self.in_money:
            return Fraction(amount.device_ns, NS_PER_HOUR)
        if amount.money is None:
            return None
        return amount.money if self.usd_rate is None else amount.money * Fraction(parse_money(self.usd_rate))

    def show(self, amount: Fraction) -> str:
        """An amount in the limit's unit, for a person."""
        if self.in_money:
            return format_money(amount)
        return f"{float(amount):,.2f} GPU-hours" if amount >= 1 else f"{float(amount):.4g} GPU-hours"


def check_enforceable(budget: Budget, *, priced: bool, currency: str = "USD") -> None:
    """See to it, at the start, that a budget can be enforced with the prices there are.

    Args:
        budget: The budget.
        priced: Whether device time has a price.
        currency: ISO 4217 code of the prices.

    Raises:
        ConfigError: If it cannot.
    """
    if not budget.in_money:
        return
    if not priced:
        raise config_error(
            f"Budget(limit_usd={budget.limit_usd!r}): what a GPU costs is unknown, so a budget in money cannot be "
            'kept; use limit_gpu_hours or give a price, such as usd_per_gpu_hour="2.49".'
        )
    if currency != "USD" and budget.usd_rate is None:
        raise config_error(
            f"Budget(limit_usd={budget.limit_usd!r}): the prices are in {currency}; add what one {currency} is in US "
            "dollars and since when (usd_rate, usd_rate_date), or use limit_gpu_hours."
        )
    if currency == "USD" and budget.usd_rate is not None:
        raise config_error(
            f"Budget(usd_rate={budget.usd_rate!r}): the prices are in US dollars already; remove usd_rate."
        )


def check_distinct(budgets: Sequence[Budget]) -> None:
    """See to it that no two budgets limit the same thing.

    Raises:
        ConfigError: If two do.
    """
    keys = [budget.key for budget in budgets]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        scope, unit, _ = twice.rsplit("/", 2)
        raise config_error(f"Budget(scope={scope!r}): two limits in {unit} for one scope; keep the lower one.")
