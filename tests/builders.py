"""Journals written by the real writer on a clock that the test moves, in memory or on a disk; no torch is needed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from fractions import Fraction
from random import Random
from typing import Any

from hypothesis import settings

from costguard.ledger.account import RunAccount
from costguard.ledger.activity import ActivityMeter
from costguard.ledger.attempt import AttemptWriter, count
from costguard.ledger.files import Files
from costguard.ledger.fold import SeatFiles, fold
from costguard.ledger.layout import Seat, run_folder
from costguard.ledger.lines import encode
from costguard.ledger.mirror import Mirror
from costguard.ledger.opening import claim_attempt, claim_rank
from costguard.ledger.places import FolderReader
from costguard.prices import Price, PriceBook
from costguard.records import Activity
from costguard.testing import ManualClock

NS = 1_000_000_000
HOUR_NS = 3600 * NS
T0 = 1_705_305_600 * NS
"""2024-01-15T08:00:00Z, where the wall clock of a `Journal` stands: long ago, whenever the tests are run."""
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

    def read(self, path: str, start: int = 0) -> bytes:
        if path not in self.data:
            raise FileNotFoundError(path)
        return bytes(self.data[path][start:])

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
                self.writer.adopt_page(rank.seat)

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

    def resume(self, attempt: int | None, save: int | None, step: int = 0) -> None:
        """Load a checkpoint that was written at `step`."""
        self.writer.resumed(attempt, save, step)
        self.step = step
        state = self.meter.state
        self.meter.settle(self.clock.now_ns(), state.activity, state.counters._replace(step=step))

    def close(self, exit_s: float = 0, reason: str | None = None) -> None:
        """End in order."""
        self.writer.close(reason, round(exit_s * NS))

    def die(self) -> None:
        """End as by `kill -9`: the page holds this instant, the segment gets nothing more."""
        state = self.meter.state
        self.meter.settle(self.clock.now_ns(), state.activity, state.counters)
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
        self.clock = clock or ManualClock(now_ns=1000 * NS, wall_ns=T0)

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
        kept, counters = account.kept[rank.seat], rank.final.counters
        assert 0 <= kept.train_ns <= rank.final.train_ns
        assert 0 <= kept.batches <= counters.batches
        assert 0 <= kept.tokens <= (counters.tokens or 0)
        assert 0 <= kept.padding <= (counters.padding or 0)
        assert 0 <= kept.samples <= (counters.samples or 0)


def rows(data: bytes) -> list[bytes]:
    """Lines of a segment, each with its newline."""
    return data.splitlines(keepends=True)


def tick_lines(number: int) -> list[bytes]:
    """Lines that carry nothing but their place."""
    return [encode(n, "tick", {"text": f"line {n}"}) for n in range(number)]


def plain_counts(values: Mapping[str, int]) -> dict[str, float]:
    """Nanoseconds as seconds, without what is zero."""
    return {name: ns / NS for name, ns in values.items() if ns}


ACTIVITIES = ("startup", "restore", "data_wait", "validation", "checkpoint", "logging", "metering", "idle", "teardown")


def random_book(random: Random, wall_ns: int) -> PriceBook:
    """Prices as users have them: none, one, one for the whole allocation, or some that change around `wall_ns`."""
    amount = f"{random.choice([0, 1, 2, 31, 1000])}.{random.randrange(10**6):06d}"
    unit = random.choice(["gpu_hour", "hour"])
    kind = random.randrange(4)
    if kind == 0:
        return PriceBook()
    prices = [Price(amount=amount, unit=unit)]
    if kind > 1:
        begin = datetime.fromtimestamp(wall_ns // NS + random.randrange(-60, 600), timezone.utc)
        later = Price(amount=random.choice(["0.1", "3", "7.77"]), unit=unit, valid_from=begin.isoformat())
        prices = [later] if kind == 3 and random.random() < 0.3 else [*prices, later]
    return PriceBook(prices=tuple(prices))


def random_work(random: Random, ranks: list[Attempt], saves: list[tuple[int, int, int]]) -> None:
    """Something that ranks do; sometimes one dies before it has noted what the first has."""
    rank, seconds = random.choice(ranks), random.randrange(1, 100 * NS) / NS
    those = ranks[: random.choice([1, len(ranks)])]
    what = random.choice(["train", "train", "tick", "save", "resume", *ACTIVITIES])
    if what == "train":
        rank.train(seconds, random.choice([None, 1000]), random.choice([None, 7]))
    elif what == "tick":
        rank.writer.tick()
    elif what == "save":
        saves.append((rank.seat.attempt, max([r.save() for r in those]), those[0].step))
    elif what == "resume":
        origin = random.choice([*saves, (None, None, 3)])
        for each in those:
            each.resume(*origin)
    else:
        rank.spend(what, seconds)


def random_journal(random: Random) -> Journal:
    """A run of any shape: attempts that died or closed, ranks, idle devices, price changes, saves, rework, gaps."""
    journal = Journal(clock=ManualClock(now_ns=random.randrange(10**15), wall_ns=T0))
    saves: list[tuple[int, int, int]] = []
    for number in range(1, random.randint(1, 3) + 1):
        world, idle = random.randint(1, 2), random.choice([0, 0, 1, 3])
        common = {
            "book": random_book(random, journal.clock.wall_ns()),
            "world_size": world,
            "paid_devices": world + idle,
            "tags": {key: random.choice("ab") for key in ("team", "stage") if random.random() < 0.7},
            "gap": random.choice(["auto", "held", "released"]),
            "allocation": random.choice([None, "job-1"]),
            "boot": random.choice(["boot-a", "boot-a", "boot-b", None]),
        }
        ranks = [journal.attempt(rank=r, of=number, idle_devices=0 if r else idle, **common) for r in range(world)]
        if saves and random.random() < 0.8:
            origin = random.choice(saves)
            for rank in ranks:
                rank.resume(*origin)
        for _ in range(random.randint(0, 8)):
            random_work(random, ranks, saves)
        for rank in ranks:
            if random.random() < 0.5:
                rank.die()
            else:
                rank.close(exit_s=random.choice([0, 1]))
        journal.wait(random.choice([0, 5, 100.5, 86_400]))
    return journal


def assert_receipt_adds_up(receipt: Mapping[str, Any]) -> None:
    """Every breakdown adds up to its total to the last digit."""

    def total(amounts: Mapping[str, str]) -> Fraction:
        assert all(Fraction(amount) >= 0 for amount in amounts.values())
        return sum((Fraction(amount) for amount in amounts.values()), Fraction(0))

    for attempt in receipt["run"]["attempts"]:
        assert 0 <= attempt["rework_batches"] <= attempt["batches"]
        assert attempt["rework_steps"] >= 0
    time, spend = receipt["time"], receipt["spend"]
    assert sum(time["activities_ns"].values()) == time["elapsed_device_ns"]
    assert sum(time["outcomes_ns"].values()) == time["activities_ns"].get("train", 0)
    if spend["total"] is None:
        assert (spend["device_total"], spend["by_activity"], spend["by_meter"]) == (None, {}, {})
        return
    assert total(spend["by_activity"]) == Fraction(spend["device_total"])
    assert total(spend["by_meter"]) == Fraction(spend["total"])
    assert total(spend["by_outcome"]) == Fraction(spend["by_activity"].get("train", 0))
    for parts in spend["by_tag"].values():
        assert total(parts) == Fraction(spend["total"])
