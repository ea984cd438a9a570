"""The journal of a process that dies at any instant: what was flushed is read back, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builders import NS, Journal, assert_closes
from costguard.ledger.files import LocalFiles
from costguard.ledger.fold import SeatFiles, fold
from costguard.ledger.layout import Seat
from costguard.ledger.lines import decode
from costguard.ledger.mirror import Mirror
from costguard.ledger.opening import claim_attempt
from costguard.ledger.page import PAGE_BYTES
from costguard.ledger.places import read_folder
from costguard.reports.receipt import receipt_of

HERE = Path(__file__).parent
SEAT = Seat(2, 0)


def dying(*arguments: str) -> Any:
    """What dying.py tells of its children."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "dying.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Life:
    """One child, what it told before it died, and what it left."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.at, self.how, self.cut = told["at"], told["how"], told["cut"]
        self.code, self.operations = told["code"], told["operations"]
        self.folder = os.path.join(told["root"], "costguard", "r")
        self.root = told["root"]

    def __repr__(self) -> str:
        return f"{'power cut' if self.cut else 'killed'} {self.how} {self.operations[self.at - 1]}"

    def left(self, name: str) -> bytes | None:
        path = Path(self.folder, name)
        return path.read_bytes() if path.exists() else None

    def did(self) -> list[str]:
        """Operations that were done to their end."""
        done = self.at if self.how == "after" else self.at - 1
        return [o.split()[1] for o in self.operations[: done if self.at else None]]

    def flushed(self) -> int:
        """How many lines had reached the disk, as the log of operations has it."""
        done = self.did()
        if self.cut:
            # Only what was written before the last sync that came to its end.
            done = done[: len(done) - done[::-1].index("sync")] if "sync" in done else []
        return done.count("write")


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> list[Life]:
    """Every life: the first two in full, then one for each operation and way to die, after an attempt that died."""
    template = tmp_path_factory.mktemp("template")
    journal = Journal(LocalFiles(), str(template))
    attempt = journal.attempt(gap="held")
    attempt.train(60, 5)
    attempt.save()
    attempt.train(30, 5)
    attempt.die()
    return [Life(told) for told in dying("kills", str(template), str(tmp_path_factory.mktemp("kills")))]


@pytest.fixture(scope="module")
def whole(lives: Sequence[Life]) -> bytes:
    """The segment of a life in full."""
    segment = lives[0].left(SEAT.segment)
    assert segment is not None
    return segment


def lines_of(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def test_every_operation_was_died_at(lives: Sequence[Life], whole: bytes) -> None:
    """The journal is killed at every single write and sync in turn, before it, after it and in the middle of it."""
    full = lives[0].operations
    names = [operation.split()[1] for operation in full]
    assert names[:4] == ["make_folder", "create", "map_page", "write"]
    assert names.count("write") == len(lines_of(whole)) >= 12
    assert names.count("sync") >= 5
    assert [life.code for life in lives[:2]] == [0, 0]
    for life in lives[2:]:
        assert life.code == 9
        assert [o.split()[:2] for o in life.operations] == [o.split()[:2] for o in full[: life.at]]
    assert {(x.at, x.how, x.cut) for x in lives[2:]} == {
        (at, how, cut) for at in range(1, len(full) + 1) for how in ("before", "after", "torn") for cut in (False, True)
    }


def test_a_life_in_full_is_read_back_in_full(lives: Sequence[Life], whole: bytes) -> None:
    """Without a death every line is there, also where only what was synced counts."""
    assert lives[1].left(SEAT.segment) == whole
    for life in lives[:2]:
        account = read_folder(life.folder)
        assert_closes(account)
        assert (account.problems, account.ranks[-1].status) == ([], "closed")
        assert account.ranks[-1].reason == "ValueError: no"


def test_what_was_flushed_is_read_back_and_nothing_else(lives: Sequence[Life], whole: bytes) -> None:
    """After each death the segment holds the lines that the log of operations says, at most half a line more."""
    rows = lines_of(whole)
    for life in lives[2:]:
        segment = life.left(SEAT.segment)
        if "create" not in life.did():
            assert segment is None, life
            continue
        assert segment is not None, life
        expected = b"".join(rows[: life.flushed()])
        torn = life.how == "torn" and not life.cut and life.operations[-1].split()[1] == "write"
        half = rows[life.flushed()][: len(rows[life.flushed()]) // 2] if torn else b""
        assert segment == expected + half, life
        reading = decode(segment, "s")
        assert reading.lines == decode(expected, "s").lines, life
        assert len(reading.problems) == (1 if torn or not segment else 0), life


def test_after_each_death_the_account_closes(lives: Sequence[Life]) -> None:
    """`read_folder` never raises, every sum closes, and the receipt can be written."""
    for life in lives:
        account = read_folder(life.folder)
        assert_closes(account)
        assert account.attempts[0] == 1
        receipt_of(account, life.folder)


def test_a_killed_process_loses_no_step(lives: Sequence[Life], whole: bytes) -> None:
    """Whatever it was killed at, the page and the lines have all that had been done by then."""
    for life in lives[2:]:
        if life.cut or life.at <= 3:
            continue  # before the page there is nothing to lose but the start of this process
        account = read_folder(life.folder)
        last = account.ranks[-1]
        assert last.seat == SEAT, life
        page = life.left(SEAT.page)
        lines = decode(life.left(SEAT.segment) or b"", "s").lines
        done = max([line["done"][0] for line in lines if "ns" in line], default=0)
        assert last.final.counters.step >= done, life
        assert page is not None
        # The line that was being written tells what had been done by then, had it been written.
        writes = [o for o in life.operations if o.split()[1] == "write"]
        told = decode(b"".join(lines_of(whole)[: len(writes)]), "s").lines
        steps = max([line["done"][0] for line in told if "ns" in line], default=0)
        assert last.final.counters.step == steps, life


@pytest.mark.parametrize("page", ["gone", "zeros", "empty", "short"])
def test_after_a_power_cut_the_page_may_be_anything(
    lives: Sequence[Life], whole: bytes, page: str, tmp_path: Path
) -> None:
    """A page whose bytes never reached the disk costs at most what came after the last synced line."""
    forms = {"gone": None, "zeros": bytes(PAGE_BYTES), "empty": b"", "short": bytes(100)}
    first = SeatFiles(Seat(1, 0), lives[0].left(Seat(1, 0).segment) or b"", lives[0].left(Seat(1, 0).page))
    for life in lives[2:]:
        if not life.cut:
            continue
        account = fold("r", [first, SeatFiles(SEAT, life.left(SEAT.segment) or b"", forms[page])])
        assert_closes(account)
        flushed = [line for line in decode(b"".join(lines_of(whole)[: life.flushed()]), "s").lines if "ns" in line]
        ranks = [r for r in account.ranks if r.seat == SEAT]
        assert bool(ranks) == bool(flushed), life
        if flushed:
            assert ranks[0].final.counters.step == flushed[-1]["done"][0], life
            assert ranks[0].elapsed_ns == flushed[-1]["t"] - flushed[-1]["t0"] + (ranks[0].estimated_ns), life


def test_after_each_death_the_run_goes_on(lives: Sequence[Life]) -> None:
    """The next attempt gets a seat of its own, and knows the run as a reader does."""
    for life in lives[2::3]:
        before = read_folder(life.folder)
        claim = claim_attempt(LocalFiles(), life.root, "r")
        assert claim.segment is not None, life
        claim.segment.close()
        assert claim.seat.attempt == (3 if "create" in life.did() else 2), life
        assert claim.earlier == before, life
        os.remove(claim.segment.path)


def test_a_restore_that_was_killed_is_done_again(tmp_path: Path) -> None:
    """Dying while a run is brought back from its mirror loses nothing: the next start brings it back."""
    journal = Journal(LocalFiles(), str(tmp_path / "a"))
    attempt = journal.attempt()
    attempt.train(60)
    attempt.close()
    url = f"file://{tmp_path}/store/r"
    Mirror(url).push(os.path.join(journal.folder, attempt.seat.segment))
    told = dying("restores", url, str(tmp_path))
    assert [t["code"] for t in told[:3]] == [9, 9, 9]
    for life in told:
        folder = os.path.join(life["root"], "costguard", "r")
        Mirror(url, LocalFiles()).restore(folder)
        assert read_folder(folder).elapsed_device_ns == 60 * NS, life


def test_a_killed_process_loses_nothing_that_it_told(tmp_path: Path) -> None:
    """SIGKILL in the middle of quick steps: the folded account has every step whose end was told to anybody."""
    for life in dying("pages", str(tmp_path)):
        account = read_folder(os.path.join(life["root"], "costguard", "r"))
        assert_closes(account)
        (rank,) = account.ranks
        assert rank.status == "died"
        assert life["told"] <= rank.final.counters.step <= life["told"] + 1
        assert rank.final.counters.batches == rank.final.counters.step
        assert rank.final.counters.tokens == 10 * rank.final.counters.step
        assert account.problems == []


def audited(*arguments: str) -> dict[str, Any]:
    told: dict[str, Any] = dying("audit", *arguments)
    assert told["control"] >= 1
    assert {"make_folder", "create", "write", "sync", "map_page", "read", "listing"} <= told["calls"].keys()
    assert {"open", "os.mkdir", "mmap.__new__", "os.listdir"} <= told["through"].keys()
    return told


def test_no_file_operation_goes_around_the_layer(tmp_path: Path) -> None:
    """An audit hook of the interpreter hears of nothing below the run's folder outside the layer's verbs."""
    assert audited(str(tmp_path))["around"] == []


def test_no_file_operation_of_the_mirror_goes_around_the_layer(tmp_path: Path) -> None:
    """Also with a mirror the journal's files are touched only through the layer."""
    (tmp_path / "run").mkdir()
    assert audited(str(tmp_path / "run"), f"file://{tmp_path}/store/r")["around"] == []


def test_the_layer_is_not_needed_to_read(lives: Sequence[Life], tmp_path: Path) -> None:
    """A copy of the folder, on any other disk, is the same run."""
    copy = tmp_path / "r"
    shutil.copytree(lives[0].folder, copy)
    assert read_folder(str(copy)) == read_folder(lives[0].folder)
