"""Unit prices with validity, source and date, and the exact rate in force at an instant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from costguard.errors import config_error
from costguard.units import NS_PER_HOUR, Money, parse_money, plain

GPU_HOUR = "gpu_hour"
HOUR = "hour"
MODES = ("on_demand", "reserved", "spot", "owned")


def price_argument(owner: str, option: str, value: Money) -> Decimal:
    """Read a price argument, or say in one sentence what is wrong with it.

    Raises:
        ConfigError: If `value` is not a finite amount of at least 0.
    """
    try:
        return parse_money(value)
    except ValueError as why:
        raise config_error(f"{owner}({option}={value!r}): {why}; expected US dollars such as 2.49 or '2.49'.") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What one unit costs during one interval.

    Args:
        amount: Money per unit, as number or text, at least 0.
        unit: `gpu_hour` (one paid device), `hour` (the whole allocation, divided by its paid devices), or the
            name of another meter's unit such as `token`.
        mode: `on_demand`, `reserved`, `spot` or `owned`.
        valid_from: First instant at which it holds, ISO 8601 (UTC where it names no zone); from ever if `None`.
        valid_until: First instant at which it holds no more; for ever if `None`.
        source: Who says so, for example a price page or an invoice.
        retrieved: Date on which the source was read, ISO 8601.

    Raises:
        ConfigError: If a value cannot be used.
    """

    amount: Money
    unit: str = GPU_HOUR
    mode: str = "on_demand"
    valid_from: str | None = None
    valid_until: str | None = None
    source: str = "user"
    retrieved: str | None = None

    def __post_init__(self) -> None:
        price_argument("Price", "amount", self.amount)
        if self.mode not in MODES:
            raise config_error(f"Price(mode={self.mode!r}): unknown mode; expected one of {', '.join(MODES)}.")
        start, end = self.interval_ns
        if end is not None and start is not None and end <= start:
            raise config_error(
                f"Price(valid_until={self.valid_until!r}): not after valid_from={self.valid_from!r}; swap them."
            )
        if self.retrieved is not None:
            try:
                date.fromisoformat(self.retrieved)
            except (ValueError, TypeError):
                raise config_error(
                    f"Price(retrieved={self.retrieved!r}): not a date; expected one such as '2026-11-30'."
                ) from None

    @property
    def exact(self) -> Fraction:
        """The amount as an exact rational."""
        return _exact(self.amount)

    @property
    def interval_ns(self) -> tuple[int | None, int | None]:
        """Validity as nanoseconds since the Unix epoch, each end `None` where it is open."""
        return _instant_ns("valid_from", self.valid_from), _instant_ns("valid_until", self.valid_until)

    def holds_at(self, wall_ns: int) -> bool:
        """Whether this price is in force at an instant."""
        start, end = self.interval_ns
        return (start is None or wall_ns >= start) and (end is None or wall_ns < end)

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {
            "amount": plain(parse_money(self.amount)),
            "unit": self.unit,
            "mode": self.mode,
            "from": self.valid_from,
            "until": self.valid_until,
            "source": self.source,
            "retrieved": self.retrieved,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Price:
        """Read what `to_json` wrote."""
        return Price(
            amount=data["amount"],
            unit=data["unit"],
            mode=data["mode"],
            valid_from=data["from"],
            valid_until=data["until"],
            source=data["source"],
            retrieved=data["retrieved"],
        )


@lru_cache(maxsize=1024)
def _exact(amount: Money) -> Fraction:
    return Fraction(parse_money(amount))


@lru_cache(maxsize=1024)
def _instant_ns(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except (ValueError, AttributeError):
        raise config_error(
            f"Price({option}={text!r}): not an instant; expected one such as '2026-12-01T00:00:00Z'."
        ) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=timezone.utc)
    since = instant - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000


@dataclass(frozen=True, slots=True)
class Rate:
    """Exact money per unit during an interval of wall time; `per_unit` is `None` where nothing is known."""

    start_ns: int
    end_ns: int
    per_unit: Fraction | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceBook:
    """All prices of a run.

    Args:
        prices: Prices; of two that hold at one instant for one unit, the one with the later start wins,
            so that a change is one line more.
        currency: ISO 4217 code of every amount.
    """

    prices: Sequence[Price] = field(default_factory=tuple)
    currency: str = "USD"

    @staticmethod
    def for_run(owner: str, usd_per_gpu_hour: Money | None, usd_per_hour: Money | None) -> PriceBook:
        """Make the book that one of the two short arguments stands for.

        Raises:
            ConfigError: If both are given, or one cannot be used.
        """
        if usd_per_gpu_hour is not None and usd_per_hour is not None:
            raise config_error(
                f"{owner}(usd_per_gpu_hour={usd_per_gpu_hour!r}, usd_per_hour={usd_per_hour!r}): two prices for one "
                "thing; give usd_per_gpu_hour (each paid GPU) or usd_per_hour (the whole allocation), not both."
            )
        if usd_per_gpu_hour is not None:
            amount = price_argument(owner, "usd_per_gpu_hour", usd_per_gpu_hour)
            return PriceBook(prices=(Price(amount=plain(amount), unit=GPU_HOUR),))
        if usd_per_hour is not None:
            amount = price_argument(owner, "usd_per_hour", usd_per_hour)
            return PriceBook(prices=(Price(amount=plain(amount), unit=HOUR),))
        return PriceBook()

    def changes_ns(self) -> tuple[int, ...]:
        """Every instant at which some price begins or ends, ascending."""
        return tuple(sorted({end for p in self.prices for end in p.interval_ns if end is not None}))

    def same_as(self, other: PriceBook) -> bool:
        """Whether both say the same prices, however they are written."""

        def said(book: PriceBook) -> tuple[Any, ...]:
            return book.currency, *((parse_money(p.amount), p.unit, p.mode, p.interval_ns) for p in book.prices)

        return said(self) == said(other)

    def device_rates(self, start_ns: int, end_ns: int, paid_devices: int) -> Iterator[Rate]:
        """Money per device-nanosecond between two instants, split where a price changes.

        Args:
            start_ns: Wall clock, nanoseconds since the epoch.
            end_ns: Wall clock, not before `start_ns`.
            paid_devices: Devices that share the allocation's price, at least 1.
        """
        for begin, end in self._intervals(start_ns, end_ns):
            yield Rate(begin, end, self._per_device_ns(begin, paid_devices))

    def device_money(self, start_ns: int, end_ns: int, devices: int, paid_devices: int) -> Fraction | None:
        """Exact money for holding devices between two instants, `None` if some of that time has no price.

        Args:
            start_ns: Wall clock, nanoseconds since the epoch.
            end_ns: Wall clock, not before `start_ns`.
            devices: Devices held.
            paid_devices: Devices that share the allocation's price, at least 1.
        """
        total = Fraction(0)
        for rate in self.device_rates(start_ns, end_ns, paid_devices):
            if rate.per_unit is None:
                return None
            total += rate.per_unit * (rate.end_ns - rate.start_ns) * devices
        return total

    def unit_price(self, unit: str, wall_ns: int) -> Fraction | None:
        """Exact money per `unit` at an instant, `None` where no price is known."""
        price = self._price(unit, wall_ns)
        return price.exact if price else None

    def _intervals(self, start_ns: int, end_ns: int) -> Iterable[tuple[int, int]]:
        cuts = [start_ns, *(c for c in self.changes_ns() if start_ns < c < end_ns), end_ns]
        return zip(cuts, cuts[1:], strict=False)

    def _per_device_ns(self, wall_ns: int, paid_devices: int) -> Fraction | None:
        device = self._price(GPU_HOUR, wall_ns)
        if device:
            return device.exact / NS_PER_HOUR
        whole = self._price(HOUR, wall_ns)
        return whole.exact / NS_PER_HOUR / paid_devices if whole else None

    def _price(self, unit: str, wall_ns: int) -> Price | None:
        holding = [p for p in self.prices if p.unit == unit and p.holds_at(wall_ns)]
        return max(holding, key=lambda p: p.interval_ns[0] or 0) if holding else None

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads back."""
        return {"currency": self.currency, "prices": [p.to_json() for p in self.prices]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PriceBook:
        """Read what `to_json` wrote."""
        return PriceBook(prices=tuple(Price.from_json(p) for p in data["prices"]), currency=data["currency"])
