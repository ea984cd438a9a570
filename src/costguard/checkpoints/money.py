"""What one checkpoint costs: the stall of its save, its requests, its storage in each tier, and letting it go early."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from costguard.checkpoints.lives import Life, life_of, requests_of
from costguard.checkpoints.record import Record
from costguard.policies.retention import Tiers
from costguard.prices.storage import DAY_NS, DAYS_PER_MONTH
from costguard.units import NS_PER_HOUR

_ZERO = Fraction(0)
_MONTH_NS = DAYS_PER_MONTH * DAY_NS


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointCost:
    """Exact dollars of one checkpoint; each is `None` where a price it needs is unknown.

    Args:
        blocked_usd: Device time that its save held up.
        requests_usd: Writing requests of its cold copy.
        hot_usd: Storage on the hot disk from its save until now.
        cold_usd: Storage in the cold store until now.
        reads_usd: What reading its cold copy back has cost, egress apart: restores, and a verification by content.
        usd_per_month: Storage during the next 30 days where it is now, 0 once it is deleted.
        early_usd: What deleting its cold copy now would still be billed; of one that was deleted, what was.
        read_usd: What restoring it once would cost, egress apart.
        restore_hours: Hours until a restore could begin to read.
    """

    blocked_usd: Fraction | None
    requests_usd: Fraction | None
    hot_usd: Fraction | None
    cold_usd: Fraction | None
    reads_usd: Fraction | None
    usd_per_month: Fraction | None
    early_usd: Fraction | None
    read_usd: Fraction | None
    restore_hours: float | None

    @property
    def stored_usd(self) -> Fraction | None:
        """Storage from its save until now, in both tiers."""
        return add_known(self.hot_usd, self.cold_usd)


def add_known(*amounts: Fraction | None) -> Fraction | None:
    """Add amounts; the sum with an unknown one is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known, _ZERO) if len(known) == len(amounts) else None


def cost_of(
    record: Record, tiers: Tiers, now_ns: int, *, usd_per_hour: Fraction | None = None, reads: int | None = None
) -> CheckpointCost:
    """Work out what a checkpoint costs.

    Args:
        record: The checkpoint.
        tiers: The two places and their prices.
        now_ns: Now, ns since the epoch.
        usd_per_hour: Price of the whole allocation an hour, `None` if unknown.
        reads: How many times it was restored; what the record says if `None`.

    Returns:
        Its cost. The hot tier of a checkpoint that is cold counts until it was let go.
    """
    life = life_of(record, tiers.part_bytes)
    life = life if reads is None else replace(life, restores=reads)
    return cost_of_life(life, tiers, now_ns, usd_per_hour=usd_per_hour)


def cost_of_life(life: Life, tiers: Tiers, now_ns: int, *, usd_per_hour: Fraction | None = None) -> CheckpointCost:
    """Work out what a checkpoint costs or, if it was deleted, has cost.

    Args:
        life: The checkpoint.
        tiers: The two places and their prices.
        now_ns: Now, ns since the epoch.
        usd_per_hour: Price of the whole allocation an hour, `None` if unknown.
    """
    size, hot, cold = life.size_bytes, tiers.hot, tiers.cold
    there, copied = life.ended_ns is None, life.cold_since_ns is not None
    until_ns = now_ns if life.ended_ns is None else life.ended_ns
    held_ns, reads = life.cold_ns(until_ns), life.restores + life.checks
    known_blocked = life.blocked_ns is not None and usd_per_hour is not None
    return CheckpointCost(
        blocked_usd=Fraction(usd_per_hour or 0) * (life.blocked_ns or 0) / NS_PER_HOUR if known_blocked else None,
        requests_usd=_of(cold.put_usd(life.requests) if cold else None, copied),
        hot_usd=hot.life_usd(size, Fraction(life.hot_ns(until_ns), DAY_NS)) if hot else None,
        cold_usd=_of(cold.month_usd(size) * held_ns / _MONTH_NS if cold else None, copied),
        reads_usd=_of(cold.read_usd(size * reads) if cold else None, bool(reads)),
        usd_per_month=_month(life, tiers) if there else _ZERO,
        early_usd=_of(cold.early_usd(size, held_ns) if cold else None, copied),
        read_usd=_of(cold.read_usd(size) if cold else None, copied) if there else None,
        restore_hours=None if not there or (copied and not cold) else cold.restore_hours if cold and copied else 0.0,
    )


def _of(amount: Fraction | None, any_of_it: bool) -> Fraction | None:
    """An amount of something that there is; of nothing it is 0, whether its price is known or not."""
    return amount if any_of_it else _ZERO


def _month(life: Life, tiers: Tiers) -> Fraction | None:
    used = {"hot": [tiers.hot], "both": [tiers.hot, tiers.cold], "cold": [tiers.cold]}[life.tier]
    return add_known(*(tier.month_usd(life.size_bytes) if tier else None for tier in used))


__all__ = ["CheckpointCost", "add_known", "cost_of", "cost_of_life", "requests_of"]
