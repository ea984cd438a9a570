"""The receipt's `checkpoint_costs`: what saves hold up, what storage costs, and how often saving would be best."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from costguard.ledger.account import RunAccount
from costguard.reports.interval import interval_of
from costguard.reports.saves import Save, saves_summary
from costguard.reports.storage import each_of, storage_of, stored_by
from costguard.reports.transfers import transfers_of


def checkpoint_costs_of(
    account: RunAccount,
    saves: Sequence[Save],
    now_ns: int,
    *,
    currency: str,
    progress: float | None = None,
    running: Collection[int] = (),
) -> dict[str, Any]:
    """Put together what a run's checkpoints cost.

    Args:
        account: The run.
        saves: Its saves.
        now_ns: Until when storage is counted, ns since the epoch.
        currency: Of the run's prices.
        progress: Share of the plan that is done, `None` if unknown.
        running: Numbers of attempts that go on on another machine.
    """
    stored = stored_by(account, now_ns)
    return {
        "saves": saves_summary(saves),
        "transfers": transfers_of(account),
        "storage": None if stored is None else storage_of(stored),
        "each": [] if stored is None else each_of(stored, saves),
        "interval": interval_of(account, saves, stored, currency=currency, progress=progress, running=running),
    }
