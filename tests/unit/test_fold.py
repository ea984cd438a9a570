"""A run's account from what its ranks left behind, whatever happened to the files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import (
    HOUR_NS,
    NS,
    Journal,
    assert_closes,
    assert_receipt_adds_up,
    examples,
    plain_counts,
    random_journal,
    rows,
)
from costguard.clock import boot_id, is_alive, process_start_ns
from costguard.ledger.account import RunAccount
from costguard.ledger.fold import SeatFiles, fold
from costguard.ledger.layout import Seat
from costguard.ledger.lines import SCHEMA, decode
from costguard.records import Action, Verdict
from costguard.reports.receipt import Receipt, receipt_of
from costguard.testing import ManualClock


def two_attempts(rebooted: bool = False, **header: Any) -> Journal:
    """An attempt that died after 50 s, 5 s of nothing, and an attempt of 30 s that resumed and closed."""
    journal = Journal()
    first = journal.attempt(allocation="job-1", tags={"team": "a"}, **header)
    first.writer.fact("model", parameters=1000)
    first.spend("startup", 2).spend("data_wait", 1).train(20, 100)
    first.writer.tick()
    save = first.save()
    first.spend("checkpoint", 3)
    first.writer.saved(save=save, path="/c", step=1, bytes=10, blocked_ns=3 * NS, mark=[10, 1])
    first.train(20, 100).spend("validation", 4)
    first.die()
    journal.wait(5)
    if rebooted:
        journal.clock = ManualClock(now_ns=7 * NS, wall_ns=journal.clock.wall_ns())
        header["boot"] = "boot-b"
    second = journal.attempt(allocation="job-1", tags={"team": "a"}, **header)
    second.writer.resumed(1, save)
    second.train(20, 100).train(10, 50)
    second.writer.verdict(Verdict(kind="budget", action=Action.WARN, reason="half", message="Half is gone.", step=2))
    second.close(exit_s=1)
    return journal


def damaged(files: list[SeatFiles], change: Callable[[list[bytes]], list[bytes]]) -> list[SeatFiles]:
    """The same with other lines in the last segment."""
    return [*files[:-1], replace(files[-1], segment=b"".join(change(rows(files[-1].segment))))]


def newer(line: bytes) -> bytes:
    """A line as a later costguard would write it."""
    fields = json.loads(line)
    del fields["crc"]
    head = json.dumps(fields | {"v": SCHEMA + 1}, separators=(",", ":"))[:-1].encode()
    return head + b',"crc":"%08x"}\n' % zlib.crc32(head)


def flip(line: bytes) -> bytes:
    return line[:20] + bytes([line[20] ^ 1]) + line[21:]


def rendered(account: RunAccount) -> str:
    """All three forms of the receipt, as a user would ask for them."""
    receipt = Receipt(receipt_of(account, "/folder"))
    return receipt.text() + receipt.json() + receipt.html()


def test_a_run_adds_up() -> None:
    """Each second has its activity, the gap is billed, what was done twice is rework, and the exit is estimated."""
    account = two_attempts().account()
    assert_closes(account)
    assert account.problems == []
    assert plain_counts(account.activities_ns()) == {
        "startup": 2,
        "data_wait": 1,
        "train": 70,
        "checkpoint": 3,
        "validation": 4,
        "gap": 5,
        "teardown": 1,
    }
    assert plain_counts(account.outcomes_ns()) == {"kept": 50, "rework": 20}
    assert [r.status for r in account.ranks] == ["died", "closed"]


DAMAGES: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int, str]] = {
    "torn last line": (lambda x: [*x[:-1], x[-1][:30]], 1, "torn"),
    "duplicated line": (lambda x: [x[0], x[1], x[1], *x[2:], x[2]], 0, ""),
    "flipped byte": (lambda x: [*x[:2], flip(x[2]), *x[3:]], 1, "checksum"),
    "flipped byte in the first line": (lambda x: [flip(x[0]), *x[1:]], 1, "checksum"),
    "missing first line": (lambda x: x[1:], 0, ""),
    "empty file": (lambda x: [], 1, "empty"),
    "newer last line": (lambda x: [*x[:-1], newer(x[-1])], 1, "upgrade"),
    "all newer": (lambda x: [newer(line) for line in x], 0, "upgrade"),
    "blank lines": (lambda x: [b"\n", *x, b"\n\n"], 0, ""),
    "zeros at the end": (lambda x: [*x, b"\0" * 100], 1, "torn"),
    "another order": (lambda x: x[::-1], 0, ""),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("page", [True, False], ids=["page", "no page"])
def test_damage_is_named_and_the_rest_still_adds_up(name: str, page: bool) -> None:
    """Each kind of damage has its outcome: a sentence in `problems`, an account that closes, a receipt that renders."""
    change, problems, word = DAMAGES[name]
    files = damaged(two_attempts().seat_files(), change)
    if not page:
        files[-1] = replace(files[-1], page=None)
    account = fold("r", files)
    assert_closes(account)
    assert len(account.problems) >= problems
    assert word in " ".join(account.problems)
    if account.ranks:
        assert rendered(account)


@pytest.mark.parametrize("name", ["duplicated line", "blank lines", "another order"])
def test_harmless_damage_changes_nothing(name: str) -> None:
    """A line that stands twice, blank lines and another order of lines leave the same account."""
    files = two_attempts().seat_files()
    whole = fold("r", files)
    account = fold("r", damaged(files, DAMAGES[name][0]))
    assert account == whole


@pytest.mark.parametrize("name", ["torn last line", "newer last line", "empty file", "all newer"])
def test_without_its_last_line_the_page_counts(name: str) -> None:
    """An attempt whose last line cannot be read died as far as we know, and its page has all of its time."""
    account = fold("r", damaged(two_attempts().seat_files(), DAMAGES[name][0]))
    last = account.ranks[-1]
    assert last.status == "died"
    assert last.elapsed_ns == 30 * NS
    assert last.final.counters.tokens == 150


@pytest.mark.parametrize("gap", ["auto", "held", "released"])
@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize("rebooted", [False, True])
def test_a_lost_first_line_invents_no_time(gap: str, attempt: int, rebooted: bool) -> None:
    """Without the first line of an attempt the gap beside it is not decades, billed or not, also over a reboot."""
    files = two_attempts(rebooted, gap=gap).seat_files()
    whole = fold("r", files)
    files[attempt] = replace(files[attempt], segment=b"".join(rows(files[attempt].segment)[1:]))
    account = fold("r", files)
    assert_closes(account)
    assert account.elapsed_device_ns <= whole.elapsed_device_ns
    assert all(g.ns <= 5 * NS for g in account.gaps)


@given(st.data())
@examples(150)
def test_a_flipped_byte_anywhere_is_survived(data: st.DataObject) -> None:
    """With any byte of any segment or page wrong, the account closes and the receipt renders, without an exception."""
    files = FLIPPED
    which = data.draw(st.integers(0, len(files) - 1))
    segment, page = files[which].segment, files[which].page
    assert page is not None
    at = data.draw(st.integers(0, len(segment) + len(page) - 1))
    flipped = bytearray(segment + page)
    flipped[at] ^= data.draw(st.integers(1, 255))
    changed = SeatFiles(files[which].seat, bytes(flipped[: len(segment)]), bytes(flipped[len(segment) :]))
    account = fold("r", [*files[:which], changed, *files[which + 1 :]])
    assert_closes(account)
    receipt_of(account, "/folder")


FLIPPED = two_attempts().seat_files()


@given(st.data())
@examples(100)
def test_a_file_cut_anywhere_is_survived(data: st.DataObject) -> None:
    """With any file ending early, the account closes and no more time is in it than there was."""
    files = [
        SeatFiles(
            f.seat,
            f.segment[: data.draw(st.integers(0, len(f.segment)))],
            f.page if data.draw(st.booleans()) else None,
        )
        for f in FLIPPED
    ]
    account = fold("r", files)
    assert_closes(account)
    assert sum(r.elapsed_ns for r in account.ranks) <= 81 * NS
    if account.ranks:
        receipt_of(account, "/folder")


@pytest.mark.parametrize("seed", range(20))
def test_any_lines_may_be_missing(seed: int) -> None:
    """Of runs of any shape, with ranks, saves and loads, any line may be lost: the account closes all the same."""
    for number in range(10):
        random = Random(f"lines {seed}.{number}")
        files = random_journal(random).seat_files()
        for _ in range(random.randint(1, 3)):
            which = random.randrange(len(files))
            lines = rows(files[which].segment)
            if lines:
                del lines[random.randrange(len(lines))]
            page = files[which].page if random.random() < 0.5 else None
            files[which] = replace(files[which], segment=b"".join(lines), page=page)
        account = fold("r", files)
        assert_closes(account)
        if account.ranks:
            assert_receipt_adds_up(receipt_of(account, "/folder"))


def test_nothing_left_is_an_empty_account() -> None:
    """No files, or only empty ones: no rank, no money, no exception."""
    assert fold("r", []).elapsed_device_ns == 0
    account = fold("r", [SeatFiles(Seat(1, 0), b""), SeatFiles(Seat(1, 1), b"", b"")])
    assert (account.elapsed_device_ns, len(account.problems)) == (0, 2)


def test_the_page_holds_what_no_line_tells() -> None:
    """Steps after the last line are in the account of an attempt that died."""
    journal = Journal()
    attempt = journal.attempt()
    attempt.train(1, 10)
    attempt.writer.tick()
    attempt.train(1, 10).train(1, 10)
    attempt.die()
    final = journal.account().ranks[0].final
    assert (final.counters.step, final.counters.tokens, final.train_ns) == (3, 30, 3 * NS)


def test_a_page_older_than_the_last_line_is_not_used() -> None:
    """What is newer counts: after a power cut a page may be older than the segment."""
    journal = Journal()
    attempt = journal.attempt()
    attempt.train(1, 10)
    old = journal.seat_files()[0].page
    attempt.train(1, 10)
    attempt.writer.tick()
    attempt.die()
    files = journal.seat_files()
    final = fold("r", [replace(files[0], page=old)]).ranks[0].final
    assert (final.counters.step, final.train_ns) == (2, 2 * NS)


def test_the_next_attempt_keeps_what_a_page_held() -> None:
    """The second attempt wrote the first one's page down, so the page may be gone: the account stays the same."""
    files = two_attempts().seat_files()
    whole = fold("r", files)
    gone = [replace(files[0], page=None), files[1]]
    assert fold("r", gone).activities_ns() == whole.activities_ns()
    assert fold("r", gone) == whole


