"""Demotion, release, restore and expiry on real files: what is refused, what is put right, and the bugs of others."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rooms import path_of, room_of, saved

from costguard.checkpoints.demotion import demote, release, shards_in
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.faults import (
    CheckpointError,
    MismatchError,
    RefusedError,
    StoreError,
    scrub,
    scrub_url,
    secrets_in,
    store_error,
)
from costguard.checkpoints.hot import HotFiles
from costguard.checkpoints.inventory import Inventory
from costguard.checkpoints.manifest import FileEntry, Level, Manifest
from costguard.checkpoints.pace import Pace, TransferThread
from costguard.checkpoints.recovery import collect, find_orphans, rebuild, recover
from costguard.checkpoints.restore import check_copy, restore
from costguard.checkpoints.room import Room
from costguard.checkpoints.store import LocalStore
from costguard.errors import ConfigError


def demoted(room: Room, name: str = "step=1.ckpt", data: bytes = b"0123456789", **facts: Any) -> str:
    """A checkpoint that is cold, with a newer one that is not."""
    id = saved(room, name, data, **facts)
    saved(room, "newest.ckpt", b"new")
    demote(room, id)
    release(room, id)
    return id


def test_a_demoted_checkpoint_comes_back_as_it_was(room: Room) -> None:
    """Bytes and the time that it was written: `ckpt_path="last"` chooses by that."""
    path = path_of(room, "step=1.ckpt")
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(0, 1_600_000_000_987_654_321))
    id = room.inventory.adopt(str(path), "a", step=1, metrics={"loss": 0.5}).id
    saved(room, "newest.ckpt")
    assert demote(room, id).tier == "both"
    assert path.exists()
    record = release(room, id)
    assert (record.tier, record.level, path.exists()) == ("cold", Level.CONTENT, False)
    assert room.inventory.find(str(path)) == record
    assert restore(room, id) == str(path)
    assert path.read_bytes() == b"0123456789"
    assert path.stat().st_mtime_ns == 1_600_000_000_987_654_321
    assert room.inventory.get(id).tier == "both"
    assert release(room, id).tier == "cold"
    assert check_copy(room, id) == 10


def test_repeating_a_move_changes_nothing(room: Room) -> None:
    """Demote, release, restore and recover may be done again."""
    id = demoted(room)
    assert demote(room, id) == release(room, id) == room.inventory.get(id)
    assert restore(room, id) == restore(room, id)
    assert recover(room).done == []


@pytest.mark.parametrize("mark", ["pinned", "resumed_from", "newest", "unfinished"])
def test_what_must_stay_is_not_let_go_whoever_asks(room: Room, mark: str) -> None:
    """The executor checks again: a pin may have come after the plan."""
    id = saved(room)
    if mark != "newest":
        saved(room, "newest.ckpt", b"new")
        demote(room, id)
    record = room.inventory.get(id)
    if mark == "pinned":
        room.inventory.pin(id)
    elif mark != "newest":
        room.inventory.update(record, **{"complete": False} if mark == "unfinished" else {mark: True})
    for move in (release, expire) if mark != "newest" else (expire,):
        with pytest.raises(RefusedError, match="stays"):
            move(room, id)  # type: ignore[operator]
    assert path_of(room, "step=1.ckpt").exists()


def test_an_unfinished_save_is_not_demoted_and_does_not_count_as_newest(room: Room) -> None:
    """NVIDIA-NeMo/Megatron-Bridge#5184: only a finished newer one sets the older free."""
    id = saved(room)
    saved(room, "writing.ckpt", b"half", complete=False, id="half")
    with pytest.raises(RefusedError, match="not known to have ended"):
        demote(room, "half")
    demote(room, id)
    with pytest.raises(RefusedError, match="newest complete"):
        release(room, id)


