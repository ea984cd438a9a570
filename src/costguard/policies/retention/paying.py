"""Whether a move pays: it is put off until it is free, or not made where it costs more than it saves."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timezone
from fractions import Fraction

from costguard.keep import Checkpoint
from costguard.policies.retention.decision import Decision, Move, Tiers
from costguard.policies.retention.wanted import Retention
from costguard.prices.storage import DAY_NS, DAYS_PER_MONTH, StorageClass
from costguard.units import format_money


def expire(c: Checkpoint, now_ns: int, tiers: Tiers) -> Decision:
    """Delete it everywhere, or put that off to the day on which it is free."""
    expired = Decision(id=c.id, move=Move.EXPIRE, rule="expire_after", reason="no rule keeps it and its time is over")
    if c.cold_since_ns is None or tiers.cold is None or c.size_bytes is None:
        return expired
    fee = tiers.cold.early_usd(c.size_bytes, now_ns - c.cold_since_ns)
    if fee == 0:
        return replace(expired, usd_fee=fee, usd_saved_per_month=tiers.cold.month_usd(c.size_bytes))
    free_at_ns = tiers.cold.free_at_ns(c.cold_since_ns)
    reason = f"put off: deleted on {_day(free_at_ns)} it is free, now it costs {format_money(fee)}"
    return Decision(id=c.id, move=Move.KEEP, rule="deferred", reason=reason, usd_fee=fee, free_at_ns=free_at_ns)


def _day(at_ns: int) -> date:
    """The first day (UTC) that begins at an instant or after it."""
    return datetime.fromtimestamp(-(-at_ns // DAY_NS) * DAY_NS // 10**9, timezone.utc).date()


def is_due_for_stripping(c: Checkpoint, retention: Retention, now_ns: int, tiers: Tiers) -> bool:
    """Whether it is old enough to do without its optimizer state, and has one."""
    if retention.strip_after_ns is None or c.stripped or not c.strippable:
        return False
    moves = tiers.has_cold and retention.demote == "rest"
    return moves and now_ns - c.saved_ns >= retention.strip_after_ns


def strip(c: Checkpoint, left_ns: int | None, now_ns: int, tiers: Tiers) -> Decision:
    """Leave its optimizer state away, unless the fees alone are more than all that its storage costs until its end.

    How small it gets is not known before it is done, so nothing is assumed of it.
    """
    stripped = Decision(
        id=c.id,
        move=Move.STRIP,
        rule="strip_optimizer_after",
        reason="no rule keeps it, and it is old enough to do without its optimizer state",
    )
    cold, here = tiers.cold, tiers.hot if c.tier == "hot" else tiers.cold
    if cold is not None and c.tier == "cold" and cold.restore_hours:
        reason = f"it keeps its optimizer state: what is in {cold.name} cannot be read at once"
        return replace(stripped, move=Move.KEEP, rule="archived", reason=reason)
    if cold is None or here is None or c.size_bytes is None:
        return stripped
    fees = [cold.put_usd(_requests(c.size_bytes, tiers)), cold.read_usd(c.size_bytes if c.tier == "cold" else 0)]
    fee = sum((each for each in fees if each is not None), Fraction(0))
    # What is left of a cold copy's minimum is billed anyway: until it is over, stripping saves nothing.
    wait_ns = 0 if c.cold_since_ns is None else max(0, cold.free_at_ns(c.cold_since_ns) - now_ns)
    priced = replace(stripped, usd_fee=None if None in fees else fee)
    if left_ns is not None:
        most = here.month_usd(c.size_bytes) * max(0, left_ns - wait_ns) / (DAYS_PER_MONTH * DAY_NS)
        if most <= fee:
            days = f"within the {left_ns / DAY_NS:.1f} days it has left"
            reason = f"leaving its optimizer state away costs {_least(priced, fee)} and would not pay {days}"
            return replace(priced, move=Move.KEEP, rule="break_even", reason=reason)
    return _put_off(priced, fee, c, cold, now_ns) if wait_ns else priced


def _put_off(priced: Decision, fee: Fraction, c: Checkpoint, cold: StorageClass, now_ns: int) -> Decision:
    """Strip it when its full copy may go for nothing."""
    put_ns = c.cold_since_ns or 0
    free_at_ns, early = cold.free_at_ns(put_ns), cold.early_usd(c.size_bytes or 0, now_ns - put_ns)
    told = f"stripped on {_day(free_at_ns)} it costs {_least(priced, fee)}, now {_least(priced, fee + early)}"
    return replace(
        priced,
        move=Move.KEEP,
        rule="deferred",
        reason=f"put off: {told}",
        usd_fee=None if priced.usd_fee is None else fee + early,
        free_at_ns=free_at_ns,
    )


def _least(priced: Decision, amount: Fraction) -> str:
    """An amount in words, a lower bound where a part of it is unknown."""
    return f"{'at least ' if priced.usd_fee is None else ''}{format_money(amount)}"


def _requests(size_bytes: int, tiers: Tiers) -> int:
    """Writing requests of a copy of so many bytes."""
    return -(-size_bytes // tiers.part_bytes) + 2


def demote(c: Checkpoint, left_ns: int | None, tiers: Tiers) -> Decision:
    """Move it if that pays over the life that is left to it."""
    demoted = Decision(id=c.id, move=Move.DEMOTE, rule="rest", reason="no rule keeps it hot")
    if c.tier == "both":
        return replace(demoted, reason="no rule keeps it hot and its cold copy is there")
    if tiers.hot is None or tiers.cold is None or c.size_bytes is None:
        return demoted
    requests = _requests(c.size_bytes, tiers)
    saved = tiers.hot.month_usd(c.size_bytes) - tiers.cold.month_usd(c.size_bytes)
    fee = tiers.cold.put_usd(requests)
    unknown = "" if fee is not None else f"; what {tiers.cold.name} asks for its {requests} requests is unknown"
    even = tiers.cold.break_even_days(tiers.hot, size_bytes=max(1, c.size_bytes), requests=requests)
    if even is None or (left_ns is not None and Fraction(left_ns, DAY_NS) < even):
        left = "" if left_ns is None else f" within the {left_ns / DAY_NS:.1f} days it has left"
        least = "" if fee is not None else "at least "
        days = "" if even is None else f"; it would take {least}{float(even):.1f} days{unknown}"
        reason = f"moving it to {tiers.cold.name} would not pay{left}{days}"
        return Decision(id=c.id, move=Move.KEEP, rule="break_even", reason=reason)
    return replace(demoted, reason=demoted.reason + unknown, usd_saved_per_month=saved, usd_fee=fee)
