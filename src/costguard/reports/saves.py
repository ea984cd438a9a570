"""Every save of a run with the device time that it held up: the rows of the receipt, and their sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from fractions import Fraction
from statistics import median
from typing import Any

from costguard.ledger.account import RankAccount, RunAccount
from costguard.prices import PriceBook
from costguard.units import NS_PER_S, plain, round_money


@dataclass(frozen=True, slots=True)
class Save:
    """One save.

    Args:
        rank: The rank that noted it.
        event: Its line in the journal.
        wall_ns: When training went on, ns since the epoch.
        money: Exact money of the device time that it held up, `None` without a price.
    """

    rank: RankAccount
    event: Mapping[str, Any]
    wall_ns: int
    money: Fraction | None

    @property
    def blocked_ns(self) -> int:
        """Nanoseconds that training stood still."""
        return int(self.event["blocked_ns"])


def saves_of(account: RunAccount) -> list[Save]:
    """All saves, in the order of attempts."""
    found = []
    for rank in account.ranks:
        book = account.books.get(rank.seat.attempt, PriceBook())
        for event in rank.events:
            if event["k"] != "saved":
                continue
            wall = event["t"] - rank.start_ns + rank.wall_ns
            # All paid devices stand still while a checkpoint is written.
            money = book.device_money(wall - event["blocked_ns"], wall, rank.paid_devices, rank.paid_devices)
            found.append(Save(rank, event, wall, money))
    return found


def save_rows(saves: Sequence[Save]) -> list[dict[str, Any]]:
    """The receipt's `checkpoints`."""
    return [
        {
            "path": save.event["path"],
            "step": save.event["step"],
            "attempt": save.rank.seat.attempt,
            "bytes": save.event["bytes"],
            "at": instant(save.wall_ns),
            "blocked_s": save.blocked_ns / NS_PER_S,
            "money": money_text(save.money),
        }
        for save in saves
    ]


def saves_summary(saves: Sequence[Save]) -> dict[str, Any]:
    """The receipt's `checkpoint_costs.saves`; the money is part of what device time cost.

    Args:
        saves: All saves of the run.
    """
    sizes = [save.event["bytes"] for save in saves]
    blocked = sorted(save.blocked_ns / NS_PER_S for save in saves)
    amounts = [save.money for save in saves if save.money is not None]
    known = len(amounts) == len(saves)
    return {
        "count": len(saves),
        "bytes": None if None in sizes else sum(sizes),
        "blocked_s": sum(blocked),
        "blocked_median_s": median(blocked) if blocked else None,
        "blocked_p95_s": blocked[math.ceil(0.95 * len(blocked)) - 1] if blocked else None,
        "money": money_text(sum(amounts, Fraction(0))) if known else None,
    }


def instant(wall_ns: int) -> str:
    """An instant as the receipt writes it."""
    return f"{datetime.fromtimestamp(wall_ns / NS_PER_S, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def money_text(amount: Fraction | None) -> str | None:
    """Money as the receipt writes it; unknown stays `None`."""
    return None if amount is None else plain(round_money(amount))
