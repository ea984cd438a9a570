"""What carrying out a plan means in money and in time, checkpoint by checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from costguard.checkpoints.inventory import Record
from costguard.checkpoints.money import requests_of
from costguard.policies.retention import Decision, Move, Tiers

_NOTHING = Fraction(0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prospect:
    """Exact dollars and hours of one decision; each is `None` where a price it needs is unknown.

    Args:
        usd_saved_per_month: What 30 days cost less from then on.
        usd_fee: What carrying it out costs once: requests, or the rest of a minimum duration.
        read_usd: What bringing it back once would cost then, egress apart; `None` too where nothing is left.
        restore_hours: Hours until that could begin; `None` too where nothing is left.
    """

    usd_saved_per_month: Fraction | None
    usd_fee: Fraction | None
    read_usd: Fraction | None
    restore_hours: float | None


def prospect(decision: Decision, record: Record, tiers: Tiers, now_ns: int) -> Prospect:
    """Work out what a decision means.

    Args:
        decision: What is to become of a checkpoint.
        record: The checkpoint as it is now.
        tiers: The two places and their prices.
        now_ns: Now, ns since the epoch.
    """
    size, cold = record.size_bytes, tiers.cold
    stays_hot = decision.move is Move.KEEP and record.tier != "cold"
    read, hours = (cold.read_usd(size), cold.restore_hours) if cold else (None, None)
    if stays_hot:
        read, hours = _NOTHING, 0.0
    if decision.move is Move.EXPIRE:
        read, hours = None, None
    return Prospect(
        usd_saved_per_month=_saved(decision.move, record, tiers),
        usd_fee=_fee(decision.move, record, tiers, now_ns),
        read_usd=read,
        restore_hours=hours,
    )


def _saved(move: Move, record: Record, tiers: Tiers) -> Fraction | None:
    hot = tiers.hot.month_usd(record.size_bytes) if tiers.hot else None
    cold = tiers.cold.month_usd(record.size_bytes) if tiers.cold else None
    if move is Move.KEEP:
        return _NOTHING
    if move is Move.DEMOTE:
        return hot if record.tier == "both" or hot is None else None if cold is None else hot - cold
    return total([hot if record.tier != "cold" else _NOTHING, cold if record.tier != "hot" else _NOTHING])


def _fee(move: Move, record: Record, tiers: Tiers, now_ns: int) -> Fraction | None:
    if move is Move.DEMOTE and record.tier == "hot":
        return tiers.cold.put_usd(requests_of(record, tiers.part_bytes)) if tiers.cold else None
    if move is Move.EXPIRE and record.cold_since_ns is not None:
        return tiers.cold.early_usd(record.size_bytes, now_ns - record.cold_since_ns) if tiers.cold else None
    return _NOTHING


def total(amounts: Iterable[Fraction | None]) -> Fraction | None:
    """Their sum, `None` if one of them is unknown."""
    known = list(amounts)
    return None if None in known else sum((a for a in known if a is not None), _NOTHING)