def test_a_file_that_was_changed_since_is_not_moved(room: Room) -> None:
    """Same size, other content: its time tells; same size and time: its inode does."""
    id = saved(room)
    saved(room, "newest.ckpt")
    path = path_of(room, "step=1.ckpt")
    before = path.stat()
    path.rename(path.with_suffix(".aside"))
    path.write_bytes(b"9876543210")
    os.utime(path, ns=(0, before.st_mtime_ns))
    with pytest.raises(RefusedError, match="has changed"):
        demote(room, id)
    assert path.read_bytes() == b"9876543210"


def test_names_repeat_and_checkpoints_do_not(room: Room) -> None:
    """A resumed run writes step=1.ckpt again with other bytes: two checkpoints, and neither is taken for the other."""
    first = demoted(room, data=b"attempt one")
    second = saved(room, "step=1.ckpt", b"attempt two")
    assert first != second
    assert room.inventory.find(str(path_of(room, "step=1.ckpt"))).id == second  # type: ignore[union-attr]
    with pytest.raises(RefusedError, match="something else is there"):
        restore(room, first)
    copy = restore(room, first, str(path_of(room, "copy.ckpt")))
    assert Path(copy).read_bytes() == b"attempt one"
    assert path_of(room, "step=1.ckpt").read_bytes() == b"attempt two"


def test_what_took_the_place_of_a_demoted_file_is_left_alone(room: Room) -> None:
    """Lightning#11379: only files of our own inventory are ever deleted, and by what they are, not by name."""
    id = saved(room)
    saved(room, "newest.ckpt")
    demote(room, id)
    path = path_of(room, "step=1.ckpt")
    path.unlink()
    path.write_bytes(b"another run's")
    assert release(room, id).tier == "cold"
    assert path.read_bytes() == b"another run's"
    expire(room, id)
    assert path.read_bytes() == b"another run's"


def test_a_file_deleted_by_hand_is_no_error(room: Room) -> None:
    """Lightning#5144: a missing file on delete is success."""
    id = saved(room)
    saved(room, "newest.ckpt")
    demote(room, id)
    path_of(room, "step=1.ckpt").unlink()
    assert release(room, id).tier == "cold"
    assert restore(room, id)
    path_of(room, "step=1.ckpt").unlink()
    expire(room, id)
    assert room.cold.listing("") == []


def test_a_link_to_a_checkpoint_is_an_alias_that_comes_back_with_it(room: Room) -> None:
    """Lightning#18995, #19303: uploaded once, never left dangling, never followed to another file."""
    path = path_of(room, "step=1.ckpt")
    path.write_bytes(b"0123456789")
    link = path_of(room, "last.ckpt")
    link.symlink_to("step=1.ckpt")
    record = room.inventory.adopt(str(link), "a", step=1)
    assert (record.path, record.aliases) == (str(path), ("last.ckpt",))
    saved(room, "newest.ckpt")
    demote(room, "a")
    assert len(room.cold.listing("")) == 2
    release(room, "a")
    assert not link.is_symlink()
    assert room.inventory.find(str(link)).id == "a"  # type: ignore[union-attr]
    restore(room, "a")
    assert link.read_bytes() == b"0123456789"
    link.unlink()
    link.symlink_to("newest.ckpt")
    release(room, "a")
    assert os.readlink(link) == "newest.ckpt"


def test_a_checkpoint_of_which_a_shard_is_elsewhere_is_not_demoted(room: Room) -> None:
    """Node-local shards: a manifest only when the files are those that the checkpoint's own .metadata names."""

    @dataclass
    class Info:
        relative_path: str

    folder = path_of(room, "step=1.ckpt")
    folder.mkdir()
    names = [f"__{rank}_0.distcp" for rank in range(3)]
    metadata = pickle.dumps({i: (name, 0, 5) for i, name in enumerate(names)})
    assert shards_in(metadata) == set(names)
    assert shards_in(b"no pickle") == set()
    (folder / ".metadata").write_bytes(metadata)
    for name in names[:2]:
        (folder / name).write_bytes(b"shard")
    room.inventory.adopt(str(folder), "a")
    saved(room, "newest.ckpt")
    with pytest.raises(RefusedError, match=r"1 shards that its .metadata names are not here, such as __2_0.distcp"):
        demote(room, "a")
    (folder / names[2]).write_bytes(b"shard")
    room.inventory.adopt(str(folder), "b")
    assert demote(room, "b").tier == "both"


