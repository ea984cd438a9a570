"""What a run's checkpoints cost in storage: money beside that of its devices, each part unknown where a price is."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from costguard.checkpoints.lives import Life, lives_in
from costguard.checkpoints.money import CheckpointCost, add_known, cost_of_life
from costguard.errors import ConfigError
from costguard.ledger.account import RunAccount
from costguard.policies.retention import Tiers
from costguard.prices import PriceBook
from costguard.prices.storage import StorageClass
from costguard.reports.saves import Save, instant, money_text
from costguard.units import NS_PER_HOUR, NS_PER_S

CURRENCY = "USD"
"""Of all prices of storage classes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """The checkpoints that a run's journal and their list know of.

    Args:
        lives: Each of them, from the oldest to the newest.
        unseen: Ids of those that are not in the list any more and of which nobody noted the end.
        source: `list` if the list could be read here; else the `journal` alone, which knows them as training left them.
        tiers: The two places by their prices.
        now_ns: Until when storage is counted, ns since the epoch.
    """

    lives: Sequence[Life]
    unseen: frozenset[str]
    source: Literal["list", "journal"]
    tiers: Tiers
    now_ns: int

    def cost(self, life: Life, at_ns: int | None = None) -> CheckpointCost:
        """What one costs in storage until now, or would until another instant."""
        return cost_of_life(life, self.tiers, self.now_ns if at_ns is None else at_ns)


def stored_by(account: RunAccount, now_ns: int) -> Stored | None:
    """Find a run's checkpoints: as its journal tells them, and as their list says that they are now.

    Args:
        account: The run.
        now_ns: Now, ns since the epoch.

    Returns:
        `None` for a run without `CheckpointTiering`.
    """
    said = [rank.facts["checkpoints"] for rank in account.ranks if "checkpoints" in rank.facts]
    if not said:
        return None
    # Of two attempts that tell of one checkpoint the later knows more.
    events = [event for rank in account.ranks for event in rank.events if event["k"] == "checkpoint"]
    told = {event["id"]: Life.from_json(event) for event in events}
    listed = _listed(said)
    lives = told if listed is None else told | _as_listed(account, said, told, listed)
    unseen = {id for id, life in told.items() if listed is not None and life.ended_ns is None and id not in listed}
    return Stored(
        lives=sorted(lives.values(), key=lambda life: (life.saved_ns, life.step, life.id)),
        unseen=frozenset(unseen),
        source="journal" if listed is None else "list",
        tiers=Tiers(hot=_class(said[-1]["hot"]), cold=_class(said[-1]["cold"]), part_bytes=said[-1]["part_bytes"]),
        now_ns=now_ns,
    )


def _listed(said: Sequence[Mapping[str, Any]]) -> dict[str, Life | None] | None:
    """What the lists say that the journal names, `None` unless all of them can be read here."""
    found: dict[str, Life | None] = {}
    for folder, part_bytes in {(each["list"], each["part_bytes"]) for each in said}:
        lives = lives_in(folder, part_bytes)
        if lives is None:
            return None
        found |= lives
    return found


def _as_listed(
    account: RunAccount,
    said: Sequence[Mapping[str, Any]],
    told: Mapping[str, Life],
    listed: Mapping[str, Life | None],
) -> dict[str, Life]:
    """What the lists say of this run's checkpoints, those included that an attempt had no time to tell of."""
    runs, begin_ns = {each["run"] for each in said}, min(rank.wall_ns for rank in account.ranks)
    found = {}
    for id, life in listed.items():
        if life is not None and id in told and told[id].ended_ns is None:
            found[id] = replace(life, due_ns=told[id].due_ns)
        elif life is not None and id not in told and life.run in runs and life.saved_ns >= begin_ns:
            found[id] = life
    return found


def _class(said: Mapping[str, Any] | None) -> StorageClass | None:
    try:
        return None if said is None else StorageClass.from_json(said)
    except ConfigError:  # of a newer costguard: its prices are unknown here
        return None


