"""A receipt's total split into parts that do not overlap, and columns whose shown amounts add up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from costguard.units import NS_PER_HOUR, format_money, round_shares

OUTCOMES = ("kept", "rework", "skipped", "stalled")
_OVERHEAD = frozenset({"validation", "train", "unexplained"})
_LABELS = {"kept": "useful compute", "train": "train, not judged", "unexplained": "not broken down"}


def at(value: Any, *path: str) -> Any:
    """Follow keys into nested mappings; `None` where one is missing."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def label(key: str) -> str:
    """Name a part for a person."""
    return _LABELS.get(key, key.replace("_", " "))


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the whole that no other piece overlaps.

    Args:
        key: Outcome of train time, any other activity, a meter, or `unexplained`.
        kind: `useful`, `overhead` or `waste`.
        ns: Device time, `None` if the piece has none (a meter).
        money: Price, `None` if unpriced.
    """

    key: str
    kind: str
    ns: Fraction | None
    money: Fraction | None


def _known(amounts: Mapping[str, Any] | None) -> dict[str, Fraction]:
    return {key: Fraction(value) for key, value in (amounts or {}).items() if value is not None}


def _leaves(activities: Any, outcomes: Any, whole: Fraction, meters: Any = None) -> dict[str, Fraction]:
    """Split `whole` so that the pieces add up to it exactly, whatever the receipt leaves out."""
    leaves, rest, noise = _known(outcomes), _known(activities), abs(whole) / 10**9
    unjudged = rest.pop("train", Fraction(0)) - sum(leaves.values())
    leaves |= rest | ({"train": unjudged} if unjudged > noise else {})
    extra = _known({name: amount for name, amount in (meters or {}).items() if name != "device"})
    if sum(extra.values()) <= whole - sum(leaves.values()) + noise:
        leaves |= {f"{name} meter" if name in leaves else name: amount for name, amount in extra.items()}
    missing = whole - sum(leaves.values())
    if leaves and abs(missing) <= noise:
        leaves[max(leaves, key=lambda key: leaves[key])] += missing
    elif missing:
        leaves["unexplained"] = missing
    return {key: amount for key, amount in leaves.items() if amount or key == "kept"}


def _kind(key: str, on_device: bool) -> str:
    """Device time is waste unless it was kept or validated, as in the metric `costguard/waste_ratio`."""
    if key == "kept":
        return "useful"
    return "overhead" if key in _OVERHEAD or not on_device else "waste"


def split(receipt: Mapping[str, Any]) -> list[Part]:
    """Split a receipt's device time and money, useful compute first, then by size."""
    time, spend, total = at(receipt, "time"), at(receipt, "spend"), at(receipt, "spend", "total")
    elapsed = Fraction(at(time, "elapsed_device_ns") or 0)
    ns = _leaves(at(time, "activities_ns"), at(time, "outcomes_ns"), elapsed)
    money: dict[str, Fraction] = {}
    if total is not None:
        by_activity, by_outcome = at(spend, "by_activity"), at(spend, "by_outcome")
        money = _leaves(by_activity, by_outcome, Fraction(total), at(spend, "by_meter"))
    parts = [Part(key, _kind(key, key in ns), ns.get(key), money.get(key)) for key in ns | money]
    return sorted(parts, key=lambda part: (part.key != "kept", -(part.money or 0), -(part.ns or 0)))


@dataclass(frozen=True, slots=True)
class Column:
    """Amounts that are rounded together, so that what is shown adds up to the total that is shown.

    Args:
        exact: Amounts by key.
        pattern: How one unit looks, with 1.00 for the number, such as `$1.00`.
        places: Decimal places shown.
    """

    exact: Mapping[str, Fraction]
    pattern: str
    places: int

    def text(self, *keys: str) -> str:
        """Show the sum of some amounts, or of all if no key is named; never a false zero."""
        known = [key for key in keys or self.exact if key in self.exact]
        if not known:
            return "unknown"
        rounded = round_shares(self.exact, self.places)
        value = sum(rounded[key] for key in known)
        if value == 0 and any(self.exact[key] for key in known):
            return "<" + self.pattern.replace("1.00", f"{10**-self.places:.{self.places}f}")
        return self.pattern.replace("1.00", f"{value:,.{self.places}f}")


def _places(whole: float) -> int:
    return min(9, max(2, 3 - math.floor(math.log10(whole)))) if whole > 0 else 2


def column(amounts: Mapping[str, Fraction], currency: str | None, unit: str = "") -> Column:
    """Round money in a currency (cents from one unit up, else four digits), or hours if there is none."""
    whole = float(sum(amounts.values()))
    if currency is None:
        return Column(amounts, f"1.00{unit}", _places(whole))
    return Column(amounts, format_money("1", currency), 2 if whole >= 1 else _places(whole))


def money_column(parts: Iterable[Part], currency: str) -> Column:
    """Money of the parts that have a price."""
    return column({part.key: part.money for part in parts if part.money is not None}, currency)


def hours_column(parts: Iterable[Part]) -> Column:
    """Device-hours of the parts that took device time."""
    return column({part.key: part.ns / NS_PER_HOUR for part in parts if part.ns is not None}, None)


def percent_column(amounts: Mapping[str, Fraction]) -> Column:
    """Shares of the sum of some amounts, with one decimal."""
    whole = sum(amounts.values()) or Fraction(1)
    return Column({key: 100 * amount / whole for key, amount in amounts.items()}, "1.00%", 1)


def value_of(part: Part, priced: bool) -> Fraction:
    """Give a part's size in what the page counts: money where there is a price, else device-hours."""
    return (part.money if priced else part.ns and part.ns / NS_PER_HOUR) or Fraction(0)


def percent_of(share: Fraction | float | None) -> str | None:
    """Show a share in running text, without a false zero; `None` stays `None`."""
    if share is None:
        return None
    percent = float(100 * share)
    return "<0.1%" if 0 < percent < 0.1 else f"{percent:.0f}%" if percent >= 10 else f"{percent:.1f}%"
