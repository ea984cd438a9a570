"""How a run ended, from its account and what was decided about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from costguard.ledger.account import RankAccount, RunAccount
from costguard.ledger.control import Decision, standing_stop

When = Literal["breach", "crash", "end", "stall"]
"""Endings after which a machine may be given back."""
How = Literal["breach", "crash", "end", "stall", "interrupted", "running", "restarted", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a run stands.

    Args:
        how: `breach` or `stall` (a stop that still holds), `crash` (died, or closed with a reason), `end` (closed in
            order), `interrupted` (somebody pressed Ctrl-C, and is there), `running`, `restarted` (another attempt
            runs or was begun), `unknown` (nothing can be read).
        why: One clause for the user.
        attempt: The latest attempt to train.
        taken_over: Whether that one is another's to look after: it has trained, has a watch of its own, or went on
            on another machine.
    """

    how: How
    why: str
    attempt: int
    taken_over: bool = False


def how_it_ended(account: RunAccount, decisions: Sequence[Decision], attempt: int, host: str) -> Ending:
    """Tell how a run ended.

    Args:
        account: The run.
        decisions: What was decided about it, in order.
        attempt: The attempt that is watched.
        host: Name of this machine: of ranks on others nothing is known but what they have closed.
    """
    last = max(account.trainings, default=attempt)
    ranks = account.of_attempt(last)
    if not ranks:
        return Ending(how="unknown", why="its journal cannot be read", attempt=attempt)
    running = any(r.status == "running" for r in ranks)
    if last > attempt:
        taken_over = _taken_over(ranks, host)
        if running or taken_over:
            return Ending(how="restarted", why=f"attempt {last} was begun", attempt=last, taken_over=taken_over)
    if running:
        return Ending(how="running", why=f"attempt {last} runs", attempt=last)
    how, why = _how([r for r in ranks if r.status == "closed" or r.tenure.host == host], decisions)
    return Ending(how=how, why=why, attempt=last)


def _taken_over(ranks: Sequence[RankAccount], host: str) -> bool:
    first = ranks[0]
    elsewhere = first.tenure.host != host and first.status != "closed"
    return elsewhere or any(r.final.counters.batches or "release" in r.facts for r in ranks)


def _how(ranks: Sequence[RankAccount], decisions: Sequence[Decision]) -> tuple[How, str]:
    stop = standing_stop(decisions)
    if stop is not None:
        kind: How = "stall" if stop.fields.get("judged") == "stall" else "breach"
        return kind, "it was stopped for good"
    if any(event.get("action") == "refuse" for rank in ranks for event in rank.events):
        return "breach", "it was refused to start"
    reason = next((r.reason for r in ranks if r.reason), None)
    if reason is not None and reason.startswith("KeyboardInterrupt"):
        return "interrupted", "somebody interrupted it"
    if reason is not None:
        return "crash", f"it ended with {reason}"
    if any(r.status == "died" for r in ranks):
        return "crash", "it died"
    return "end", "it ended in order"