def test_a_device_or_a_link_is_no_checkpoint(room: Room) -> None:
    """A pipe would hang whoever reads it."""
    folder = path_of(room, "odd.ckpt")
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    with pytest.raises(RefusedError, match="neither a file nor a folder"):
        room.inventory.adopt(str(folder), "a")
    with pytest.raises(RefusedError, match="no such checkpoint"):
        room.inventory.adopt(str(path_of(room, "none")), "a")


@pytest.mark.parametrize("odd", ["link", "backslash"])
def test_what_a_restore_would_refuse_is_not_sent(room: Room, odd: str) -> None:
    """A link out of the folder, a name with a backslash: said before anything is uploaded."""
    folder = path_of(room, "step=1.ckpt")
    folder.mkdir()
    (folder / "a").write_bytes(b"a")
    if odd == "link":
        (folder / "out").symlink_to("/etc/passwd")
    else:
        (folder / "a\\b").write_bytes(b"b")
    room.inventory.adopt(str(folder), "a")
    with pytest.raises(RefusedError, match="leads out of the checkpoint"):
        demote(room, "a")
    assert (room.inventory.get("a").state, room.cold.listing("")) == ("hot", [])


class Cutting(HotFiles):
    """A disk on which a file is cut while it is read."""

    def read(self, path: str, start: int = 0, size: int = -1) -> bytes:
        if path.endswith(".ckpt") and start:
            os.truncate(path, start)
        return super().read(path, start, size)


def test_a_file_that_is_cut_while_it_is_copied_is_not_taken_for_whole(tmp_path: Path) -> None:
    """s3fs says success: a source that was cut in the middle of its upload is a shorter object."""
    room = room_of(tmp_path, LocalStore(str(tmp_path / "cold")), part_bytes=4, files=Cutting())
    id = saved(room)
    saved(room, "newest.ckpt")
    with pytest.raises(RefusedError, match="was cut while it was being copied"):
        demote(room, id)
    assert (room.inventory.get(id).state, room.cold.listing(""), room.cold.uploads("")) == ("hot", [], [])


def test_a_copy_verified_by_size_alone_does_not_free_the_hot_one(room: Room) -> None:
    """Deletion waits for the level that is asked for."""
    room.required = Level.SIZE
    id = saved(room)
    saved(room, "newest.ckpt")
    assert demote(room, id).level == Level.SIZE
    room.required = Level.ETAG
    with pytest.raises(RefusedError, match="verified to level SIZE, and ETAG is asked for"):
        release(room, id)
    assert path_of(room, "step=1.ckpt").exists()


@pytest.mark.parametrize("harm", ["object", "short", "manifest", "tombstone"])
def test_the_hot_copy_stays_when_the_cold_one_is_not_all_there(room: Room, harm: str, tmp_path: Path) -> None:
    """Lightning#1150: between commit and release the store may have lost it; a fresh look decides."""
    id = saved(room)
    saved(room, "newest.ckpt")
    record = demote(room, id)
    cold = tmp_path / "cold"
    data = next((cold / "run-7" / id / "data").rglob("*.ckpt"))
    if harm == "object":
        data.unlink()
    elif harm == "short":
        data.write_bytes(b"0123")
    elif harm == "manifest":
        manifest = cold / room.manifest_key(id)
        manifest.write_text(manifest.read_text().replace('"level":3', '"level":2'))
    else:
        (cold / room.tombstone_key(id)).write_text("{}")
    with pytest.raises(MismatchError):
        release(room, id)
    assert path_of(room, "step=1.ckpt").exists()
    room.inventory.save(replace(record, state="releasing"))
    os.makedirs(os.path.dirname(room.trash(record)))
    os.rename(record.path, room.trash(record))
    assert len(recover(room).problems) == 1
    assert path_of(room, "step=1.ckpt").read_bytes() == b"0123456789"


