"""The writer of one rank's journal: a line when it matters, a page that is fresh, and an end that is the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import NS, Attempt, Journal, MemoryFiles, Mortal, assert_closes, plain_counts
from costguard.errors import CostguardWarning
from costguard.ledger.activity import Counters
from costguard.ledger.attempt import LINE_EVERY_NS, AttemptWriter, count
from costguard.ledger.files import LocalFiles
from costguard.ledger.lines import decode
from costguard.ledger.page import read_page
from costguard.prices import Price, PriceBook
from costguard.testing import FullDisk


def lines(journal: Journal) -> list[dict[str, Any]]:
    return decode(journal.seat_files()[0].segment, "s").lines


def until(true: Callable[[], bool]) -> None:
    """Wait for the writer's own thread."""
    for _ in range(400):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("the writer's thread did nothing in 8 s")


def test_every_state_that_matters_has_a_line() -> None:
    """Open, facts, saves, resumes and the end: each is in the journal at once, with all of the time so far."""
    journal = Journal()
    attempt = journal.attempt()
    attempt.spend("train", 3)
    attempt.writer.fact("model", parameters=4)
    save = attempt.save()
    attempt.writer.saved(save=save, path="/c")
    attempt.writer.resumed(1, save)
    attempt.writer.tick()
    attempt.writer.settle()
    attempt.close()
    written = lines(journal)
    assert [x["k"] for x in written] == ["open", "fact", "mark", "saved", "resume", "tick", "tick", "close"]
    assert all(sum(x["ns"].values()) == x["t"] - x["t0"] for x in written)


def test_a_line_is_never_older_than_30_seconds() -> None:
    """When nothing else is written for 30 s, the writer's thread writes where things stand."""
    journal = Journal()
    attempt = journal.attempt(writer=AttemptWriter)
    attempt.spend("train", LINE_EVERY_NS / NS + 1)
    until(lambda: len(lines(journal)) > 1)
    attempt.close()
    assert [x["k"] for x in lines(journal)] == ["open", "tick", "close"]


def test_a_line_stands_where_a_price_changes() -> None:
    """At the instant a price changes a line is written, so that time before and after it is known apart."""
    journal = Journal()
    change = PriceBook(prices=(Price(amount=1), Price(amount=2, valid_from="2024-01-15T08:00:10Z")))
    attempt = journal.attempt(writer=AttemptWriter, book=change)
    attempt.spend("train", 11)
    until(lambda: len(lines(journal)) > 1)
    attempt.close()


def test_the_page_shows_signs_of_life() -> None:
    """The page is beaten while nothing happens, so that the hour of a sudden death is known."""
    journal = Journal()
    attempt = journal.attempt(writer=AttemptWriter)
    attempt.spend("train", 5)

    def alive() -> bool:
        page = journal.seat_files()[0].page
        reading = read_page(page) if page else None
        return reading is not None and reading.alive_ns == journal.clock.now_ns()

    until(alive)
    attempt.close()


class SlowEnd(MemoryFiles):
    """A disk that takes its time for the last line, while the writer's thread has a line due."""

    def __init__(self) -> None:
        super().__init__()
        self.attempt: Attempt | None = None

    def sync(self, handle: int) -> None:
        if self.attempt is not None and b'"k":"close"' in self.data[self._handles[handle]]:
            attempt, self.attempt = self.attempt, None
            attempt.clock.advance(LINE_EVERY_NS / NS + 1)
            time.sleep(0.6)


def test_nothing_is_written_after_the_last_line() -> None:
    """A line that comes due while the last one goes to a slow disk is not written after it: the end is the end."""
    journal = Journal(SlowEnd())
    attempt = journal.attempt(writer=AttemptWriter)
    attempt.train(5)
    journal.files.attempt = attempt
    ended = journal.clock.now_ns()
    attempt.close()
    assert [x["k"] for x in lines(journal)] == ["open", "close"]
    assert journal.account().ranks[0].final.at_ns == ended


