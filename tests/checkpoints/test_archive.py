"""Archives of any folder, and temporary places that are swept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rooms import options, room_of, s3_store

from costguard.checkpoints.archive import archive, archived, plan_archive
from costguard.checkpoints.faults import CheckpointError, RefusedError
from costguard.checkpoints.restore import restore
from costguard.checkpoints.room import Room
from costguard.checkpoints.scratch import MARK, ScratchRegistry
from costguard.checkpoints.store import LocalStore, Store
from costguard.errors import ConfigError
from costguard.prices.storage import storage_class

DAY_S = 86_400.0
NOW_NS = 1_900_000_000 * 10**9


def corpus(folder: Path) -> dict[str, bytes]:
    """A folder of several files."""
    content = {"a.txt": b"a" * 100, "deep/er/b.bin": b"b" * 5000, "empty": b"", "name with ü": b"x"}
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return content


def archive_of(tmp_path: Path, store: Store, **more: Any) -> Room:
    return room_of(tmp_path, store, keep_newest=False, **more)


def test_a_folder_is_archived_listed_and_restored(store: Store, tmp_path: Path) -> None:
    """What comes back is what was there, also on a machine that knows nothing but the store."""
    content = corpus(tmp_path / "corpus")
    room = archive_of(tmp_path / "state", store)
    record = archive(room, str(tmp_path / "corpus"))
    assert archive(room, str(tmp_path / "corpus")) == record
    assert (tmp_path / "corpus").exists()
    archive(room, str(tmp_path / "corpus"), delete=True)
    assert not (tmp_path / "corpus").exists()

    other = archive_of(tmp_path / "elsewhere", store)
    (found,) = archived(other)
    assert (found.origin, found.size_bytes) == (str(tmp_path / "corpus"), 5101)
    restore(other, found.id, str(tmp_path / "back"))
    assert {name: (tmp_path / "back" / name).read_bytes() for name in content} == content


def test_an_archive_says_what_it_will_cost(tmp_path: Path) -> None:
    """Bytes, requests and money before anything is moved."""
    corpus(tmp_path / "corpus")
    store = LocalStore(str(tmp_path / "cold"))
    room = archive_of(tmp_path / "state", store, storage_class=storage_class("s3:GLACIER_IR"), part_bytes=1000)
    planned = plan_archive(room, str(tmp_path / "corpus"))
    assert (planned.files, planned.size_bytes, planned.requests) == (4, 5101, 1 + 3 + 7)
    assert planned.usd_fee == 11 * storage_class("s3:GLACIER_IR").put_usd(1)  # type: ignore[operator]
    assert planned.usd_per_month == storage_class("s3:GLACIER_IR").month_usd(5101)
    assert not (tmp_path / "cold").exists()
    assert plan_archive(archive_of(tmp_path / "state", store), str(tmp_path / "corpus")).usd_fee is None


def test_an_archive_does_not_swallow_its_own_list(tmp_path: Path) -> None:
    """Archiving the folder that it keeps its records in would delete them."""
    room = archive_of(tmp_path / "state", LocalStore(str(tmp_path / "cold")))
    (tmp_path / "state").mkdir()
    with pytest.raises(RefusedError, match="own list"):
        archive(room, str(tmp_path))
    with pytest.raises(RefusedError, match="no such"):
        archive(room, str(tmp_path / "nothing"))


# -- scratch -------------------------------------------------------------------------------------------------------


class Days:
    """A clock in days."""

    def __init__(self) -> None:
        self.day = 0.0

    def now_ns(self) -> int:
        return NOW_NS + round(self.day * DAY_S * 1e9)


def test_a_temporary_folder_goes_when_its_time_is_over(tmp_path: Path) -> None:
    """Not before, not while it is still written to, and nothing beside it."""
    clock = Days()
    registry = ScratchRegistry(str(tmp_path / "registry"), now_ns=clock.now_ns)
    entry = registry.register(str(tmp_path / "dumps"), 2 * DAY_S, note="debug dumps")
    (tmp_path / "dumps" / "sub").mkdir()
    (tmp_path / "dumps" / "sub" / "t.pt").write_bytes(bytes(10))
    os.utime(tmp_path / "dumps" / "sub" / "t.pt", ns=(0, NOW_NS + round(1.5 * DAY_S * 1e9)))
    outside = tmp_path / "precious"
    outside.write_text("stays")
    (tmp_path / "dumps" / "link").symlink_to(outside)
    clock.day = 3
    assert registry.due() == []
    clock.day = 3.6
    (due,) = registry.due()
    assert (due.sweepable, due.reason, due.scratch.id) == (True, "its time is over", entry.id)
    assert due.size_bytes == 10 + 16
    assert (tmp_path / "dumps").exists()
    assert [d.sweepable for d in registry.sweep()] == [True]
    assert sorted(os.listdir(tmp_path)) == ["precious", "registry"]
    assert registry.entries() == []


def test_what_was_verified_goes_at_the_next_sweep(tmp_path: Path) -> None:
    """Intermediates are freed as soon as what was made of them has been checked."""
    registry = ScratchRegistry(str(tmp_path / "registry"))
    registry.register(str(tmp_path / "parts"), 30 * DAY_S)
    assert registry.sweep() == []
    registry.verified(str(tmp_path / "parts"))
    assert registry.sweep()[0].reason == "it was verified"
    assert not (tmp_path / "parts").exists()
    with pytest.raises(CheckpointError, match="not registered"):
        registry.verified(str(tmp_path / "parts"))


def test_a_place_with_something_in_it_or_without_its_mark_is_not_swept(tmp_path: Path) -> None:
    """Only what was put there as scratch goes: a folder that somebody made anew is his."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("mine")
    registry = ScratchRegistry(str(tmp_path / "registry"))
    with pytest.raises(RefusedError, match="not empty"):
        registry.register(str(tmp_path / "data"), DAY_S)
    with pytest.raises(ConfigError, match="ttl_s=0"):
        registry.register(str(tmp_path / "new"), 0)
    assert registry.entries() == []
    registry.register(str(tmp_path / "tmp"), DAY_S)
    registry.verified(str(tmp_path / "tmp"))
    (tmp_path / "tmp" / MARK).unlink()
    (tmp_path / "tmp" / "y").write_text("mine")
    (told,) = registry.sweep()
    assert not told.sweepable
    assert "no mark of ours" in told.reason
    assert (tmp_path / "tmp" / "y").read_text() == "mine"