def test_two_that_demote_one_checkpoint_do_not_harm_each_other(room: Room, tmp_path: Path) -> None:
    """Keys are an attempt's own, so the later takes over what the earlier committed, and nothing is left over."""
    id = saved(room)
    saved(room, "newest.ckpt")
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    other = room_of(tmp_path / "hot", room.store, part_bytes=4)
    other.inventory = Inventory(str(other_folder), other.files)
    other.inventory.save(room.inventory.get(id))
    assert demote(other, id).tier == "both"
    assert demote(room, id).tier == "both"
    assert room.committed(room.inventory.get(id)).attempt == other.committed(other.inventory.get(id)).attempt
    assert find_orphans(room).keys == ()
    assert len(room.cold.listing("")) == 2


def test_another_process_waits_its_turn(room: Room) -> None:
    """The command and the run do not move checkpoints at the same time on one host."""
    id = saved(room)
    other = room_of(Path(room.inventory.folder).parent, room.store)
    with other.hold(), pytest.raises(RefusedError, match="another process"):
        demote(room, id)
    demote(room, id)


def test_a_record_that_cannot_be_read_means_keep_and_tell(room: Room) -> None:
    """Damaged or newer state touches nothing."""
    id = saved(room)
    saved(room, "newest.ckpt")
    file = Path(room.inventory.folder) / f"{id}.json"
    newer = json.loads(file.read_text()) | {"schema": 99}
    for text in (json.dumps(newer), "{", "[]", '{"schema": 1}'):
        file.write_text(text)
        problems = recover(room).problems
        assert len(problems) == 1
        assert "left alone" in problems[0]
        with pytest.raises(CheckpointError):
            expire(room, id)
    collect(room)
    assert path_of(room, "step=1.ckpt").exists()
    assert file.exists()


def test_a_manifest_of_a_newer_version_keeps_its_objects(room: Room, tmp_path: Path) -> None:
    """What cannot be read is not garbage."""
    id = demoted(room)
    manifest = tmp_path / "cold" / room.manifest_key(id)
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema": 99}))
    before = room.cold.listing("")
    collect(room)
    assert room.cold.listing("") == before
    with pytest.raises(CheckpointError, match="newer version"):
        restore(room, id)


def test_pins_hold_hot_and_cold_and_can_be_taken_away(room: Room) -> None:
    """Also after the fact: thinking-machines-lab/tinker-feedback#91."""
    id = demoted(room)
    room.inventory.pin(id)
    with pytest.raises(RefusedError, match="it is pinned"):
        expire(room, id)
    room.inventory.pin(id, False)
    expire(room, id)
    assert [r.id for r in room.inventory.records() if r.id == id] == []


class FullDisk(HotFiles):
    """A disk that takes so many bytes."""

    def __init__(self, room: int, told: int) -> None:
        self.left = room
        self.told = told

    def append(self, path: str, data: bytes) -> None:
        if len(data) > self.left:
            super().append(path, data[: self.left])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= len(data)
        super().append(path, data)

    def free_bytes(self, path: str) -> int:
        return self.told


@pytest.mark.parametrize(("left", "told"), [(6, 10**9), (6, 5)])
def test_a_full_disk_leaves_no_partial_file(tmp_path: Path, left: int, told: int) -> None:
    """Whether the disk says so before or in the middle: no half checkpoint, no temporary file, the cold one stays."""
    room = room_of(tmp_path, LocalStore(str(tmp_path / "cold")), part_bytes=4)
    id = demoted(room)
    before = sorted(os.listdir(tmp_path))
    room.files = FullDisk(left, told)
    with pytest.raises(StoreError, match="space") as raised:
        restore(room, id)
    assert raised.value.kind == "full"
    assert sorted(os.listdir(tmp_path)) == before
    assert room.inventory.get(id).state == "cold"
    room.files = HotFiles()
    assert Path(restore(room, id)).read_bytes() == b"0123456789"


