"""What moving checkpoints did to training's batches: those beside a move against the others of the same attempts."""

from __future__ import annotations

from typing import Any

from costguard.ledger.account import RunAccount
from costguard.units import NS_PER_S


def transfers_of(account: RunAccount) -> dict[str, Any] | None:
    """The receipt's `checkpoint_costs.transfers`; `None` where nothing moved beside a batch that was metered.

    Args:
        account: The run.
    """
    told = [rank.facts["transfers"] for rank in account.ranks if "transfers" in rank.facts]
    beside_ns, beside = sum(t["beside_ns"] for t in told), sum(t["beside_batches"] for t in told)
    alone_ns, alone = sum(t["train_ns"] for t in told) - beside_ns, sum(t["batches"] for t in told) - beside
    if beside < 1 or alone < 1 or alone_ns <= 0:
        return None
    return {
        "batches_beside": beside,
        "batches_alone": alone,
        "batch_beside_s": beside_ns / NS_PER_S / beside,
        "batch_alone_s": alone_ns / NS_PER_S / alone,
        "ratio": beside_ns * alone / (alone_ns * beside),
    }
