"""Making, opening, raising and reading a pot, and what is said of pots and stores that cannot be used."""

from __future__ import annotations

import json
import threading
import time
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from memory import MemoryStore

from costguard.errors import ConfigError, PotAwayError, PotError
from costguard.pots import Pot
from costguard.pots.probe import why_not_exclusive
from costguard.pots.store import Guarded, open_store
from costguard.testing import ManualClock


def make(store: MemoryStore, **options: Any) -> Pot:
    given = {"limit_usd": 100, **options}
    return Pot.create("memory", store=store, clock=ManualClock(), sleep=lambda s: None, **given)


def test_raising_the_limit_leaves_a_line_that_others_read(tmp_path: Path) -> None:
    """Who, when, why, from and to, in order, in the status of whoever opens the pot."""
    pot = Pot.create(str(tmp_path / "pot"), limit_usd="100.5")
    first = pot.raise_limit(by="0.25", why="longer warm-up", who="ann")
    pot.raise_limit(to=200, why="second stage")
    assert (first.start, first.to) == (Decimal("100.5"), Decimal("100.75"))
    assert (first.who, first.why) == ("ann", "longer warm-up")
    status = Pot.open(str(tmp_path / "pot")).status()
    assert status.limit == status.free == 200
    assert status.raises[0] == first
    assert (status.raises[1].start, status.raises[1].to) == (Decimal("100.75"), 200)
    assert "@" in status.raises[1].who
    assert status.raises[0].at <= status.raises[1].at
    assert first.at.endswith("Z")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"by": 1, "why": " "}, "expected a reason"),
        ({"why": "x"}, "expected one of the two"),
        ({"by": 1, "to": 2, "why": "x"}, "expected one of the two"),
        ({"by": 0, "why": "x"}, r"the limit is \$100.00 already"),
        ({"to": 99, "why": "x"}, r"the limit is \$100.00 already"),
        ({"to": "much", "why": "x"}, "expected US dollars"),
        ({"by": float("nan"), "why": "x"}, "not a finite number"),
    ],
)
def test_a_raise_that_makes_no_sense_is_refused(options: dict[str, Any], why: str) -> None:
    """In one sentence, and the limit stays as it is."""
    pot = make(MemoryStore())
    with pytest.raises(ConfigError, match=why):
        pot.raise_limit(**options)
    assert pot.status().limit == 100


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "expected one of the two"),
        ({"limit_usd": 1, "limit_gpu_hours": 1}, "expected one of the two"),
        ({"limit_usd": 0}, "nothing could be spent; expected US dollars"),
        ({"limit_gpu_hours": 0}, "nothing could be spent; expected GPU-hours"),
        ({"limit_usd": -5}, "negative; expected US dollars"),
        ({"limit_usd": float("nan")}, "not a finite number"),
        ({"limit_usd": "many"}, "not a number"),
        ({"limit_usd": 1, "voucher": 2}, "no more than the limit"),
        ({"limit_usd": 1, "voucher": 0}, "more than 0"),
        ({"limit_usd": 1, "lease_s": 0}, "at least 1"),
        ({"limit_usd": 1, "lease_s": 1.5}, "whole seconds"),
        ({"limit_usd": 1, "soft_runs": 1}, "at least 2"),
    ],
)
def test_terms_that_cannot_be_used_are_refused(options: dict[str, Any], why: str) -> None:
    """In one sentence, before anything is written."""
    store = MemoryStore()
    with pytest.raises(ConfigError, match=why):
        Pot.create("memory", store=store, **options)
    assert store.calls == 0


def test_runs_that_all_state_the_limit_share_one_pot() -> None:
    """`exist_ok`: the first makes it, the others open it; another limit or unit is told, not taken."""
    store = MemoryStore()
    make(store).raise_limit(by=50, why="more")
    assert make(store, exist_ok=True).status().limit == 150
    with pytest.raises(PotError, match=r"there is a pot at memory already \(first limit \$100.00\)"):
        make(store)
    with pytest.raises(ConfigError, match=r"was made with \$100.00; give that, and raise it"):
        make(store, limit_usd=150, exist_ok=True)
    with pytest.raises(ConfigError, match="was made with"):
        make(store, limit_usd=None, limit_gpu_hours=100, exist_ok=True)