def test_an_end_in_the_past_is_an_end_in_the_past() -> None:
    """A run that ended when its last work did leaves the time since to whoever takes it."""
    journal = Journal()
    attempt = journal.attempt()
    attempt.spend("train", 5).spend("idle", 0)
    ended = journal.clock.now_ns()
    journal.wait(100)
    attempt.writer.close(None, 0, ended)
    account = journal.account()
    assert plain_counts(account.activities_ns()) == {"train": 5}
    assert_closes(account)


def test_closing_twice_is_the_same_as_once() -> None:
    """The second close writes nothing."""
    journal = Journal()
    attempt = journal.attempt()
    attempt.close(reason="ValueError: no")
    attempt.close(reason="again")
    assert [x["k"] for x in lines(journal)] == ["open", "close"]
    assert journal.account().ranks[0].reason == "ValueError: no"


def test_closing_ends_the_threads() -> None:
    """No thread of a writer is left when it has been closed."""
    before = set(threading.enumerate())
    attempt = Journal().attempt(writer=AttemptWriter)
    attempt.close()
    assert set(threading.enumerate()) <= before


class NoPages(LocalFiles):
    """A file system that cannot map memory."""

    def map_page(self, path: str, size: int) -> memoryview:
        raise OSError(19, "No such device")


def test_without_a_page_metering_goes_on(tmp_path: Path) -> None:
    """Where memory cannot be mapped a warning says what may be lost, and lines are written as before."""
    journal = Journal(NoPages(), str(tmp_path))
    with pytest.warns(CostguardWarning, match="cannot map"):
        attempt = journal.attempt()
    attempt.train(5)
    attempt.close()
    assert journal.account().elapsed_device_ns == 5 * NS


def test_a_full_disk_costs_no_time_while_the_process_lives(tmp_path: Path) -> None:
    """ENOSPC from the first line on: training goes on, and when there is room again all of the account is there."""
    disk = FullDisk(0)
    journal = Journal(disk, str(tmp_path))
    with pytest.warns(CostguardWarning, match="cannot write the journal"):
        attempt = journal.attempt()
    attempt.train(5, 10)
    attempt.save()
    disk.full = False
    attempt.train(5, 10)
    attempt.close()
    account = journal.account()
    assert (account.problems, account.elapsed_device_ns) == ([], 10 * NS)
    assert account.books[1].prices


def test_without_a_folder_everything_stays_in_memory(tmp_path: Path) -> None:
    """A seat without a segment takes every call and writes nothing."""
    (tmp_path / "costguard").write_text("in the way")
    journal = Journal(LocalFiles(), str(tmp_path))
    with pytest.warns(CostguardWarning, match="cannot write to"):
        attempt = journal.attempt()
    attempt.train(5)
    attempt.save()
    attempt.writer.adopt_page(attempt.writer.seat)
    attempt.close()
    assert attempt.meter.state.totals[5] == 5 * NS


def test_unknown_counts_stay_unknown_until_they_are_known() -> None:
    """A batch without countable tokens adds nothing; it is not a batch of zero tokens."""
    assert count(Counters(), 1, None, None, None) == Counters(1, 1, None, None, None)
    assert count(Counters(1, 1, None, None, None), 2, 5, 0, 1) == Counters(2, 2, 5, 0, 1)
    assert count(Counters(2, 2, 5, 0, 1), 2, None, 1, None) == Counters(2, 3, 5, 1, 1)


def test_the_dead_write_nothing() -> None:
    """The tests' own `die` leaves a journal as `kill -9` does: no line after the last one, the page at its instant."""
    journal = Journal()
    attempt = journal.attempt()
    attempt.train(5)
    attempt.die()
    assert isinstance(attempt.files, Mortal)
    assert [x["k"] for x in lines(journal)] == ["open"]
    assert journal.account().ranks[0].status == "died"
    assert journal.account().elapsed_device_ns == 5 * NS