def test_a_sweep_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    """What was moved aside is deleted the next time."""
    registry = ScratchRegistry(str(tmp_path / "registry"))
    entry = registry.register(str(tmp_path / "tmp"), DAY_S)
    registry.verified(str(tmp_path / "tmp"))
    os.rename(tmp_path / "tmp", tmp_path / f".costguard-trash-{entry.id}")
    assert registry.sweep()[0].sweepable
    assert os.listdir(tmp_path) == ["registry"]


def test_a_prefix_of_a_bucket_is_swept(weed_endpoint: str, tmp_path: Path) -> None:
    """Also on S3, and its neighbours stay."""
    from costguard.checkpoints.remote import open_store

    neighbour = s3_store(weed_endpoint)
    url = f"{neighbour.url}/scratch"
    registry = ScratchRegistry(
        str(tmp_path / "registry"), open_store=lambda url: open_store(url, storage_options=options(weed_endpoint))
    )
    registry.register(url, DAY_S)
    neighbour.put("scratch/part-1", [b"x"], 1)
    neighbour.put("kept", [b"x"], 1)
    assert registry.due() == []
    registry.verified(url)
    assert registry.sweep()[0].size_bytes == 17
    assert neighbour.listing("") == ["kept"]
    neighbour.put("full/x", [b"x"], 1)
    with pytest.raises(RefusedError, match="not empty"):
        registry.register(f"{neighbour.url}/full", DAY_S)
