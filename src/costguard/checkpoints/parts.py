"""The side of a node that has shards of checkpoints whose `.metadata` is on another: sends them, and lets them go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from costguard.checkpoints.demotion import (
    check_sendable,
    committed_record,
    files_of,
    release,
    upload,
)
from costguard.checkpoints.expiry import finish_expiry
from costguard.checkpoints.faults import CheckpointError, RefusedError, StoreError
from costguard.checkpoints.mailbox import (
    Gathering,
    Part,
    clear_part,
    look,
    open_ids,
    part_data,
    part_key,
    read_gathering,
    sessions,
    words,
)
from costguard.checkpoints.manifest import Manifest, check_relative
from costguard.checkpoints.record import Record
from costguard.checkpoints.room import Room


@dataclass(kw_only=True, slots=True)
class Served:
    """What one look at the mailbox led to.

    Args:
        done: A sentence for each thing that was done.
        problems: A sentence for each that was not; nothing is lost by it.
        waiting: Ids of the parts that are sent and not yet committed.
        sessions: Sessions of the owner that were open at the look.
    """

    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)


def adopt_part(room: Room, path: str, **facts: Any) -> Record | None:
    """Take up what this node has of a sharded checkpoint that was saved just now.

    Args:
        room: This node's list.
        path: The folder.
        facts: Fields of `Record`; `step` at least.

    Returns:
        Its record, `None` if it is no part: there is no folder, no shard, or the `.metadata` is here too.
    """
    found = room.files.scan(path)
    names = {fact.path.rpartition("/")[2] for fact in found if fact.kind == "file"}
    if ".metadata" in names or not any(name.endswith(".distcp") for name in names):
        return None
    return room.inventory.adopt(path, room.new_id(), part=True, **facts)


def serve(room: Room) -> Served:
    """Look once at what the owner of the run's checkpoints asks of this node, and do it.

    Args:
        room: This node's list, which holds parts.

    Returns:
        What was done; repeating it changes nothing.

    Raises:
        StoreError: If the store is away.
        RefusedError: If another process moves checkpoints of this list.
    """
    told = Served()
    with room.hold():
        keys = look(room)
        told.sessions += sessions(room, keys)
        for record in _parts(room, "demoting"):
            _told(told, partial(settle, room, record))
        for key, id, verb in words(room, keys):
            _told(told, partial(_heed, room, key, id, verb, told))
        for id in open_ids(room, keys):
            _told(told, partial(_answer, room, id, told))
        told.waiting += [record.id for record in _parts(room, "demoting")]
    return told


def _told(told: Served, do: Callable[[], object]) -> None:
    try:
        do()
    except StoreError:
        raise  # away for all of them
    except CheckpointError as error:
        told.problems.append(str(error))


def _parts(room: Room, *states: str) -> list[Record]:
    records = [record for record in room.inventory.records() if record.part]
    return [record for record in records if record.state in states or not states]


# -- what becomes of a part that was sent ----------------------------------------------------------------------------


def settle(room: Room, record: Record) -> Record:
    """Find out what has become of the upload that a part was sent to.

    Returns:
        Its record: in both tiers if it is committed with all that this node has, hot if it was thrown away, else
        as it was.

    Raises:
        CheckpointError: If the manifest or the gathering cannot be read.
        StoreError: If the store is away.
    """
    # In this order: the owner writes the manifest before he closes the gathering.
    asked = read_gathering(room, record.id)
    found = room.read_manifest(record.id)
    if found is not None:
        return _committed(room, record, *found)
    if asked is not None and asked.attempt == record.attempt:
        return record
    clear_part(room, record)
    return room.inventory.update(record, state="hot", attempt=None, hashes={})


def _committed(room: Room, record: Record, manifest: Manifest, sha256: str) -> Record:
    """Note a committed copy, if it has every byte that this node has sent; `release` looks at its objects."""
    _clear_rest(room, record, manifest)
    if _holds(manifest, record):
        return committed_record(room, record, manifest, sha256)
    problem = "its checkpoint was moved without what this node has of it, which stays here"
    return room.inventory.update(record, state="hot", attempt=None, hashes={}, problem=problem)


def _holds(manifest: Manifest, record: Record) -> bool:
    there = {entry.path: entry.sha256 for entry in manifest.files}
    return set(record.hashes) == files_of(record) and all(there.get(p) == h for p, h in record.hashes.items())


def _clear_rest(room: Room, record: Record, manifest: Manifest) -> None:
    """Delete what this node has sent and the manifest does not name."""
    needed = {room.data_key(manifest, entry.place) for entry in manifest.files}
    for key in room.cold.listing(part_data(room, record)):
        if key not in needed:
            room.cold.delete(key)
    room.cold.delete(part_key(room, record.id, record.attempt or "", room.node))


# -- what the owner says ---------------------------------------------------------------------------------------------


def _heed(room: Room, key: str, id: str, verb: str, told: Served) -> None:
    """Do what was decided of a checkpoint with what this node has of it; a word is deleted when it is done."""
    record = next((r for r in _parts(room) if r.id == id), None)
    if record is not None and verb == "release" and record.state in ("both", "releasing"):
        release(room, id)
        told.done.append(f"{id}: what this node had of it is gone from its disk")
    elif record is not None and verb == "expire":
        if room.read_manifest(id) is not None and room.cold.head(room.tombstone_key(id)) is None:
            return  # its owner deletes that first
        finish_expiry(room, room.inventory.update(record, state="expiring"))
        told.done.append(f"{id}: it is deleted, and so is what this node had of it")
    elif record is not None and record.state == "demoting":
        return  # its manifest could not be read; later
    room.cold.delete(key)


# -- what the owner asks for -----------------------------------------------------------------------------------------


class _ClosedError(Exception):
    """The gathering was closed while this node was sending."""


def _answer(room: Room, id: str, told: Served) -> None:
    """Send what this node has of a checkpoint that is gathered, once for each upload."""
    asked = read_gathering(room, id)
    record = None if asked is None else _held(room, asked)
    if asked is None or record is None or room.cold.head(part_key(room, id, asked.attempt, room.node)) is not None:
        return
    if room.read_manifest(id) is not None:
        return  # the part is deleted only after that is there
    record = room.inventory.rename(record, id, state="demoting", attempt=asked.attempt, hashes={}, problem="")
    part = _sent(room, record, asked, told)
    if part is not None:
        room.cold.create(part_key(room, id, asked.attempt, room.node), part.encode())
    settle(room, room.inventory.get(id))


def _held(room: Room, asked: Gathering) -> Record | None:
    """What this node has at the path of a gathering; of a part that a death left under two names the named one."""
    # The same path on every node as a rule; else the same from the folder that each trains in.
    there = [
        record
        for record in _parts(room, "hot", "demoting")
        if asked.path == record.path or (asked.below and asked.below == room.inventory.short(record.path))
    ]
    named = next((r for r in there if r.id == asked.id), None)
    hot = [r for r in there if r.state == "hot" and r.id != asked.id]
    if named is None:
        return hot[-1] if hot else None
    for double in hot:
        if double.fingerprint == named.fingerprint:
            room.inventory.remove(double.id)
    return named if named.state == "hot" or named.attempt == asked.attempt else None


def _sent(room: Room, record: Record, asked: Gathering, told: Served) -> Part | None:
    """The answer of this node; `None` if nobody waits for it any more."""
    try:
        _check_asked(room, record, asked)
        for begun in room.cold.uploads(part_data(room, record)):
            room.cold.abort(begun)
        manifest = upload(room, record, asked.attempt, node=room.node, before_each=lambda: _check_open(room, asked))
    except _ClosedError:
        return None
    except (CheckpointError, OSError) as error:
        if read_gathering(room, asked.id) != asked:
            return None  # its owner has deleted what was being sent
        if isinstance(error, StoreError):
            raise
        told.problems.append(str(error))
        room.inventory.update(record, problem=str(error)[:500])
        return Part(node=room.node, problem=str(error)[:500])
    room.inventory.update(record, hashes={entry.path: entry.sha256 for entry in manifest.files})
    told.done.append(f"{record.id}: {len(manifest.files)} files of step {record.step} are sent")
    return Part(node=room.node, manifest=manifest)


def _check_open(room: Room, asked: Gathering) -> None:
    if read_gathering(room, asked.id) != asked:
        raise _ClosedError


def _check_asked(room: Room, record: Record, asked: Gathering) -> None:
    """Refuse what is of another save than the one that is asked for.

    Raises:
        RefusedError: If it is.
    """
    if record.step != asked.step:
        raise RefusedError(f"{record.path} is of step {record.step} here, and of step {asked.step} at its owner.")
    check_sendable(room, record)
    for path in files_of(record):
        check_relative(path)
        if path.endswith(".distcp") and path not in asked.shards:
            raise RefusedError(f"{record.path}: its .metadata does not name {path}, which is left of another save.")
