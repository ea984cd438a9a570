"""What one checkpoint costs, and what a cold store is found to allow."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path

import pytest
from proxy import Proxy, Rule
from rooms import file_system, room_of, s3_store, saved

from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.faults import StoreError
from costguard.checkpoints.hot import FileFact
from costguard.checkpoints.lives import life_of
from costguard.checkpoints.money import cost_of, requests_of
from costguard.checkpoints.preflight import probe
from costguard.checkpoints.record import Record
from costguard.checkpoints.restore import restore
from costguard.checkpoints.store import LocalStore, Store
from costguard.policies.retention import Tiers
from costguard.prices.storage import DAY_NS, GB, storage_class
from costguard.units import round_money

NOW = 1_800_000_000 * 10**9
TIERS = Tiers(hot=storage_class("s3:STANDARD"), cold=storage_class("s3:GLACIER_IR"), part_bytes=50 << 20)
FILES = (FileFact("", "file", 84 * GB),)


def cents(amount: Fraction | None) -> str:
    assert amount is not None
    return str(round_money(amount, 2))


def test_a_hot_checkpoint_costs_its_stall_and_its_days() -> None:
    """84 GB for a week on S3 Standard, after a save that held up $20 an hour for 30 s."""
    record = Record(id="a", path="/a", order=1, fingerprint=FILES, saved_ns=NOW - 7 * DAY_NS, blocked_ns=30 * 10**9)
    cost = cost_of(record, TIERS, NOW, usd_per_hour=Fraction(20))
    assert (cents(cost.blocked_usd), cents(cost.stored_usd), cents(cost.usd_per_month)) == ("0.17", "0.45", "1.93")
    assert (cost.requests_usd, cost.early_usd, cost.read_usd) == (0, 0, 0)


@pytest.mark.parametrize(
    ("days", "early", "stored"),
    [(0, "1.01", "0.00"), (30, "0.67", "0.34"), (90, "0.00", "1.01"), (180, "0.00", "2.02")],
)
def test_a_cold_checkpoint_costs_the_rest_of_its_minimum_when_it_goes(days: int, early: str, stored: str) -> None:
    """What was stored and what is still owed are the 90 days of Glacier IR, whenever it goes before they are over."""
    since = NOW - days * DAY_NS
    record = Record(id="a", path="/a", order=1, fingerprint=FILES, saved_ns=since, state="cold", cold_since_ns=since)
    cost = cost_of(record, TIERS, NOW)
    assert (cents(cost.early_usd), cents(cost.stored_usd)) == (early, stored)
    assert cents(cost.read_usd) == "2.52"
    assert cents(cost.usd_per_month) == "0.34"
    assert requests_of(record, 50 << 20) == 1603 + 2 + 1
    assert cost.requests_usd == 1606 * Fraction(2, 100) / 1000
    assert cost.blocked_usd is None


def test_each_tier_has_its_own_sum_and_reads_are_counted() -> None:
    """A week hot, a month cold, restored twice: $0.45 and $0.34 stored, $5.04 read; unknown reads are not free."""
    since = NOW - 30 * DAY_NS
    record = Record(
        id="a",
        path="/a",
        order=1,
        fingerprint=FILES,
        saved_ns=since - 7 * DAY_NS,
        state="cold",
        cold_since_ns=since,
        hot_before_ns=7 * DAY_NS,
    )
    cost = cost_of(record, TIERS, NOW, reads=2)
    assert (cents(cost.hot_usd), cents(cost.cold_usd), cents(cost.stored_usd)) == ("0.45", "0.34", "0.79")
    assert cents(cost.reads_usd) == "5.04"
    assert cost_of(record, TIERS, NOW).reads_usd == 0
    cool = Tiers(hot=TIERS.hot, cold=storage_class("az:Cool"))
    unknown = cost_of(record, cool, NOW, reads=1)
    assert (unknown.reads_usd, unknown.read_usd, unknown.requests_usd) == (None, None, None)
    assert cents(unknown.cold_usd) == "0.84"
    assert cost_of(record, cool, NOW).reads_usd == 0


def test_moves_note_what_its_price_depends_on(tmp_path: Path) -> None:
    """Time on the hot disk until it was let go, when it came back, and each time that it was read."""
    clock = [NOW]
    room = room_of(tmp_path, LocalStore(str(tmp_path / "cold")), now_ns=lambda: clock[0])
    id = saved(room, saved_ns=NOW - 2 * DAY_NS)
    saved(room, "newest.ckpt", b"new")
    demote(room, id)
    clock[0] += DAY_NS
    record = release(room, id)
    assert (record.hot_before_ns, record.reads, record.cold_since_ns) == (3 * DAY_NS, 0, NOW)
    # A folder shows no hash, so that its verification has read all of it once.
    assert life_of(record, room.part_bytes).checks == 1
    clock[0] += DAY_NS
    restore(room, id)
    restore(room, id)  # it is there already
    restore(room, id, str(tmp_path / "copy"))
    record = room.inventory.get(id)
    assert (record.reads, record.hot_since_ns) == (2, NOW + 2 * DAY_NS)
    clock[0] += DAY_NS
    assert release(room, id).hot_before_ns == 4 * DAY_NS
    Path(record.path).write_bytes(b"0123456789")  # put back by hand: nothing was read
    assert restore(room, id) == record.path
    assert room.inventory.get(id).reads == 2


def test_in_both_tiers_it_is_paid_for_twice() -> None:
    """And without a price nothing is made up."""
    record = Record(id="a", path="/a", order=1, fingerprint=FILES, saved_ns=NOW, state="both", cold_since_ns=NOW)
    assert cents(cost_of(record, TIERS, NOW).usd_per_month) == "2.27"
    assert cost_of(record, Tiers(hot=TIERS.hot), NOW).usd_per_month is None


def test_a_store_that_is_as_it_should_be_passes_every_probe(store: Store, tmp_path: Path) -> None:
    """And nothing is left of the probing."""
    findings = probe(room_of(tmp_path, store))
    assert [f for f in findings if not f.ok] == []
    assert {"write", "exclusive", "read", "list", "uploads", "delete", "disk", "temp"} <= {f.probe for f in findings}
    assert store.listing("") == []


def test_what_is_wrong_with_a_bucket_is_found(moto_endpoint: str, tmp_path: Path) -> None:
    """Versions that are billed, uploads that nobody sees, a clock that is off."""
    fs = file_system(moto_endpoint)
    fs.call_s3("create_bucket", Bucket="versions")
    fs.call_s3("put_bucket_versioning", Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
    from rooms import options

    from costguard.checkpoints.remote import open_store

    store = open_store("s3://versions/x", storage_options=options(moto_endpoint))
    fs.call_s3("create_multipart_upload", Bucket="versions", Key="x/run-7/lost/data/a/b")
    room = room_of(tmp_path, store, now_ns=lambda: NOW)
    wrong = {f.probe: f.sentence for f in probe(room) if not f.ok}
    assert set(wrong) == {"versioning", "uploads", "clock"}
    assert "still billed" in wrong["versioning"]


def test_missing_rights_are_found_before_the_run_leans_on_them(proxy: Proxy, tmp_path: Path) -> None:
    """A store that takes and never lets go is named before it is full."""
    proxy.rules.append(Rule("DELETE", "answer", 99, 403, "AccessDenied"))
    findings = probe(room_of(tmp_path, s3_store(proxy.endpoint, attempts=1)))
    assert [(f.probe, "check the rights" in f.sentence) for f in findings if f.ok is False] == [("delete", True)]
    proxy.rules.append(Rule("PUT", "answer", 99, 403, "AccessDenied"))
    found = probe(room_of(tmp_path, s3_store(proxy.endpoint, attempts=1)))
    assert [f.probe for f in found] == ["write", "disk", "temp"]  # what needs an object is left out


def test_a_temp_folder_on_another_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning#21253: what is saved is copied from there, and does not fit where nothing is free."""
    room = room_of(tmp_path, None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert [(f.probe, f.ok) for f in probe(room)] == [("disk", True), ("temp", True)]
    saved(room, "step=1.ckpt")
    monkeypatch.setattr(tempfile, "tempdir", "/proc")  # never the disk of anything else, and nothing is free there
    (temp,) = (f for f in probe(room) if f.probe == "temp")
    assert temp.ok is False
    assert "set TMPDIR" in temp.sentence
    assert "are too few" in temp.sentence


def test_a_cold_folder_whose_disk_is_away_is_not_taken_for_empty(tmp_path: Path) -> None:
    """A mount that is missing is an error, not a list of nothing."""
    store = LocalStore(str(tmp_path / "mount" / "point" / "cold"))
    with pytest.raises(StoreError, match="not known to be gone"):
        store.listing("")
    with pytest.raises(StoreError, match="leads out"):
        store.head("../x")
