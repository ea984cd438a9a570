"""Which attempts failed and what work that lost: what the interval between checkpoints is advised from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from costguard.ledger.account import RankAccount, RunAccount
from costguard.ledger.layout import Seat
from costguard.records import ENDING_ACTIONS

_ENDING = frozenset(action.value for action in ENDING_ACTIONS)


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that failed and lost work.

    Args:
        attempt: Its number.
        lost_ns: Train time that is part of no checkpoint that was gone on from, by rank.
    """

    attempt: int
    lost_ns: Mapping[Seat, int]


def failures_of(account: RunAccount, running: Collection[int] = ()) -> list[Failure]:
    """The attempts that died or ended with an exception and lost train time by it.

    None of these is one: a user's Ctrl-C, a stop or refusal by a budget, an end in order, and one after whose last
    step everything was saved. Of the latest attempt, which nothing went on from yet, what came after its last
    complete save is lost.

    Args:
        account: The run.
        running: Numbers of attempts that are known to go on, on another machine.
    """
    last = max(account.trainings, default=None)
    found = []
    for number in account.trainings:
        ranks = account.of_attempt(number)
        if number not in running and _failed(ranks):
            saved_ns = _saved_ns(ranks) if number == last else None
            lost = {r.seat: _lost_ns(account, r, None if saved_ns is None else saved_ns[r.seat]) for r in ranks}
            if any(lost.values()):
                found.append(Failure(number, lost))
    return found


def _failed(ranks: Sequence[RankAccount]) -> bool:
    if any(r.status == "running" for r in ranks):
        return False
    if any(event.get("action") in _ENDING for r in ranks for event in r.events):
        return False
    reason = next((r.reason for r in ranks if r.reason), None)
    if reason is not None:
        return not reason.startswith("KeyboardInterrupt")
    return any(r.status == "died" for r in ranks)


def _lost_ns(account: RunAccount, rank: RankAccount, saved_ns: int | None) -> int:
    kept_ns = account.kept[rank.seat].train_ns
    return rank.final.train_ns - (kept_ns if saved_ns is None else min(kept_ns, saved_ns))


def _saved_ns(ranks: Sequence[RankAccount]) -> dict[Seat, int]:
    """Train time of each rank up to the last save that was written to its end."""
    whole = {event["save"] for event in ranks[0].events if event["k"] == "saved"}
    return {r.seat: max([mark.train_ns for save, mark in r.marks.items() if save in whole], default=0) for r in ranks}