def test_the_order_of_files_does_not_matter() -> None:
    """Segments may be listed in any order."""
    files = two_attempts().seat_files()
    assert fold("r", files[::-1]) == fold("r", files)


def test_facts_and_events_are_read_back() -> None:
    """Parameters, checkpoints and verdicts stand in the account as they were written."""
    account = two_attempts().account()
    assert account.fact("model") == {"parameters": 1000}
    assert [e["k"] for r in account.ranks for e in r.events] == ["saved", "verdict"]
    assert account.ranks[0].events[0]["mark"] == [10, 1]
    assert account.ranks[1].events[0]["message"] == "Half is gone."


def test_idle_devices_are_device_time_of_their_own() -> None:
    """GPUs that are paid for and not used are `idle` for as long as their node's first rank is there."""
    journal = Journal()
    attempt = journal.attempt(idle_devices=3, paid_devices=4)
    attempt.train(10).spend("idle", 1)
    attempt.close(exit_s=1)
    account = journal.account()
    assert_closes(account)
    assert plain_counts(account.activities_ns()) == {"train": 10, "idle": 1 + 3 * 12, "teardown": 1}


def test_ranks_close_on_their_own() -> None:
    """Device time is counted for each rank, tokens and gaps too, whenever each of them ended."""
    journal = Journal()
    first, second = journal.attempt(world_size=2), journal.attempt(rank=1, of=1, world_size=2)
    first.train(10, 7)
    second.spend("data_wait", 4).train(1, 9)
    first.die()
    second.train(1, 9).die()
    account = journal.account()
    assert_closes(account)
    assert [r.elapsed_ns for r in account.ranks] == [15 * NS, 16 * NS]
    assert [r.final.counters.tokens for r in account.ranks] == [7, 18]


