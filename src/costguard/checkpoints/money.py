"""What one checkpoint costs: the stall of its save, its requests, its storage in each tier, and letting it go early."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from costguard.checkpoints.digest import part_bytes_for
from costguard.checkpoints.inventory import Record
from costguard.policies.retention import Tiers
from costguard.units import NS_PER_HOUR, NS_PER_S

_DAY_NS = 24 * NS_PER_HOUR


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCost:
    """Exact dollars of one checkpoint; each is `None` where a price it needs is unknown.

    Args:
        blocked_usd: Device time that its save held up.
        requests_usd: Writing requests of its cold copy.
        stored_usd: Storage from its save until now, in both tiers.
        usd_per_month: Storage during the next 30 days where it is now.
        early_usd: What deleting its cold copy now would still be billed.
        read_usd: What restoring it once would cost, egress apart.
        restore_hours: Hours until a restore could begin to read.
    """

    blocked_usd: Fraction | None
    requests_usd: Fraction | None
    stored_usd: Fraction | None
    usd_per_month: Fraction | None
    early_usd: Fraction | None
    read_usd: Fraction | None
    restore_hours: float | None


def cost_of(
    record: Record, tiers: Tiers, now_ns: int, *, usd_per_hour: Fraction | None = None, released_ns: int | None = None
) -> CheckpointCost:
    """Work out what a checkpoint costs.

    Args:
        record: The checkpoint.
        tiers: The two places and their prices.
        now_ns: Now, ns since the epoch.
        usd_per_hour: Price of the whole allocation an hour, `None` if unknown.
        released_ns: When its hot copy was let go, ns since the epoch; of a cold one, when its cold copy was
            written if `None`.

    Returns:
        Its cost. The hot tier of a checkpoint that is cold counts until it was let go.
    """
    size, cold_since = record.size_bytes, record.cold_since_ns
    blocked = None
    if record.blocked_ns is not None and usd_per_hour is not None:
        blocked = usd_per_hour * record.blocked_ns / NS_PER_HOUR
    hot_end = now_ns if record.tier != "cold" else released_ns or cold_since or now_ns
    hot = tiers.hot.life_usd(size, _days(hot_end - record.saved_ns)) if tiers.hot else None
    if cold_since is None:
        month = tiers.hot.month_usd(size) if tiers.hot else None
        zero = Fraction(0)
        return CheckpointCost(
            blocked_usd=blocked,
            requests_usd=zero,
            stored_usd=hot,
            usd_per_month=month,
            early_usd=zero,
            read_usd=zero,
            restore_hours=0.0,
        )
    cold = tiers.cold
    held = cold.life_usd(size, 0) - cold.early_usd(size, now_ns - cold_since) if cold else None
    if cold and cold_since + cold.minimum_days * _DAY_NS <= now_ns:
        held = cold.month_usd(size) * _days(now_ns - cold_since) / 30
    return CheckpointCost(
        blocked_usd=blocked,
        requests_usd=cold.put_usd(requests_of(record, tiers.part_bytes)) if cold else None,
        stored_usd=None if hot is None or held is None else hot + held,
        usd_per_month=_month(record, tiers),
        early_usd=cold.early_usd(size, now_ns - cold_since) if cold else None,
        read_usd=cold.read_usd(size) if cold else None,
        restore_hours=cold.restore_hours if cold else None,
    )


def requests_of(record: Record, part_bytes: int) -> int:
    """Writing requests of one demotion: a file of several parts takes two more than it has parts; one manifest."""
    requests = 1
    for fact in record.fingerprint:
        if fact.kind == "file":
            parts = max(1, -(-fact.size // part_bytes_for(fact.size, part_bytes)))
            requests += parts if parts == 1 else parts + 2
    return requests


def _month(record: Record, tiers: Tiers) -> Fraction | None:
    used = [tiers.cold] if record.tier == "cold" else [tiers.hot, tiers.cold]
    months = [tier.month_usd(record.size_bytes) if tier else None for tier in used]
    return None if None in months else sum((m for m in months if m is not None), Fraction(0))


def _days(interval_ns: int) -> Fraction:
    return Fraction(max(0, interval_ns), 24 * 3600 * NS_PER_S)