def test_a_hot_folder_that_cannot_be_written_keeps_everything(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read-only: the move fails in one piece."""
    id = saved(room)
    saved(room, "newest.ckpt")
    demote(room, id)

    def refuse(source: str, target: str) -> None:
        if "trash" in target:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), target)
        HotFiles().rename(source, target)

    monkeypatch.setattr(room.files, "rename", refuse)
    with pytest.raises(OSError, match="Read-only"):
        release(room, id)
    assert path_of(room, "step=1.ckpt").exists()
    monkeypatch.undo()
    recover(room)
    assert room.inventory.get(id).tier == "cold"


def test_a_pin_that_comes_while_a_copy_is_made_holds(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for an upload to pin a checkpoint, and what the upload writes afterwards does not undo it."""
    id = saved(room)
    saved(room, "newest.ckpt")
    store = room.cold
    head = store.head

    def slow(key: str) -> Any:
        room.inventory.pin(id)
        return head(key)

    monkeypatch.setattr(store, "head", slow)
    assert demote(room, id).pinned
    with pytest.raises(RefusedError, match="it is pinned"):
        release(room, id)
    room.inventory.pin(id, False)
    with pytest.raises(RefusedError, match="it is pinned"):
        release(room, id)
    assert path_of(room, "step=1.ckpt").exists()


def test_files_that_others_deleted_do_not_count_as_the_newest(room: Room) -> None:
    """A ghost in the inventory must not set the last real checkpoint free."""
    id = saved(room)
    saved(room, "newest.ckpt", id="ghost")
    demote(room, id)
    path_of(room, "newest.ckpt").unlink()
    with pytest.raises(RefusedError, match="newest complete"):
        release(room, id)
    assert [r.id for r in room.inventory.records()] == sorted([id, "ghost"], key=lambda i: i == "ghost")
    assert "by others" in recover(room).done[0]
    assert [r.id for r in room.inventory.records()] == [id]


def test_a_committed_copy_whose_objects_are_gone_is_made_anew(room: Room, tmp_path: Path) -> None:
    """A manifest without its objects is a lost copy: while the hot one is there it is thrown away and sent again."""
    id = saved(room)
    saved(room, "newest.ckpt")
    record = demote(room, id)
    next((tmp_path / "cold" / "run-7" / id / "data").rglob("*.ckpt")).unlink()
    room.inventory.update(record, state="demoting", attempt="lost")
    assert len(recover(room).problems) == 1
    assert (room.inventory.get(id).state, room.cold.listing("")) == ("hot", [])
    demote(room, id)
    release(room, id)
    assert Path(restore(room, id)).read_bytes() == b"0123456789"
    with pytest.raises(ConfigError, match="required"):
        room_of(tmp_path, None, required=Level.NONE)
    with pytest.raises(RefusedError):
        replace(room, run="../other", _guard=threading.RLock())


def test_without_a_cold_store_a_checkpoint_can_only_be_deleted(tmp_path: Path) -> None:
    """And the sentence says what to name."""
    room = room_of(tmp_path, None)
    id = saved(room)
    saved(room, "newest.ckpt")
    with pytest.raises(RefusedError, match="no cold store"):
        demote(room, id)
    recover(room)
    expire(room, id)
    assert not path_of(room, "step=1.ckpt").exists()


# -- manifests -----------------------------------------------------------------------------------------------------

ENTRY = FileEntry(path="a", size=1, sha256="0" * 64, part_bytes=4, part_md5s=("0" * 32,), mtime_ns=1)
FOLDER = Manifest(id="i", run="r", attempt="t", name="n", kind="folder", path="/p/n", files=(ENTRY,))


@pytest.mark.parametrize(
    "evil",
    [
        {"files": (replace(ENTRY, path="../a"),)},
        {"files": (replace(ENTRY, path="/etc/passwd"),)},
        {"files": (replace(ENTRY, path="a/../../b"),)},
        {"files": (replace(ENTRY, path="a//b"),)},
        {"files": (replace(ENTRY, path=""),)},
        {"files": (replace(ENTRY, path="a\\b"),)},
        {"files": (replace(ENTRY, path="a\0"),)},
        {"files": (ENTRY, ENTRY)},
        {"links": {"l": "/etc"}, "files": (replace(ENTRY, path="l/passwd"),)},
        {"links": {"l": "sub"}, "files": (replace(ENTRY, path="l/x"),)},
        {"links": {"l": "../../x"}},
        {"links": {"l": "/etc/passwd"}},
        {"links": {"a": "b"}},
        {"folders": ("..",)},
        {"folders": ("a/b",)},
        {"name": "../n"},
        {"name": ".."},
        {"name": ""},
        {"id": "../i"},
        {"attempt": "../../other/data/t"},
        {"aliases": ("../last.ckpt",)},
        {"kind": "file"},
        {"kind": "file", "files": (replace(ENTRY, path=""), ENTRY)},
    ],
    ids=str,
)
def test_a_manifest_that_leads_out_of_its_checkpoint_is_refused(evil: dict[str, Any]) -> None:
    """Whoever can write to the bucket can not write to the disk of who restores from it."""
    assert Manifest.decode(FOLDER.encode()) == FOLDER
    with pytest.raises(RefusedError):
        Manifest.decode(replace(FOLDER, **evil).encode())


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
)