def storage_of(stored: Stored) -> dict[str, Any]:
    """The receipt's `checkpoint_costs.storage`.

    Args:
        stored: The run's checkpoints.
    """
    seen = [life for life in stored.lives if life.id not in stored.unseen]
    there = [life for life in seen if life.ended_ns is None]
    costs = [stored.cost(life) for life in seen]
    ended = [stored.cost(life) for life in seen if life.ended_ns is not None]
    parts = {
        "hot": _sum(cost.hot_usd for cost in costs),
        "cold": _sum(cost.cold_usd for cost in costs),
        "requests": _sum(cost.requests_usd for cost in costs),
        "reads": _sum(cost.reads_usd for cost in costs),
        "early": _sum(cost.early_usd for cost in ended),
    }
    return {
        "currency": CURRENCY,
        "as_of": instant(stored.now_ns),
        "source": stored.source,
        "hot_class": stored.tiers.hot.name if stored.tiers.hot else None,
        "cold_class": stored.tiers.cold.name if stored.tiers.cold else None,
        "prices": {
            "hot": stored.tiers.hot.to_json() if stored.tiers.hot else None,
            "cold": stored.tiers.cold.to_json() if stored.tiers.cold else None,
        },
        "there": len(there),
        "deleted": len(ended),
        "unseen": len(stored.unseen),
        "gb_months": {
            "hot": _gb_months(seen, stored.now_ns, Life.hot_ns),
            "cold": _gb_months(seen, stored.now_ns, Life.cold_ns),
        },
        "requests": sum(life.requests for life in seen),
        "restores": sum(life.restores for life in seen),
        "checks": sum(life.checks for life in seen),
        "money": {name: money_text(amount) for name, amount in parts.items()}
        | {"total": money_text(add_known(*parts.values()))},
        "money_per_month": money_text(_sum(stored.cost(life).usd_per_month for life in there)),
        "money_if_deleted_now": money_text(_sum(stored.cost(life).early_usd for life in there)),
    }


def _sum(amounts: Iterable[Fraction | None]) -> Fraction | None:
    return add_known(*amounts)


def _gb_months(lives: Iterable[Life], now_ns: int, duration: Callable[[Life, int], int]) -> float:
    spans = ((life, duration(life, now_ns if life.ended_ns is None else life.ended_ns)) for life in lives)
    return float(sum((life.gb_months(ns) for life, ns in spans), Fraction(0)))


def each_of(stored: Stored, saves: Sequence[Save]) -> list[dict[str, Any]]:
    """The receipt's `checkpoint_costs.each`: every checkpoint with all that it costs.

    Args:
        stored: The run's checkpoints.
        saves: The run's saves, from which it is known what each held up.
    """
    by_name: dict[tuple[int, str], list[Save]] = {}
    for save in saves:
        by_name.setdefault((save.event["step"], posixpath.basename(save.event["path"])), []).append(save)
    rows = []
    for life in stored.lives:
        # What was made of another checkpoint, such as one without its optimizer state, held nothing up by itself.
        alike = by_name.get((life.step, posixpath.basename(life.path)), ()) if life.blocked_ns != 0 else ()
        # A step may be saved again under its name by a later attempt.
        rows.append(_row(stored, life, min(alike, key=lambda save: abs(save.wall_ns - life.saved_ns), default=None)))
    return rows


def _row(stored: Stored, life: Life, save: Save | None) -> dict[str, Any]:
    unseen = life.id in stored.unseen
    cost = stored.cost(life)

    def since_then(amount: Fraction | None) -> str | None:
        return None if unseen else money_text(amount)

    return {
        "id": life.id,
        "step": life.step,
        "path": life.path,
        "saved_at": instant(life.saved_ns),
        "tier": "unseen" if unseen else life.tier if life.ended_ns is None else "deleted",
        "bytes": life.size_bytes,
        "blocked_s": save.blocked_ns / NS_PER_S if save else 0.0 if life.blocked_ns == 0 else None,
        "blocked": money_text(save.money if save else Fraction(0) if life.blocked_ns == 0 else None),
        "requests": money_text(cost.requests_usd),
        "hot": since_then(cost.hot_usd),
        "cold": since_then(cost.cold_usd),
        "restores": life.restores,
        "checks": life.checks,
        "reads": money_text(cost.reads_usd),
        "early": since_then(cost.early_usd),
        "per_month": since_then(cost.usd_per_month),
        "one_restore": since_then(cost.read_usd),
        "restore_hours": None if unseen else cost.restore_hours,
    }


def usd_per_hour_at(account: RunAccount, wall_ns: int) -> Fraction | None:
    """Exact price of the whole allocation for an hour, in the run's currency, by the price at an instant.

    Args:
        account: The run.
        wall_ns: Ns since the epoch; the price is that of the attempt that had begun by then.
    """
    begun = [rank for rank in account.ranks if rank.wall_ns <= wall_ns] or account.ranks[:1]
    rank = begun[-1]
    book = account.books.get(rank.seat.attempt, PriceBook())
    per_ns = book.device_money(wall_ns, wall_ns + 1, rank.paid_devices, rank.paid_devices)
    return None if per_ns is None else per_ns * NS_PER_HOUR
