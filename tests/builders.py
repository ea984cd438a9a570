"""Journals written by the real writer on a clock that the test moves, in memory or on a disk; no torch is needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hypothesis import settings

from costguard.ledger.account import RunAccount
from costguard.ledger.activity import ActivityMeter
from costguard.ledger.attempt import AttemptWriter, count
from costguard.ledger.files import Files
from costguard.ledger.fold import SeatFiles, fold, fold_line
from costguard.ledger.layout import Seat, run_folder
from costguard.ledger.lines import encode
from costguard.ledger.mirror import Mirror
from costguard.ledger.opening import claim_attempt, claim_rank
from costguard.ledger.page import read_page
from costguard.ledger.places import FolderReader
from costguard.prices import PriceBook
from costguard.records import Activity
from costguard.testing import ManualClock

NS = 1_000_000_000
HOUR_NS = 3600 * NS
TWO_DOLLARS = PriceBook.for_run("test", "2", None)


def examples(number: int) -> settings:
    """Settings of a property test: so many examples, no timing, nothing left behind."""
    return settings(max_examples=number, deadline=None, database=None)


class MemoryFiles:
    """The journal's file layer without a disk."""

    def __init__(self) -> None:
        self.data: dict[str, bytearray] = {}
        self._handles: dict[int, str] = {}

    def make_folder(self, path: str) -> None:
        """Every folder is there."""

    def create(self, path: str) -> int:
        if path in self.data:
            raise FileExistsError(path)
        self.data[path] = bytearray()
        handle = len(self._handles) + 1
        self._handles[handle] = path
        return handle

    def write(self, handle: int, data: bytes) -> int:
        self.data[self._handles[handle]] += data
        return len(data)

    def sync(self, handle: int) -> None:
        """Memory is always in sync."""

    def close(self, handle: int) -> None:
        """Nothing to give back."""

    def map_page(self, path: str, size: int) -> memoryview:
        self.data[path] = bytearray(size)
        return memoryview(self.data[path])

    def read(self, path: str) -> bytes:
        if path not in self.data:
            raise FileNotFoundError(path)
        return bytes(self.data[path])

    def listing(self, path: str) -> list[str]:
        inside = (p.removeprefix(path + "/") for p in self.data if p.startswith(path + "/"))
        return sorted({name.split("/")[0] for name in inside})


