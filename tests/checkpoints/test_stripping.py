"""What is left of a checkpoint without its optimizer state, what keeps it, and what may go wrong on the way."""

from __future__ import annotations

import errno
import io
import os
import pickle
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from crashing import lightning_file, sharded_folder, tree
from rooms import MIB, path_of, room_of, saved
from torch.distributed import checkpoint

from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.faults import CheckpointError, MismatchError, RefusedError, StoreError
from costguard.checkpoints.hot import HotFiles
from costguard.checkpoints.lives import life_of
from costguard.checkpoints.manifest import Level
from costguard.checkpoints.record import Record
from costguard.checkpoints.recovery import find_orphans, rebuild, recover
from costguard.checkpoints.restore import check_copy, restore
from costguard.checkpoints.room import Room
from costguard.checkpoints.store import LocalStore, Store
from costguard.checkpoints.stripping import check_resumable, strip, stripped_id
from costguard.checkpoints.weights import WholeError

WHOLE, WITHOUT = lightning_file(7)
MTIME_NS = 1_700_000_000_123_456_789


def contents(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


def file_of(saved: Any) -> bytes:
    file = io.BytesIO()
    torch.save(saved, file)
    return file.getvalue()


def old(room: Room, data: bytes = WHOLE, name: str = "step=1.ckpt", **facts: Any) -> str:
    """A checkpoint that is not the newest; returns its id."""
    path_of(room, name).write_bytes(data)
    os.utime(path_of(room, name), ns=(MTIME_NS, MTIME_NS))
    id = room.inventory.adopt(str(path_of(room, name)), room.new_id(), **facts).id
    saved(room, "newest.ckpt", b"the newest")
    return id


def old_folder(room: Room) -> tuple[str, torch.Tensor]:
    """The same of a sharded folder, and its weight."""
    weight: torch.Tensor = sharded_folder(path_of(room, "step=1.ckpt"))
    id = room.inventory.adopt(str(path_of(room, "step=1.ckpt")), room.new_id(), step=1).id
    saved(room, "newest.ckpt", b"the newest")
    return id, weight


def moved(room: Room, id: str, tier: str) -> None:
    for move in {"hot": [], "both": [demote], "cold": [demote, release]}[tier]:
        move(room, id)


def assert_clean(room: Room) -> None:
    """No work in progress is left anywhere, and recovering finds nothing to do."""
    told = recover(room)
    assert (told.done, told.problems) == ([], [])
    assert not [name for name in os.listdir(room.inventory.folder) if name.startswith("strip-")]
    orphans = find_orphans(room)
    assert (orphans.keys, orphans.uploads, orphans.tombstones, orphans.foreign) == ((), 0, (), ())


def assert_whole(room: Room, id: str) -> Record:
    """It is all there, and nothing else was made of it."""
    assert_clean(room)
    assert [r.id for r in room.inventory.records() if r.stripped] == []
    record = room.inventory.get(id)
    if record.tier == "cold":
        check_copy(room, id)
    else:
        assert room.inventory.there(record)
    return record


@pytest.mark.parametrize("tier", ["hot", "both", "cold"])
def test_all_but_the_optimizer_state_is_left(tier: str, store: Store, tmp_path: Path) -> None:
    """Everything else comes back bit for bit, at its old path and time, with its facts; the full one is gone."""
    (tmp_path / "hot").mkdir()
    room = room_of(tmp_path / "hot", store)
    id = old(room, step=5, epochs=2, metrics={"loss": 0.5}, run="one", released=True)
    full = room.inventory.get(id)
    moved(room, id, tier)
    slim = strip(room, id)
    assert slim.id != id
    assert (slim.stripped, slim.stripped_from, slim.tier) == (True, id, "cold")
    facts = ("path", "order", "step", "epochs", "metrics", "run", "released", "saved_ns", "aliases")
    assert [getattr(slim, fact) for fact in facts] == [getattr(full, fact) for fact in facts]
    assert slim.as_checkpoint().stripped
    # It was never hot, and nobody waited for it.
    assert (slim.blocked_ns, life_of(slim, MIB).hot_ns(2**62), slim.reads) == (0, 0, 0)
    assert not Path(full.path).exists()
    assert not store.listing(room.prefix(id))
    assert_clean(room)
    assert check_copy(room, slim.id) == len(WITHOUT) == slim.size_bytes
    assert room.inventory.find(full.path) == slim
    restore(room, slim.id)
    assert Path(full.path).read_bytes() == WITHOUT
    assert os.stat(full.path).st_mtime_ns == MTIME_NS
    assert release(room, slim.id).tier == "cold"
    assert strip(room, slim.id).tier == "cold"
    assert [r.id for r in rebuild(room_of(tmp_path / "elsewhere", store))] == [slim.id]


def test_all_else_in_a_file_is_kept() -> None:
    """The expected bytes of these tests are what Lightning's loading would see but for the optimizer."""
    whole, without = contents(WHOLE), contents(WITHOUT)
    assert whole.keys() - without.keys() == {"optimizer_states"}
    assert torch.equal(whole["state_dict"]["weight"], without["state_dict"]["weight"])


@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_shards_keep_their_weights(room: Room, tier: str, tmp_path: Path) -> None:
    """Of a sharded folder ranges are left away; what is left loads as any other, bit for bit, and is smaller."""
    room.part_bytes = 1000
    id, weight = old_folder(room)
    full = room.inventory.get(id)
    before = tree(Path(full.path)) or {}
    moved(room, id, tier)
    slim = strip(room, id)
    assert slim.size_bytes < 0.7 * full.size_bytes
    assert_clean(room)
    restore(room, slim.id)
    after = tree(Path(full.path)) or {}
    assert after["meta.pt"] == before["meta.pt"]
    metadata = checkpoint.FileSystemReader(full.path).read_metadata()
    assert list(metadata.state_dict_metadata) == ["model.weight"]
    state = {"model": {"weight": torch.zeros(8, 8)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.load(state, checkpoint_id=full.path, no_dist=True)
    assert torch.equal(state["model"]["weight"], weight)
    release(room, slim.id)
    demote(room, slim.id)


# -- what stays as it is ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["pinned", "resumed_from", "unfinished", "newest"])
def test_what_must_stay_is_not_stripped(room: Room, mark: str) -> None:
    """The guards of every move hold for this one too."""
    id = old(room, complete=mark != "unfinished", resumed_from=mark == "resumed_from")
    if mark == "pinned":
        room.inventory.pin(id)
    if mark == "newest":
        id = room.inventory.records()[-1].id
    with pytest.raises(RefusedError, match="stays"):
        strip(room, id)
    assert_clean(room)
    assert room.inventory.there(room.inventory.get(id))


FLAT = {"state_dict": {"weight": torch.ones(2000)}, "pytorch-lightning_version": "2.6.6"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a file of torch",
        b"PK\x03\x04 and no archive",
        file_of([1, 2]),
        file_of(FLAT),
        file_of({**FLAT, "optimizer_states": []}),
        file_of({**FLAT, "optimizer_states": [{"param_groups": [{"lr": 0.1}], "state": {}}]}),
        file_of({"optimizer_states": [1]}),
        WITHOUT,
    ],
    ids=["empty", "text", "zip", "list", "weights", "none", "no_gain", "not_lightning", "stripped"],
)
@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_what_has_no_optimizer_state_is_left_alone_and_not_tried_again(room: Room, data: bytes, tier: str) -> None:
    """Also where it would get hardly any smaller: it stays as it is, resumable, and the planner hears of it."""
    room.part_bytes = 1000
    id = old(room, data)
    moved(room, id, tier)
    assert strip(room, id).id == id
    record = assert_whole(room, id)
    assert (record.tier, record.stripped, record.problem) == (tier, False, "")
    assert record.kept_whole
    assert not record.as_checkpoint().strippable


class Sly:
    """Makes a folder when it is loaded."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.place,)


class Harmless:
    """A type of the user's own."""


@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_a_type_that_is_not_known_keeps_it_whole(room: Room, tier: str) -> None:
    """One sentence with the type and the remedy; where it is allowed, it is done."""
    id = old(room, file_of({**contents(WHOLE), "hyper_parameters": {"x": Harmless()}}))
    room.part_bytes = 1000
    moved(room, id, tier)
    with pytest.raises(WholeError, match=r"refuses .*Harmless; keep that out of .*add_safe_globals") as raised:
        strip(room, id)
    assert not raised.value.lasting
    # It is another process that may be told to load it.
    assert assert_whole(room, id).as_checkpoint().strippable
    with torch.serialization.safe_globals([Harmless]):
        assert strip(room, id).stripped


def test_no_code_of_a_file_is_run(room: Room, tmp_path: Path) -> None:
    """A pickle that does something when it is loaded is not loaded."""
    id = old(room, file_of({**contents(WHOLE), "hyper_parameters": Sly(tmp_path / "made")}))
    with pytest.raises(WholeError, match="mkdir"):
        strip(room, id)
    assert not (tmp_path / "made").exists()
    assert_whole(room, id)


def test_no_code_of_a_folder_is_run(room: Room, tmp_path: Path) -> None:
    """A `.metadata` that asks for more than plain data of torch is not loaded."""
    id, _ = old_folder(room)
    folder = Path(room.inventory.get(id).path)
    (folder / ".metadata").write_bytes(pickle.dumps(Sly(tmp_path / "made")))
    id = room.inventory.adopt(str(folder), "changed").id
    saved(room, "newer.ckpt", b"the newest")
    with pytest.raises(WholeError, match=r"asks for posix\.mkdir"):
        strip(room, id)
    assert not (tmp_path / "made").exists()
    assert not assert_whole(room, id).as_checkpoint().strippable


def test_bytes_of_other_files_are_not_read(room: Room, tmp_path: Path) -> None:
    """A `.metadata` that names a file outside of the folder is refused."""
    (tmp_path / "secret").write_bytes(b"x" * 10_000)
    id, _ = old_folder(room)
    folder = Path(room.inventory.get(id).path)
    metadata = checkpoint.FileSystemReader(folder).read_metadata()
    led_out = {k: replace(v, relative_path="../../secret") for k, v in metadata.storage_data.items()}
    (folder / ".metadata").write_bytes(pickle.dumps(replace(metadata, storage_data=led_out)))
    id = room.inventory.adopt(str(folder), "changed").id
    saved(room, "newer.ckpt", b"the newest")
    with pytest.raises(WholeError, match="names bytes of"):
        strip(room, id)
    assert_whole(room, id)


def test_a_folder_of_another_kind_is_refused_before_anything_is_fetched(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed's folders have no list of what is where: one sentence, and it is not tried again."""
    folder = path_of(room, "step=1.ckpt") / "checkpoint"
    folder.mkdir(parents=True)
    (folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(b"x" * 5000)
    id = room.inventory.adopt(str(folder.parent), room.new_id()).id
    saved(room, "newest.ckpt", b"the newest")
    moved(room, id, "cold")
    monkeypatch.setattr(room.files, "append", pytest.fail)
    with pytest.raises(WholeError, match="as DeepSpeed writes it") as raised:
        strip(room, id)
    monkeypatch.undo()
    assert raised.value.lasting
    assert not assert_whole(room, id).as_checkpoint().strippable


def test_training_cannot_go_on_from_it() -> None:
    """One sentence with what can be done; one that is whole, or none, is no problem."""
    record = Record(id="a", path="/runs/step=1.ckpt", order=1)
    check_resumable(record)
    check_resumable(None)
    with pytest.raises(CheckpointError, match=r"^/runs/step=1.ckpt: .*strip_optimizer_after.*fetch"):
        check_resumable(replace(record, stripped=True))


# -- what goes wrong on the way --------------------------------------------------------------------------------------


def during(monkeypatch: pytest.MonkeyPatch, room: Room, what: Callable[[], Any]) -> None:
    """Have something happen while the stripped one is sent."""
    put = room.cold.put

    def also(*arguments: Any) -> None:
        what()
        put(*arguments)

    monkeypatch.setattr(room.store, "put", also)


def test_a_pin_in_the_middle_holds(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made is thrown away, the full one stays."""
    id = old(room)
    during(monkeypatch, room, lambda: room.inventory.pin(id))
    with pytest.raises(RefusedError, match="it is pinned"):
        strip(room, id)
    assert assert_whole(room, id).pinned
    assert not room.cold.listing("")


def test_a_pin_between_a_death_and_its_recovery_holds(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed, then dead, then pinned: recovery keeps what was pinned."""
    id = old(room)
    monkeypatch.setattr("costguard.checkpoints.stripping._finish", lambda *_: None)
    strip(room, id)
    monkeypatch.undo()
    assert room.inventory.get(stripped_id(id)).state == "stripping"
    room.inventory.pin(id)
    (done,) = recover(room).done
    assert "it is pinned" in done
    assert_whole(room, id)
    assert not room.cold.listing("")


def test_what_is_not_verified_as_far_as_is_asked_for_replaces_nothing(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level that lets a hot copy go is the one that lets a full one go."""
    id = old(room)
    monkeypatch.setattr("costguard.checkpoints.demotion.verify", lambda *_: Level.SIZE)
    with pytest.raises(RefusedError, match="verified to level SIZE, and ETAG is asked for"):
        strip(room, id)
    monkeypatch.undo()
    assert_whole(room, id)
    assert not room.cold.listing("")


@pytest.mark.parametrize("tier", ["hot", "cold"])
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_full_disk_leaves_nothing_but_the_full_one(
    room: Room, tier: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, kind `full`; no part of anything stays, and it works when there is room again."""
    room.part_bytes = 1000
    id = old(room)
    moved(room, id, tier)
    append, written = room.files.append, [0]

    def fills(path: str, data: bytes) -> None:
        written[0] += len(data)
        if written[0] > len(WHOLE) + 1000:
            append(path, data[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(path, data)

    if when == "before":
        monkeypatch.setattr(room.files, "free_bytes", lambda _: len(WHOLE) - 1)
    else:
        monkeypatch.setattr(room.files, "append", fills)
    with pytest.raises(StoreError, match=r"cannot be written: [Nn]o space left") as raised:
        strip(room, id)
    monkeypatch.undo()
    assert raised.value.kind == "full"
    record = assert_whole(room, id)
    assert "pace left" in record.problem
    assert record.as_checkpoint().strippable
    assert strip(room, id).stripped


def test_a_damaged_cold_copy_is_not_loaded(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """One flipped byte: nothing of it is unpickled, and it stays as it is for who may mend it."""
    room.part_bytes = 1000
    id = old(room)
    moved(room, id, "cold")
    (copy,) = Path(room.cold.url[len("file://") :]).rglob("step=1.ckpt")
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    monkeypatch.setattr(torch, "load", pytest.fail)
    with pytest.raises(MismatchError, match="damaged"):
        strip(room, id)
    assert_clean(room)
    assert copy.read_bytes() == data


def test_a_hot_copy_that_rots_is_not_used(room: Room) -> None:
    """In both tiers, and the hot bytes are not those that were hashed: the cold ones are taken."""
    room.part_bytes = 1000
    id = old(room)
    demote(room, id)
    path = Path(room.inventory.get(id).path)
    data = bytearray(WHOLE)
    data[len(data) // 2] ^= 1
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(MTIME_NS, MTIME_NS))
    assert room.inventory.there(room.inventory.get(id))
    slim = strip(room, id)
    restore(room, slim.id)
    assert path.read_bytes() == WITHOUT


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_hot_copy_that_is_saved_over_meanwhile(room: Room, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read may be half of each: nothing is made of it. The new one is another checkpoint."""
    room.part_bytes = 1000
    id = old(room) if kind == "file" else old_folder(room)[0]
    path = Path(room.inventory.get(id).path)
    append, once = room.files.append, [0]

    def overwrites(*arguments: Any) -> None:
        append(*arguments)
        if not once[0]:
            once[0] = 1
            (path if kind == "file" else path / "meta.pt").write_bytes(b"another")

    monkeypatch.setattr(room.files, "append", overwrites)
    with pytest.raises(RefusedError, match=r"was changed|was cut"):
        strip(room, id)
    monkeypatch.undo()
    assert [r.id for r in room.inventory.let_ghosts_go()] == [id]
    assert_clean(room)


def test_a_store_that_goes_away_is_made_up_for(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away for good while it is sent: the full one stays, and the next recovery clears up what is in the store."""
    id = old(room)

    def away(*_: Any) -> Any:
        raise StoreError("away", "the store is away")

    def gone() -> None:
        for verb in ("head", "listing", "uploads"):
            monkeypatch.setattr(room.store, verb, away)

    during(monkeypatch, room, gone)
    with pytest.raises(StoreError, match="is away"):
        strip(room, id)
    assert not [name for name in os.listdir(room.inventory.folder) if name.startswith("strip-")]
    assert recover(room).problems == ["the store is away"]
    with pytest.raises(RefusedError, match="recover first"):
        expire(room, stripped_id(id))
    assert room.inventory.find(str(path_of(room, "step=1.ckpt"))) == room.inventory.get(id)
    monkeypatch.undo()
    assert recover(room).problems == []
    assert assert_whole(room, id).problem == "the store is away"
    assert strip(room, id).stripped


def test_two_machines_make_one(room: Room, tmp_path: Path) -> None:
    """Another machine with a list of its own strips the same checkpoint: one copy without, and both lists know it."""
    room.part_bytes = 1000
    id = old(room)
    (tmp_path / "other").mkdir()
    other = room_of(tmp_path / "other", room.store, part_bytes=1000)
    there = shutil.copy2(path_of(room, "step=1.ckpt"), tmp_path / "other")
    other.inventory.adopt(str(there), id)
    saved(other, "newest.ckpt")
    mine, theirs = strip(room, id), strip(other, id)
    assert mine.id == theirs.id
    assert mine.manifest_sha256 == theirs.manifest_sha256
    assert len(room.cold.listing("")) == 2
    for each in (room, other):
        assert check_copy(each, mine.id) == len(WITHOUT)


def test_a_list_made_anew_in_the_middle_does_not_keep_both(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed, and then the hot disk is lost: both are found in the store, and the full one goes at the next try."""
    id = old(room)
    moved(room, id, "cold")
    monkeypatch.setattr("costguard.checkpoints.stripping._finish", lambda *_: None)
    strip(room, id)
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "hot")
    (tmp_path / "hot").mkdir()
    anew = room_of(tmp_path / "hot", room.store)
    assert {r.id for r in rebuild(anew)} == {id, stripped_id(id)}
    saved(anew, "newest.ckpt")
    assert strip(anew, id).id == stripped_id(id)
    assert [r.tier for r in anew.inventory.records()] == ["cold", "hot"]
    assert_clean(anew)


class Watched(HotFiles):
    """Remembers the most memory of its own that the process had while a file was written."""

    most_kib = 0

    def append(self, path: str, data: bytes) -> None:
        super().append(path, data)
        status = Path("/proc/self/status").read_text()
        self.most_kib = max(self.most_kib, int(status.partition("RssAnon:")[2].split()[0]))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A file is mapped and passes through one part: anonymous memory grows by a fraction of it."""
    (tmp_path / "hot").mkdir()
    files = Watched()
    room = room_of(tmp_path / "hot", LocalStore(str(tmp_path / "cold")), files=files, part_bytes=MIB)
    weight, state = torch.ones(8 * MIB // 4), {"state": {0: {"m": torch.ones(40 * MIB // 4)}}}
    id = old(room, file_of({"state_dict": {"a": weight, "b": weight + 1}, "optimizer_states": [state]}))
    files.append(str(tmp_path / "probe"), b"")
    before, files.most_kib = files.most_kib, 0
    slim = strip(room, id)
    assert 16 * MIB < slim.size_bytes < 17 * MIB
    assert files.most_kib - before < 8 * 1024