def test_a_pot_that_counts_in_another_unit_is_refused() -> None:
    """Dollars and GPU-hours are never mixed."""
    store = MemoryStore()
    make(store, limit_usd=None, limit_gpu_hours=5)
    with pytest.raises(ConfigError, match="counts in gpu_hours"):
        Pot.open("memory", store=store, unit="usd")


def test_no_pot_is_said_with_the_remedy(tmp_path: Path) -> None:
    """Opening does not make one."""
    with pytest.raises(PotError, match=r"there is no pot at .*; make it with Pot\.create"):
        Pot.open(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def _newer(data: bytes) -> bytes:
    fields = json.loads(data)
    fields["v"] = 2
    return json.dumps(fields).encode()


def _altered(data: bytes) -> bytes:
    return data.replace(b'"limit":"100"', b'"limit":"900"')


BROKEN = [
    (_newer, "has schema 2, this costguard reads up to 1; upgrade it"),
    (_altered, "fails its checksum"),
    (lambda data: data[:-5], "is not a readable file of a pot"),
    (lambda data: b"", "is not a readable file of a pot"),
    (lambda data: b'{"a":1}', "is not a readable file of a pot"),
    (lambda data: b"[]", "is not a readable file of a pot"),
    (lambda data: b"\xff\xfe}", "is not a readable file of a pot"),
]


@pytest.mark.parametrize(("change", "why"), BROKEN)
@pytest.mark.parametrize("key", ["pot.json", "log/00000001.json"])
def test_a_file_that_cannot_be_read_is_one_clear_error(key: str, change: Any, why: str) -> None:
    """Head or entry, newer, altered, torn or foreign: it says which file, and nothing is claimed."""
    store = MemoryStore()
    make(store).hold("run").claim(1)
    data, at = store.data[key]
    store.data[key] = (change(data), at)
    with pytest.raises(PotError, match=f"^memory/{key} {why}") as raised:
        Pot.open("memory", store=store, sleep=lambda s: None).hold("run").claim(1)
    assert not isinstance(raised.value, PotAwayError)
    assert len(str(raised.value).splitlines()) == 1


def test_a_missing_entry_is_told_before_its_number_is_won_again() -> None:
    """A hole in the log would let money be claimed twice."""
    store = MemoryStore()
    credit = make(store).hold("run")
    for _ in range(3):
        credit.claim(1)
    del store.data["log/00000002.json"]
    with pytest.raises(PotError, match=r"memory/log/00000002\.json is missing, and later entries are there"):
        Pot.open("memory", store=store)


def test_status_is_plain_data() -> None:
    """It survives JSON, with amounts as exact decimal strings."""
    store = MemoryStore()
    pot = make(store)
    pot.hold("run-7").claim("0.1")
    status = json.loads(json.dumps(pot.status().to_json()))
    assert status["schema_version"] == 1
    assert (status["limit"], status["claimed"], status["live"], status["free"]) == ("100", "0.1", "0.1", "99.9")
    assert status["holders"][0]["run"] == "run-7"
    assert status["overshoot_bound"] == "0"


# -- stores that ignore exclusive create -------------------------------------------------------------------------


def test_hard_mode_is_refused_on_a_store_that_overwrites_and_soft_mode_is_offered() -> None:
    """The probe finds it; the bound of soft mode is said; nothing is left of the probe."""
    store = MemoryStore(exclusive=False)
    with pytest.raises(ConfigError, match=r"overwrote an object.*soft_runs=N.*passed by \$0\.1000 for each other run"):
        make(store)
    assert store.data == {}


def test_a_store_without_exclusive_create_says_so() -> None:
    """A protocol that has no "xb" is refused with the same sentence."""
    store = MemoryStore()
    store.create_exclusive = lambda key, data: _none()  # type: ignore[method-assign]
    assert why_not_exclusive(store) == "has no exclusive create (mode must be rb or wb)"


def _none() -> bool:
    raise NotImplementedError("mode must be rb or wb")


def test_a_hard_pot_on_a_store_that_keeps_it_no_longer_is_refused_at_the_start() -> None:
    """The probe is made at every start, not only when the pot is made."""
    store = MemoryStore()
    make(store)
    store._exclusive = False
    with pytest.raises(ConfigError, match="overwrote"):
        Pot.open("memory", store=store)


def test_soft_mode_shows_its_bound_and_keeps_claims_below_a_voucher() -> None:
    """Eight runs, vouchers of 0.1: the limit may be passed by 0.7."""
    store = MemoryStore(exclusive=False)
    pot = make(store, soft_runs=8)
    assert pot.status().overshoot_bound == Decimal("0.7")
    assert pot.status().mode == "soft"
    grant = pot.hold("run").claim(5)
    assert (grant.outcome, grant.amount) == ("partial", Decimal("0.1"))


def test_in_soft_mode_no_more_runs_hold_credit_than_its_bound_counts_on() -> None:
    """The third of two gets nothing until one has ended."""
    pot = make(MemoryStore(exclusive=False), soft_runs=2)
    first, second, third = (pot.hold("run") for _ in range(3))
    assert first.claim().outcome == second.claim().outcome == "granted"
    refused = third.claim()
    assert refused.outcome == "empty"
    assert "at most 2 runs" in refused.message
    first.refund()
    third.refund()
    assert pot.hold("run").claim().outcome == "granted"


def test_soft_claims_that_see_each_other_are_taken_back() -> None:
    """Two read the same sum and both write: the later one sees it, takes its claim back, and asks for what is left."""
    store = MemoryStore(exclusive=False)
    pot = make(store, soft_runs=2, voucher=60)
    one, other = pot.hold("one"), pot.hold("other")
    put = store.put

    def meanwhile(key: str, data: bytes) -> None:
        if key.startswith("holders/"):
            store.put = put  # type: ignore[method-assign]
            assert other.claim(60).outcome == "granted"
        put(key, data)

    store.put = meanwhile  # type: ignore[method-assign]
    assert (one.claim(60).outcome, one.left, other.left) == ("partial", 40, 60)
    status = pot.status()
    assert (status.claimed, status.live, status.free) == (100, 100, 0)


def test_a_soft_pot_is_raised_swept_and_refunded_as_a_hard_one() -> None:
    """Its sums close."""
    clock = ManualClock()
    store = MemoryStore(clock, exclusive=False)
    pot = Pot.create("memory", limit_usd=10, voucher=5, lease_s=60, soft_runs=2, store=store, clock=clock)
    one, other = pot.hold("one"), pot.hold("other")
    one.claim(5)
    one.spend(2)
    other.claim(5)
    assert one.refund() == 3
    pot.raise_limit(by=1, why="more")
    clock.advance(600)
    (swept,) = pot.sweep(lambda holder, run: 4)
    assert swept.refunded == 1
    status = Pot.open("memory", store=store, clock=clock).status()
    assert (status.limit, status.claimed, status.spent, status.refunded, status.live) == (11, 10, 6, 4, 0)
    assert status.free == 5


# -- stores --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "file", "memory", "seaweed"])
def test_each_store_creates_once_lists_reads_and_deletes(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One battery for every store: a second create is refused and changes nothing."""
    url = {"folder": str(tmp_path / "p"), "file": f"file://{tmp_path}/p", "memory": f"memory://{tmp_path}"}.get(kind)
    store = open_store(url or request.getfixturevalue("seaweed_url"))
    assert store.read("log/1") is None
    assert store.list("log") == []
    assert store.modified_ns("log/1") is None
    assert why_not_exclusive(store) is None
    assert store.create_exclusive("log/1", b"one")
    assert not store.create_exclusive("log/1", b"two")
    assert store.read("log/1") == b"one"
    store.put("log/2", b"a")
    store.put("log/2", b"b")
    assert store.read("log/2") == b"b"
    assert store.list("log") == ["1", "2"]
    assert store.modified_ns("log/1") is not None
    store.delete("log/1")
    store.delete("log/1")
    assert store.list("log") == ["2"]


def test_a_disk_without_hard_links_is_used_by_exclusive_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAT and some mounts have no links: the object is created with "xb"."""

    def no_links(source: str, target: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    store = open_store(str(tmp_path))
    assert store.create_exclusive("a", b"1")
    assert not store.create_exclusive("a", b"2")
    assert store.read("a") == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_entry_half_written_is_waited_for() -> None:
    """On a disk without links a reader may come before the end of an entry is there."""
    store = MemoryStore()
    make(store).hold("run").claim(1)
    whole, at = store.data["log/00000001.json"]
    store.data["log/00000001.json"] = (whole[:50], at)

    def sleep(seconds: float) -> None:
        store.data["log/00000001.json"] = (whole, at)

    assert Pot.open("memory", store=store, sleep=sleep).status().claimed == 1


def test_a_store_that_hangs_is_away_after_its_deadline_and_no_threads_pile_up() -> None:
    """Each call ends in time; with four calls unanswered the next are refused unasked."""
    release, store = threading.Event(), MemoryStore()
    store.read = lambda key: bytes(release.wait(30))  # type: ignore[method-assign]
    guarded = Guarded(store, 0.02)
    threads = threading.active_count()
    try:
        for _ in range(8):
            with pytest.raises(PotAwayError, match="the pot at memory is away"):
                guarded.read("x")
        assert threading.active_count() <= threads + 4
        with pytest.raises(PotAwayError, match="4 calls have no answer yet"):
            guarded.put("x", b"")
    finally:
        release.set()


def test_a_folder_that_cannot_be_written_is_said_plainly(tmp_path: Path) -> None:
    """A file stands where the folder should be: one sentence that names the pot and the cause."""
    (tmp_path / "pot").write_text("")
    with pytest.raises(PotAwayError, match=r"the pot at .*pot is away \((FileExists|NotADirectory)Error"):
        Pot.create(str(tmp_path / "pot"), limit_usd=1)


@pytest.mark.parametrize(
    ("url", "why"),
    [("", "expected a folder or URL"), ("nosuch://x", "Protocol not known"), (None, "expected a folder")],
)
def test_a_url_that_cannot_be_used_is_refused(url: Any, why: str) -> None:
    """In one sentence."""
    with pytest.raises(ConfigError, match=why):
        Pot.open(url)


def test_the_checksum_is_of_what_was_written() -> None:
    """The seal can be computed by hand from the file."""
    store = MemoryStore()
    make(store)
    data = store.data["pot.json"][0]
    body, _, seal = data.rpartition(b',"crc":"')
    assert seal == b'%08x"}' % zlib.crc32(body + b"}")


def test_of_runs_that_all_make_the_pot_at_one_moment_one_makes_it(tmp_path: Path) -> None:
    """Eight at once on a disk: one head stands, and all use it."""
    made: list[str] = []
    start = threading.Barrier(8)

    def run() -> None:
        start.wait()
        made.append(Pot.create(str(tmp_path / "pot"), limit_usd=5, exist_ok=True).terms.pot)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(made)) == 1


@pytest.mark.parametrize("kind", ["folder", "seaweed"])
def test_a_dead_holder_is_swept_by_the_stores_own_clock(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Real files and objects with real times: one that beats is left alone, one that is silent is swept."""
    url = str(tmp_path / "pot") if kind == "folder" else request.getfixturevalue("seaweed_url")
    pot = Pot.create(url, limit_usd=10, lease_s=1)
    dead, alive = pot.hold("dead"), pot.hold("alive")
    dead.claim(3)
    alive.claim(2)
    for _ in range(9):  # an object's time on S3 is in whole seconds
        time.sleep(0.5)
        alive.beat()
    (swept,) = pot.sweep(lambda holder, run: 1)
    assert (swept.run, swept.spent, swept.refunded) == ("dead", 1, 2)
    assert pot.status().live == 2