@given(ANYTHING, st.sampled_from(sorted(json.loads(FOLDER.encode()))))
def test_whatever_a_manifest_holds_it_is_read_or_refused(data: Any, field: str) -> None:
    """Damage is a sentence, never a surprise."""
    raw = json.loads(FOLDER.encode())
    (entry,) = raw["files"]
    texts = [data, raw | {field: data}, raw | {"files": [data]}, *(raw | {"files": [entry | {k: data}]} for k in entry)]
    for text in texts:
        with contextlib.suppress(CheckpointError):
            assert Manifest.decode(json.dumps(text).encode()).encode()


def test_a_manifest_does_not_choose_where_it_is_restored_to(room: Room, tmp_path: Path) -> None:
    """A run that is rebuilt from its cold store comes back beside its own inventory, whatever the manifest says."""
    id = demoted(room)
    manifest = tmp_path / "cold" / room.manifest_key(id)
    for evil in (str(tmp_path / "home" / "authorized_keys"), str(tmp_path / "hot" / "inventory" / "x.json")):
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"path": evil}))
        room.inventory.remove(id)
        (record,) = rebuild(room)
        assert (record.path, record.origin) == (str(path_of(room, "step=1.ckpt")), evil)
    assert restore(room, id) == str(path_of(room, "step=1.ckpt"))
    assert not (tmp_path / "home").exists()


def test_the_folder_of_a_run_can_be_moved(room: Room, tmp_path: Path) -> None:
    """Hot and cold checkpoints are found and moved where the folder is now."""
    id = demoted(room)
    (tmp_path / "hot").rename(tmp_path / "moved")
    moved = room_of(tmp_path / "moved", room.store, part_bytes=4)
    assert restore(moved, id) == str(tmp_path / "moved" / "step=1.ckpt")
    assert recover(moved).done == []
    assert moved.inventory.newest_complete().path == str(tmp_path / "moved" / "newest.ckpt")  # type: ignore[union-attr]


def test_a_copy_that_was_only_moved_aside_comes_back_without_the_store(room: Room) -> None:
    """Killed between the rename and the deletion, with the store away: a resume needs neither."""
    id = saved(room)
    saved(room, "newest.ckpt")
    record = demote(room, id)
    room.inventory.update(record, state="releasing")
    os.makedirs(os.path.dirname(room.trash(record)))
    os.rename(record.path, room.trash(record))
    room.store = None
    assert restore(room, id) == record.path
    assert path_of(room, "step=1.ckpt").read_bytes() == b"0123456789"
    assert (room.inventory.get(id).state, recover(room).done) == ("both", [])


