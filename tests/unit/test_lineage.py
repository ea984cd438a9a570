"""Which training is part of the run's present state, and which was thrown away by going back."""

from __future__ import annotations

from typing import Any

import pytest

from builders import NS, Journal, assert_closes
from costguard.ledger.account import RunAccount
from costguard.ledger.layout import Seat
from costguard.ledger.lineage import kept_work

# Each attempt is a list: a number trains so many seconds in steps of one, "save" writes a checkpoint,
# (attempt, save) loads one, "?" loads one of unknown origin, "validate" validates for a second.
TABLE: dict[str, tuple[list[list[Any]], list[int]]] = {
    "one attempt": ([[10]], [10]),
    "saved and trained on": ([[10, "save", 5]], [15]),
    "from the last save": ([[10, "save", 5], [(1, 1), 7]], [10, 7]),
    "from an older save": ([[10, "save", 10, "save", 5], [(1, 1), 7]], [10, 7]),
    "from the save before training": ([["save", 5], [(1, 1), 7]], [0, 7]),
    "twice, each from its last save": ([[10, "save", 5], [(1, 1), 4, "save", 3], [(2, 1), 6]], [10, 4, 6]),
    "twice from the same save": ([[10, "save", 5], [(1, 1), 4], [(1, 1), 6]], [10, 0, 6]),
    "a branch given up": ([[4, "save", 4, "save", 1], [(1, 1), 9, "save"], [(1, 2), 3]], [8, 0, 3]),
    "a branch taken up again": ([[4, "save", 4], [(1, 1), 9, "save", 2], [(1, 1), 3], [(2, 1), 5]], [4, 9, 0, 5]),
    "from scratch": ([[10, "save", 5], [7]], [0, 7]),
    "from scratch, then resumed": ([[10, "save"], [7, "save", 1], [(2, 1), 3]], [0, 7, 3]),
    "an unknown origin": ([[10, "save", 5], ["?", 7]], [15, 7]),
    "an unknown origin, then a known one": ([[10, "save", 5], ["?", 7], [(1, 1), 4]], [10, 0, 4]),
    "a save of a journal that is gone": ([[10, "save", 5], [(7, 1), 7]], [15, 7]),
    "a save whose line is gone": ([[10, "save", 5], [(1, 9), 7]], [15, 7]),
    "a second fit goes on": ([[10, "save", 5, 6]], [21]),
    "a second fit from a save": ([[10, "save", 5, (1, 1), 6]], [16]),
    "a second fit from an older save": ([[10, "save", 5, "save", 5, (1, 1), 6]], [16]),
    "back and forth in one process": ([[4, "save", 4, (1, 1), 3, "save", 2, (1, 2), 5]], [12]),
    "resumed, nothing trained yet": ([[10, "save", 5], [(1, 1)]], [15, 0]),
    "resumed, validated only": ([[10, "save", 5], [(1, 1), "validate"]], [15, 0]),
    "resumed, died before a step, resumed": ([[10, "save", 5], [(1, 1)], [(1, 1), 6]], [10, 0, 6]),
    "never trained": ([["validate"], ["validate"]], [0, 0]),
}


def play(attempts: list[list[Any]], journal: Journal | None = None, **header: Any) -> Journal:
    journal = journal or Journal()
    saved: dict[tuple[int, int], int] = {}
    for steps in attempts:
        attempt = journal.attempt(**header)
        for step in steps:
            if step == "save":
                saved[attempt.seat.attempt, attempt.save()] = attempt.step
                attempt.spend("checkpoint", 0.5)
            elif step == "?":
                attempt.resume(None, None, 100)
            elif step == "validate":
                attempt.spend("validation", 1)
            elif isinstance(step, tuple):
                attempt.spend("restore", 0.25)
                attempt.resume(*step, saved.get(step, 0))
            else:
                for _ in range(step):
                    attempt.train(1, 10, 2)
        attempt.die()
        journal.wait(1)
    return journal


def kept_seconds(account: RunAccount, rank: int = 0) -> list[float]:
    return [kept.train_ns / NS for seat, kept in sorted(account.kept.items()) if seat.rank == rank]


@pytest.mark.parametrize("name", TABLE)
def test_what_was_kept(name: str) -> None:
    """Work after the save that was gone on from is rework; all else is kept; batches and tokens go with the time."""
    attempts, kept = TABLE[name]
    account = play(attempts).account()
    assert_closes(account)
    assert kept_seconds(account) == kept
    for each in account.kept.values():
        assert (each.steps, each.batches, each.tokens, each.padding, each.samples) == (
            each.train_ns // NS,
            each.train_ns // NS,
            each.train_ns // NS * 10,
            each.train_ns // NS * 2,
            each.train_ns // NS,
        )