@pytest.mark.parametrize(("boots", "seconds"), [(("a", "a"), 60), (("a", "b"), 60), ((None, None), 60)])
def test_a_gap_is_measured_on_a_clock_that_both_attempts_share(boots: tuple[Any, Any], seconds: int) -> None:
    """Only within one known boot the measuring clock goes through; across boots, or unknown ones, the wall clock."""
    journal = Journal()
    journal.attempt(boot=boots[0], gap="held").train(10).die()
    journal.wait(seconds)
    if boots != ("a", "a"):
        # The machine was booted again, so its measuring clock began anew.
        journal.clock = ManualClock(now_ns=5 * NS, wall_ns=journal.clock.wall_ns())
    journal.attempt(boot=boots[1], gap="held").train(10).close()
    account = journal.account()
    assert_closes(account)
    assert [g.ns for g in account.gaps] == [seconds * NS]


def test_attempts_that_overlap_have_no_gap() -> None:
    """Two live processes of one run are both counted, and the time between them is not negative."""
    journal = Journal()
    first, second = journal.attempt(gap="held"), journal.attempt(gap="held")
    first.train(10)
    second.train(10)
    first.die()
    second.close()
    account = journal.account()
    assert_closes(account)
    assert [g.ns for g in account.gaps] == [0]
    assert account.elapsed_device_ns == 2 * 20 * NS