def test_a_name_that_looks_like_an_unfinished_upload_is_not_taken(room: Room) -> None:
    """Else the next collection would throw a committed file away."""
    id = saved(room, "a.upload-0123456789abcdef")
    saved(room, "b.upload-0123", id="b")
    with pytest.raises(StoreError, match="rename the file"):
        demote(room, id)
    demote(room, "b")
    collect(room)
    assert check_copy(room, "b") == 10


def test_a_restore_never_writes_through_a_link(room: Room, tmp_path: Path) -> None:
    """A link that lies where a part is collected is not followed."""
    id = demoted(room)
    target = tmp_path / "victim"
    target.write_bytes(b"precious")
    temp = path_of(room, f".costguard-restore-{id}")
    temp.mkdir()
    (temp / "step=1.ckpt").symlink_to(target)
    assert Path(restore(room, id)).read_bytes() == b"0123456789"
    assert target.read_bytes() == b"precious"


def test_bytes_that_do_not_fit_their_hash_are_never_under_the_name(room: Room, tmp_path: Path) -> None:
    """A pickle is hashed before anything can load it."""
    id = demoted(room)
    data = next((tmp_path / "cold" / "run-7" / id / "data").rglob("*.ckpt"))
    data.write_bytes(b"0123456780")
    with pytest.raises(MismatchError):
        restore(room, id)
    assert not path_of(room, "step=1.ckpt").exists()
    with pytest.raises(MismatchError):
        check_copy(room, id)


# -- pace, threads, words ------------------------------------------------------------------------------------------


def test_a_bandwidth_spreads_the_bytes() -> None:
    """Ten parts of 1 MB at 2 MB/s take four and a half seconds up to the last one, whatever the pauses between."""
    now, slept = [0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += round(seconds * 1e9)

    pace = Pace(2e6, now_ns=lambda: now[0], sleep=sleep)
    assert sum(map(len, pace.parts([bytes(10**6)] * 10))) == 10**7
    assert sum(slept) == pytest.approx(4.5)
    assert pace.moved_bytes == 10**7
    with pytest.raises(ConfigError):
        Pace(0)


def test_transfers_are_done_one_after_the_other_and_failures_are_told() -> None:
    """One thread, one job of a name at a time; what fails is told and the next goes on."""
    told: list[tuple[str, str]] = []
    running, most = [0], [0]
    gate = threading.Event()

    def job(name: str) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        gate.wait(10)
        running[0] -= 1
        if name == "b":
            raise ValueError("no")

    thread = TransferThread(lambda name, error: told.append((name, str(error))))
    assert all(thread.submit(name, lambda name=name: job(name)) for name in "abc")  # type: ignore[misc]
    assert not thread.submit("c", lambda: None)
    assert thread.pending == 3
    assert not thread.wait(0.01)
    gate.set()
    assert thread.close(10)
    assert (most, told, thread.pending) == ([1], [("b", "no")], 0)
    assert not thread.submit("d", lambda: None)


def test_credentials_are_in_no_sentence() -> None:
    """Not from options, not from URLs, not from signed requests."""
    options = {"key": "AKIA123456", "secret": "hush-hush", "client_kwargs": {"aws_session_token": "token-token"}}
    options |= {"endpoint_url": "https://s3.example"}
    secrets = secrets_in(options)
    assert set(secrets) == {"AKIA123456", "hush-hush", "token-token"}
    error = store_error(
        "s3://user:hush@b/x", "write k", OSError("AKIA123456 hush-hush ?X-Amz-Signature=abc&x=1"), secrets
    )
    assert "hush" not in str(error)
    assert "AKIA" not in str(error)
    assert "abc" not in str(error)
    assert scrub_url("https://u:p@h/x") == "https://***@h/x"
    assert scrub("sig=abc", []) == "sig=***"