class Mortal:
    """Passes everything on to another file layer until the process that it stands for is dead."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.dead = False

    def write(self, handle: int, data: bytes) -> int:
        return len(data) if self.dead else self._files.write(handle, data)

    def sync(self, handle: int) -> None:
        if not self.dead:
            self._files.sync(handle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class StillWriter(AttemptWriter):
    """A writer whose thread has nothing to do, so that nothing happens but what the test does."""

    def _keep_fresh(self) -> None:
        """No beats, no lines."""


assert hasattr(AttemptWriter, "_keep_fresh")


def header_of(clock: ManualClock, seat: Seat, book: PriceBook, **more: Any) -> dict[str, Any]:
    """Fields of a first line as `costguard.lightning.run` writes them, of a process that is not this one."""
    fields: dict[str, Any] = {
        "run": "r",
        "attempt": seat.attempt,
        "rank": seat.rank,
        "wall_offset_ns": clock.wall_ns() - clock.now_ns(),
        "world_size": 1,
        "device": "CPU",
        "pid": 2**30 + 1000 * seat.attempt + seat.rank,
        "pid_start": 0,
        "host": "host-a",
        "boot": "boot-a",
        "allocation": None,
        "job": None,
        "idle_devices": 0,
        "paid_devices": 1,
        "planned_tokens": None,
        "tags": {},
        "book": book.to_json(),
        "gap": "auto",
    }
    return fields | more


class Attempt:
    """One rank of one attempt."""

    def __init__(
        self,
        journal: Journal,
        seat: Seat | None = None,
        *,
        book: PriceBook = TWO_DOLLARS,
        mirror: Mirror | None = None,
        writer: type[AttemptWriter] = StillWriter,
        **header: Any,
    ) -> None:
        self.clock = journal.clock
        self.files = Mortal(journal.files)
        if seat is None or seat.rank == 0:
            claim = claim_attempt(self.files, journal.root, journal.run_id)
        else:
            claim = claim_rank(self.files, journal.root, journal.run_id, seat)
        self.seat = claim.seat
        self.step = 0
        self.meter = ActivityMeter(self.clock.now_ns(), Activity.STARTUP, self.clock.now_ns)
        self.writer = writer(
            files=self.files,
            folder=claim.folder,
            seat=claim.seat,
            segment=claim.segment,
            meter=self.meter,
            clock=self.clock,
            header=header_of(self.clock, self.seat, book, **({"run": journal.run_id} | header)),
            price_changes_ns=book.changes_ns(),
            mirror=mirror,
        )
        for rank in claim.earlier.ranks:
            if rank.status == "died" and self.seat.rank == 0:
                data = self.files.read(os.path.join(claim.folder, rank.seat.page))
                if page := read_page(data):
                    self.writer.adopt(fold_line(rank.seat, page))

    def spend(self, activity: str, seconds: float) -> Attempt:
        """Let `seconds` go by in an activity."""
        self.meter.enter(Activity[activity.upper()])
        self.clock.advance(seconds)
        return self

    def train(self, seconds: float, tokens: int | None = None, padding: int | None = None) -> Attempt:
        """Train one batch, which is one step."""
        self.spend("train", seconds)
        self.step += 1
        counters = count(self.meter.state.counters, self.step, tokens, padding, 1)
        self.meter.settle(self.clock.now_ns(), Activity.DATA_WAIT, counters)
        return self

    def save(self) -> int:
        """Write a checkpoint."""
        return self.writer.mark()

    def close(self, exit_s: float = 0, reason: str | None = None) -> None:
        """End in order."""
        self.writer.close(reason, round(exit_s * NS))

    def die(self) -> None:
        """End as by `kill -9`: the page holds this instant, the segment gets nothing more."""
        self.meter.enter(self.meter.state.activity)
        self.files.dead = True
        self.writer.close(None, 0)


class Journal:
    """A run's journal; attempts are made, die and are read back on one clock."""

    def __init__(
        self, files: Files | None = None, root: str = "/root", run_id: str = "r", clock: ManualClock | None = None
    ) -> None:
        self.files: Files = files or MemoryFiles()
        self.root = root
        self.run_id = run_id
        self.clock = clock or ManualClock(now_ns=1000 * NS)

    @property
    def folder(self) -> str:
        return run_folder(self.root, self.run_id)

    def attempt(self, rank: int = 0, of: int = 1, **options: Any) -> Attempt:
        """Begin the next attempt, or another rank of attempt `of`."""
        return Attempt(self, Seat(of, rank) if rank else None, **options)

    def wait(self, seconds: float) -> None:
        """Let time go by in which nobody works."""
        self.clock.advance(seconds)

    def seat_files(self) -> list[SeatFiles]:
        return FolderReader(self.folder, self.files).seat_files()

    def account(self) -> RunAccount:
        return fold(self.run_id, self.seat_files())


def died_after(seconds: float, journal: Journal | None = None, **header: Any) -> Journal:
    """A run whose only attempt trained `seconds` and died."""
    journal = journal or Journal()
    journal.attempt(**header).train(seconds).die()
    return journal


def assert_closes(account: RunAccount) -> None:
    """Every second has exactly one activity, every second of training one outcome, and none is negative."""
    activities, outcomes = account.activities_ns(), account.outcomes_ns()
    assert sum(activities.values()) == account.elapsed_device_ns
    assert sum(outcomes.values()) == activities.get("train", 0)
    assert all(ns >= 0 for ns in [*activities.values(), *outcomes.values()])
    for rank in account.ranks:
        assert sum(rank.final.activities_ns.values()) == rank.elapsed_ns


def rows(data: bytes) -> list[bytes]:
    """Lines of a segment, each with its newline."""
    return data.splitlines(keepends=True)


def tick_lines(number: int) -> list[bytes]:
    """Lines that carry nothing but their place."""
    return [encode(n, "tick", {"text": f"line {n}"}) for n in range(number)]


def plain_counts(values: Mapping[str, int]) -> dict[str, float]:
    """Nanoseconds as seconds, without what is zero."""
    return {name: ns / NS for name, ns in values.items() if ns}