def test_released_time_is_outside_time_and_money() -> None:
    """A clean stop and a resume an hour later: nothing is billed between, and the hour is shown."""
    journal = Journal()
    journal.attempt(allocation="job-1").train(10).close()
    journal.wait(3600)
    journal.attempt(allocation="job-1").train(10).close()
    account = journal.account()
    assert account.elapsed_device_ns == 20 * NS
    assert [(g.ns, g.billed) for g in account.gaps] == [(HOUR_NS, False)]
    assert receipt_of(account, "/f")["released"] == {"seconds": 3600.0, "money_if_held": "2"}


def test_a_process_that_is_still_there_is_running() -> None:
    """An attempt of a live process on this host has neither closed nor died; of a process long gone it has died."""
    here = {"host": os.uname().nodename, "boot": boot_id(), "pid": os.getpid(), "pid_start": process_start_ns()}
    for header, status in ((here, "running"), (here | {"pid": 2**30}, "died"), (here | {"boot": "b"}, "died")):
        journal = Journal()
        journal.attempt(**header).train(1).die()
        assert journal.account().ranks[0].status == status


def test_a_process_that_has_ended_unnoticed_is_not_running() -> None:
    """One whose parent has not asked for its end is still listed, and does nothing more."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = process_start_ns(process.pid)
    here = {"host": os.uname().nodename, "boot": boot_id(), "pid": process.pid, "pid_start": start}
    journal = Journal()
    journal.attempt(**here).train(1).die()
    try:
        assert journal.account().ranks[0].status == "running"
    finally:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert (process_start_ns(process.pid), is_alive(process.pid, start)) == (start, False)
    assert journal.account().ranks[0].status == "died"
    process.communicate()


@pytest.mark.parametrize(("hours", "state"), [(0, "running"), (-24, "died"), (24 * 30, "died")])
def test_another_machines_process_is_judged_by_its_last_sign_of_life(hours: int, state: str) -> None:
    """The receipt says it runs if it wrote a moment ago; not a day ago, nor by a clock that is off by days."""
    journal = Journal(clock=ManualClock(now_ns=NS, wall_ns=time.time_ns() + hours * HOUR_NS))
    journal.attempt().train(0).die()
    assert receipt_of(journal.account(), "/f")["run"]["state"] == state


def test_prices_that_cannot_be_read_are_a_problem_and_not_zero() -> None:
    """A book that makes no sense leaves the attempt unpriced, says so, and everything else stands."""
    journal = Journal()
    attempt = journal.attempt()
    attempt.train(1).die()
    files = journal.seat_files()
    head = json.loads(rows(files[0].segment)[0])
    del head["crc"]
    head["book"]["prices"][0]["amount"] = "a lot"
    text = json.dumps(head, separators=(",", ":"))[:-1].encode()
    first = text + b',"crc":"%08x"}\n' % zlib.crc32(text)
    account = fold("r", [replace(files[0], segment=first + b"".join(rows(files[0].segment)[1:]))])
    assert len(decode(first, "s").lines) == 1
    assert len(account.problems) == 1
    assert receipt_of(account, "/f")["spend"]["total"] is None
    assert account.elapsed_device_ns == NS
