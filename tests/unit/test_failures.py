"""Which attempts count as failures that lost work, and how much each lost."""

from __future__ import annotations

from typing import Any

import pytest

from builders import NS, Attempt, Journal
from costguard.ledger.failures import failures_of
from costguard.records import Action, Verdict


def save(attempt: Attempt, *, whole: bool = True) -> int:
    """Write a checkpoint, unless it dies while it is written."""
    number = attempt.save()
    attempt.spend("checkpoint", 0.5)
    if whole:
        attempt.writer.saved(save=number, path="/c", step=attempt.step, bytes=10, blocked_ns=NS // 2, mark=None)
    return number


def ended(journal: Journal, train_after: int, how: str | None, **header: Any) -> Attempt:
    """An attempt that trains ten seconds, saves, trains on, and ends: dies if `how` is `died`, else closes so."""
    attempt = journal.attempt(**header)
    for _ in range(10):
        attempt.train(1)
    save(attempt)
    for _ in range(train_after):
        attempt.train(1)
    if how == "died":
        attempt.die()
    else:
        attempt.close(reason=how)
    return attempt


def lost(journal: Journal, **options: Any) -> dict[int, float]:
    """Seconds lost by attempt."""
    failures = failures_of(journal.account(), **options)
    return {failure.attempt: sum(failure.lost_ns.values()) / NS for failure in failures}


@pytest.mark.parametrize(
    ("train_after", "how", "seconds"),
    [
        (5, "died", 5),
        (5, "RuntimeError: CUDA error", 5),
        (5, "SIGTERMException", 5),
        (0, "died", None),  # a preemption with a good emergency save
        (5, None, None),
        (5, "KeyboardInterrupt", None),
    ],
)
def test_what_the_latest_attempt_lost(train_after: int, how: str | None, seconds: float | None) -> None:
    """What came after its last save, if it failed; a user's Ctrl-C and an end in order are no failures."""
    journal = Journal()
    ended(journal, train_after, how)
    assert lost(journal) == ({} if seconds is None else {1: seconds})


def test_a_budgets_stop_is_no_failure() -> None:
    """Nor is what a scheduler does to it afterwards."""
    journal = Journal()
    attempt = journal.attempt()
    attempt.train(10)
    attempt.writer.verdict(Verdict(kind="budget", action=Action.STOP, reason="limit", message="The budget is used up."))
    attempt.die()
    assert lost(journal) == {}


def test_a_save_that_was_not_written_to_its_end_saves_nothing() -> None:
    """Dying in the middle of a save loses what came after the save before."""
    journal = Journal()
    attempt = journal.attempt()
    attempt.train(10)
    save(attempt)
    attempt.train(7)
    save(attempt, whole=False)
    attempt.die()
    assert lost(journal) == {1: 7}


def test_what_was_gone_on_from_decides_for_earlier_attempts() -> None:
    """Each attempt lost what the next one did again; one that was gone on from at its end lost nothing."""
    journal = Journal()
    ended(journal, 5, "died")
    second = journal.attempt()
    second.resume(1, 1, 10)
    second.train(4)
    number = save(second)
    second.die()
    third = journal.attempt()
    third.resume(2, number, 11)
    third.train(3)
    third.close()
    assert lost(journal) == {1: 5}


def test_every_rank_lost_its_own() -> None:
    """Two ranks that step together lose twice the time."""
    journal = Journal()
    ranks = [journal.attempt(world_size=2), journal.attempt(rank=1, of=1, world_size=2)]
    for second in range(8):
        for rank in ranks:
            rank.meter.enter(5)
        journal.clock.advance(1)
        for rank in ranks:
            rank.train(0)
        if second == 4:
            for rank in ranks:
                number = rank.save()
            ranks[0].writer.saved(save=number, path="/c", step=5, bytes=1, blocked_ns=0, mark=None)
    for rank in ranks:
        rank.die()
    assert lost(journal) == {1: 2 * 3}


def test_one_that_goes_on_elsewhere_has_not_failed() -> None:
    """Its process cannot be asked, but it was told that it runs."""
    journal = Journal()
    ended(journal, 5, "died")
    assert lost(journal, running={1}) == {}