@pytest.mark.parametrize("name", TABLE)
def test_the_attempts_can_be_read_at_any_time(name: str) -> None:
    """Also before its last attempts the run's account closes, and nothing is kept that was not done."""
    attempts = TABLE[name][0]
    for number in range(1, len(attempts) + 1):
        account = play(attempts[:number]).account()
        assert_closes(account)
        for rank in account.ranks:
            assert 0 <= account.kept[rank.seat].train_ns <= rank.final.train_ns


def test_an_attempt_about_to_train_counts_as_the_last() -> None:
    """For live figures the work after the save is rework as soon as the resumed attempt is about to train."""
    account = play([[10, "save", 5], [(1, 1)]]).account()
    assert kept_work(account.ranks)[Seat(1, 0)].train_ns == 15 * NS
    live = kept_work(account.ranks, training_in=2)
    assert live[Seat(1, 0)].train_ns == 10 * NS
    assert live[Seat(1, 0)].tokens == 100


def two_ranks(journal: Journal, of: int, seconds: int, save_after: int | None = None, resume: bool = False) -> None:
    """An attempt of two ranks that step together; rank 1 sees twice the tokens."""
    ranks = [journal.attempt(world_size=2), journal.attempt(rank=1, of=of, world_size=2)]
    if resume:
        for rank in ranks:
            rank.resume(1, 1, 5)
    for second in range(seconds):
        if second == save_after:
            for rank in ranks:
                rank.save()
        for rank in ranks:
            rank.meter.enter(5)
        journal.clock.advance(1)
        for number, rank in enumerate(ranks):
            counters = rank.meter.state.counters
            tokens = (counters.tokens or 0) + 10 * (number + 1)
            done = counters._replace(step=counters.step + 1, batches=counters.batches + 1, tokens=tokens)
            rank.meter.settle(journal.clock.now_ns(), 4, done)
    for rank in ranks:
        rank.die()


def test_each_rank_has_its_own_rework() -> None:
    """Two ranks that go back go back both, each by its own time and tokens."""
    journal = Journal()
    two_ranks(journal, 1, 8, save_after=5)
    two_ranks(journal, 2, 4, resume=True)
    account = journal.account()
    assert_closes(account)
    assert kept_seconds(account, 0) == kept_seconds(account, 1) == [5, 4]
    assert [k.tokens for _, k in sorted(account.kept.items())] == [50, 100, 40, 80]


def test_more_ranks_than_before_keep_what_the_save_held() -> None:
    """One rank, then two from its save: what came after the save is rework, and all of the new rank is kept."""
    journal = play([[5, "save", 3]])
    two_ranks(journal, 2, 4, resume=True)
    account = journal.account()
    assert_closes(account)
    assert kept_seconds(account, 0) == [5, 4]
    assert kept_seconds(account, 1) == [4]


def test_fewer_ranks_than_before_redo_the_work_of_all() -> None:
    """Two ranks, then one from their save: what came after it is rework, also on the rank that did not come back."""
    journal = Journal()
    two_ranks(journal, 1, 8, save_after=5)
    play([[(1, 1), 4]], journal)
    account = journal.account()
    assert_closes(account)
    assert kept_seconds(account, 0) == [5, 4]
    assert kept_seconds(account, 1) == [5]
    assert account.outcomes_ns() == {"kept": 14 * NS, "rework": 6 * NS}


def test_a_rank_that_died_before_it_loaded_keeps_no_more_than_it_did() -> None:
    """A second fit goes back to a save, and rank 1 dies before it has loaded: its work up to the save is kept."""
    journal = Journal()
    ranks = [journal.attempt(world_size=2), journal.attempt(rank=1, of=1, world_size=2)]
    for _ in range(2):
        for rank in ranks:
            rank.train(5)
        for rank in ranks:
            rank.save()
    ranks[0].resume(1, 1, 1)
    ranks[0].train(5)
    for rank in ranks:
        rank.die()
    account = journal.account()
    assert_closes(account)
    assert kept_seconds(account, 0) == [10]
    assert kept_seconds(account, 1) == [5]


def test_a_later_run_in_the_same_process_goes_on_with_its_weights() -> None:
    """A second attempt of the run in the same process that loads nothing throws nothing away."""
    account = play([[10], [5]], pid=77, pid_start=5).account()
    assert kept_seconds(account) == [10, 5]
