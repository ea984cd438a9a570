"""Moves a checkpoint to the cold store: upload, verify, commit by the manifest, and only then let the hot copy go."""

from __future__ import annotations

import contextlib
import os
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from costguard.checkpoints.digest import Digest, expected_etag, part_bytes_for
from costguard.checkpoints.faults import CheckpointError, MismatchError, RefusedError
from costguard.checkpoints.hot import FileFact, remove_tree
from costguard.checkpoints.mailbox import tell_nodes
from costguard.checkpoints.manifest import FileEntry, Level, Manifest, check_paths
from costguard.checkpoints.record import FACTS, Record, check_kinds
from costguard.checkpoints.room import Room, drop_attempt, unprotected


def demote(room: Room, id: str) -> Record:
    """Make a complete, verified and committed cold copy; the hot one stays.

    Args:
        room: The run's checkpoints; where shards are on other nodes, its `gather` has them sent.
        id: Which one.

    Returns:
        Its record, now in both tiers.

    Raises:
        RefusedError: If its files have changed since it was taken up, or its save is not known to have ended.
        MismatchError: If the store does not hold what was sent.
        StoreError: If the store is away.
    """
    with room.hold():
        record = room.inventory.get(id)
        if record.tier != "hot":
            return record
        check_demotable(room, record)
        if room.gather is not None and missing_shards(room, record):
            return room.gather(room, id)
        check_shards(room, record)
        attempt = room.new_id()
        record = room.inventory.update(record, state="demoting", attempt=attempt, problem="")
        try:
            manifest = upload(room, record, attempt)
            return commit(room, record, manifest)
        except Exception as error:
            give_up(room, record, attempt, error)
            raise


def release(room: Room, id: str) -> Record:
    """Let the hot copy go, if the cold one is all there and the hot one is still what was hashed.

    Args:
        room: The run's checkpoints.
        id: Which one.

    Returns:
        Its record, now cold.

    Raises:
        RefusedError: If it must stay: pinned, newest, resumed from, unfinished.
        MismatchError: If the cold copy is not all there.
    """
    with room.hold():
        record = room.inventory.get(id)
        if record.state == "cold":
            return record
        if record.state not in ("both", "releasing"):
            raise RefusedError(f"checkpoint {id} has no committed cold copy; demote it first.")
        unprotected(room, record)
        if record.level < room.required:
            raise RefusedError(
                f"checkpoint {id} was verified to level {Level(record.level).name}, "
                f"and {room.required.name} is asked for; its hot copy stays."
            )
        check_cold(room, record, room.committed(record))
        # Looking took its time, in which somebody may have pinned it.
        unprotected(room, room.inventory.get(id))
        return let_go(room, record)


def check_cold(room: Room, record: Record, manifest: Manifest) -> None:
    """Look afresh at every object of a cold copy: its size, and its tag where that was what proved it.

    Raises:
        MismatchError: If one is missing or another one.
    """
    if room.cold.head(room.tombstone_key(record.id)) is not None:
        raise MismatchError(f"{record.id}: its cold copy is being deleted.")
    for entry in manifest.files:
        key = room.data_key(manifest, entry.place)
        if verify(room, key, entry, Level.SIZE) < Level.ETAG == manifest.level:
            raise MismatchError(f"{room.cold.url}: {key} has another tag than it had; the hot copy stays.")


def let_go(room: Room, record: Record) -> Record:
    """Move the hot copy aside and delete it; each step can be done again.

    What is at the path now and is not what was hashed is somebody else's, and stays. Other nodes are told first:
    what they have goes by this node's decision, and once this record is cold nobody would tell them.
    """
    tell_nodes(room, record, "release")
    if room.files.scan(record.path) == record.fingerprint:
        record = room.inventory.update(record, state="releasing")
        trash = room.trash(record)
        room.files.make_folder(os.path.dirname(trash))
        room.files.rename(record.path, trash)
    empty_trash(room, record)
    return room.inventory.update(record, state="cold", problem="", **record.hot_ended(room.now_ns()))


def bring_back(room: Room, record: Record) -> bool:
    """Give a hot copy that was moved aside, and is whole, its name again; says whether it has it."""
    trash = room.trash(record)
    if room.files.scan(trash) == record.fingerprint and not room.files.scan(record.path):
        room.files.rename(trash, record.path)
        room.files.remove_folder(os.path.dirname(trash))
    return room.files.scan(record.path) == record.fingerprint


def empty_trash(room: Room, record: Record) -> None:
    """Delete what was moved aside, and the links that pointed to it."""
    folder = os.path.dirname(record.path)
    if not room.files.scan(record.path):
        for name in record.aliases:
            alias = os.path.join(folder, name)
            fact = room.files.scan(alias)
            if fact and fact[0].kind == "link" and room.files.real(alias) == record.path:
                room.files.remove(alias)
    trash = room.trash(record)
    remove_tree(room.files, trash)
    room.files.remove_folder(os.path.dirname(trash))


def check_demotable(room: Room, record: Record) -> None:
    """Refuse what is on its way already, a part of a checkpoint, and what must not be sent.

    Raises:
        RefusedError: If it is one.
    """
    if record.state != "hot":
        raise RefusedError(f"checkpoint {record.id} is on its way already; recover first.")
    if record.part:
        raise RefusedError(f"{record.path} is a part of a checkpoint; the node that has its .metadata moves it.")
    check_sendable(room, record)


def check_sendable(room: Room, record: Record) -> None:
    """Refuse what is unfinished, has changed, or could not be restored.

    Raises:
        RefusedError: If it is.
    """
    if not record.complete:
        raise RefusedError(f"checkpoint {record.id} (step {record.step}) stays: its save is not known to have ended.")
    if room.files.scan(record.path) != record.fingerprint:
        raise RefusedError(f"{record.path} has changed since it was taken up as {record.id}; nothing was moved.")
    check_kinds(record.path, record.fingerprint)
    # What a restore would refuse is not sent.
    check_paths(_manifest(room, record, "none", [_unhashed(f) for f in record.fingerprint if f.kind == "file"], 0))


def _unhashed(fact: FileFact) -> FileEntry:
    return FileEntry(path=fact.path, size=0, sha256="", part_bytes=1, part_md5s=(), mtime_ns=0)


def check_shards(room: Room, record: Record) -> None:
    """Refuse a distributed checkpoint of which a shard is on another node's disk."""
    missing = sorted(missing_shards(room, record))
    if missing:
        raise RefusedError(
            f"{record.path}: {len(missing)} shards that its .metadata names are not here, such as {missing[0]}; "
            "they may be on another node's disk, so it stays."
        )


def missing_shards(room: Room, record: Record) -> set[str]:
    """Relative paths of the shards that a hot checkpoint's own `.metadata` names and that are not here."""
    return named_shards(room, record) - files_of(record)


def files_of(record: Record) -> set[str]:
    """Relative paths of the files that were taken up."""
    return {fact.path for fact in record.fingerprint if fact.kind == "file"}


def named_shards(room: Room, record: Record) -> set[str]:
    """Relative paths of the shards that each `.metadata` of a checkpoint names, here or not.

    It is a pickle, so it is only scanned for names, never loaded.
    """
    found: set[str] = set()
    for path in (p for p in files_of(record) if os.path.basename(p) == ".metadata"):
        data = room.files.read(os.path.join(record.path, path))
        found |= {path[: -len(".metadata")] + shard for shard in shards_in(data)}
    return found


def shards_in(metadata: bytes) -> set[str]:
    """Names of the shards in the `.metadata` of a `torch.distributed.checkpoint`, without loading it."""
    found: set[str] = set()
    with contextlib.suppress(ValueError):  # not a pickle: nothing is known of its shards
        for _, argument, _ in pickletools.genops(metadata):
            if isinstance(argument, str) and argument.endswith(".distcp") and "/" not in argument:
                found.add(argument)
    return found


def upload(
    room: Room,
    record: Record,
    attempt: str,
    source: str | None = None,
    node: str | None = None,
    before_each: Callable[[], None] = lambda: None,
) -> Manifest:
    """Send every file and verify it.

    Args:
        room: The run's checkpoints.
        record: The checkpoint.
        attempt: Name of this upload.
        source: Where its files lie, its path if `None`.
        node: This node, where several send to one upload.
        before_each: Called before each file; what it raises ends the upload.

    Returns:
        The manifest of what the store holds now.

    Raises:
        RefusedError: If the files are not those of the record's fingerprint.
        MismatchError: If the store does not hold what was sent.
    """
    source = source or record.path
    name = os.path.basename(record.path)
    level = Level.CONTENT
    entries: list[FileEntry] = []
    prefix = room.data_prefix(record.id, attempt) + ("" if node is None else f"{node}/")
    for fact in record.fingerprint:
        if fact.kind == "file":
            before_each()
            key = prefix + (fact.path or name)
            entry = replace(_send(room, source, fact, key), node=node)
            level = min(level, verify(room, key, entry, room.required))
            entries.append(entry)
    if room.files.scan(source) != record.fingerprint:
        raise RefusedError(f"{source} was changed while it was being copied; nothing was moved.")
    return _manifest(room, record, attempt, entries, level)


def _manifest(room: Room, record: Record, attempt: str, entries: list[FileEntry], level: int) -> Manifest:
    return Manifest(
        id=record.id,
        run=room.run,
        attempt=attempt,
        name=os.path.basename(record.path),
        kind="folder" if record.fingerprint[0].kind == "folder" else "file",
        path=record.path,
        files=tuple(entries),
        folders=tuple(f.path for f in record.fingerprint if f.kind == "folder"),
        links={f.path: f.target for f in record.fingerprint if f.kind == "link"},
        aliases=record.aliases,
        facts={fact: getattr(record, fact) for fact in FACTS},
        level=int(level),
        put_ns=room.now_ns(),
        storage_class=room.storage_class.name if room.storage_class else None,
    )


def _send(room: Room, root: str, fact: FileFact, key: str) -> FileEntry:
    path = os.path.join(root, fact.path) if fact.path else root
    part_bytes = part_bytes_for(fact.size, room.part_bytes)
    digest = Digest()
    parts = digest.watch(room.pace.parts(parts_of(room, path, 0, fact.size, part_bytes)))
    room.cold.put(key, parts, fact.size, digest.part_md5s)
    return FileEntry(
        path=fact.path,
        size=digest.size,
        sha256=digest.sha256,
        part_bytes=part_bytes,
        part_md5s=tuple(digest.part_md5s),
        mtime_ns=fact.mtime_ns,
    )


def parts_of(room: Room, path: str, start: int, end: int, part_bytes: int) -> Iterator[bytes]:
    """The bytes of a file from `start` up to but not including `end`, in parts, at least one.

    Raises:
        RefusedError: If it is shorter than that.
    """
    for at in range(start, max(end, start + 1), part_bytes):
        wanted = min(part_bytes, end - at)
        part = room.files.read(path, at, wanted) if wanted else b""
        if len(part) != wanted:
            raise RefusedError(f"{path} was cut while it was being copied; nothing was moved.")
        yield part


def verify(room: Room, key: str, entry: FileEntry, wanted: Level) -> Level:
    """Find out how surely the store holds a file, by a request of its own.

    Args:
        room: The run's checkpoints.
        key: Key of the object.
        entry: What it should be.
        wanted: Level to reach; where size and tag do not, the content is read back and hashed.

    Returns:
        The level reached.

    Raises:
        MismatchError: If the object is missing or another one.
    """
    fact = room.cold.head(key)
    if fact is None:
        raise MismatchError(f"{room.cold.url}: {key} is not there.")
    if fact.size != entry.size:
        raise MismatchError(f"{room.cold.url}: {key} has {fact.size} bytes instead of {entry.size}.")
    if wanted <= Level.ETAG and fact.etag is not None and fact.etag == expected_etag(entry.part_md5s):
        return Level.ETAG
    if wanted <= Level.SIZE:
        return Level.SIZE
    digest = Digest()
    for start in range(0, max(entry.size, 1), entry.part_bytes):
        digest.add(room.cold.read(key, start, min(start + entry.part_bytes, entry.size)) if entry.size else b"")
    if digest.sha256 != entry.sha256:
        raise MismatchError(f"{room.cold.url}: {key} does not hold the bytes that were sent.")
    return Level.CONTENT


def commit(room: Room, record: Record, manifest: Manifest) -> Record:
    """Write the manifest unless there is one, and note what is there then.

    Raises:
        MismatchError: If another attempt has committed other bytes.
    """
    return committed_record(room, record, *create_manifest(room, record, manifest))


def create_manifest(room: Room, record: Record, manifest: Manifest) -> tuple[Manifest, str]:
    """Write the manifest unless there is one, and believe what is there then.

    Returns:
        The manifest that is there, of another attempt perhaps, and its hash.

    Raises:
        MismatchError: If another attempt has committed other bytes.
    """
    room.cold.create(room.manifest_key(record.id), manifest.encode())
    found = room.read_manifest(record.id)
    if found is None:
        raise MismatchError(f"{room.cold.url}: the manifest of {record.id} is not there after it was written.")
    written, sha256 = found
    if written.attempt != manifest.attempt:
        if not written.same_content(manifest):
            raise MismatchError(f"{record.id}: another attempt has committed other bytes; the hot copy stays.")
        check_cold(room, record, written)
        drop_attempt(room, record.id, manifest.attempt)
    return written, sha256


def committed_record(room: Room, record: Record, manifest: Manifest, sha256: str, **changes: Any) -> Record:
    """Note that a cold copy is committed, and other changes with it."""
    noted: dict[str, Any] = {
        "state": "both",
        "attempt": None,
        "cold_since_ns": manifest.put_ns,
        "manifest_sha256": sha256,
        "level": manifest.level,
        "storage_class": manifest.storage_class,
        "nodes": manifest.nodes,
        "problem": "",
    }
    return room.inventory.update(record, **{**noted, **changes})


def give_up(
    room: Room,
    record: Record,
    attempt: str,
    error: Exception,
    drop: Callable[[Room, str, str], None] = drop_attempt,
) -> None:
    """Leave the hot copy as it was; what was sent is deleted if the store lets us, else by the next recovery."""
    try:
        found = room.read_manifest(record.id)
        if found is None or found[0].attempt != attempt:
            drop(room, record.id, attempt)
            room.inventory.update(record, state="hot", attempt=None, problem=str(error)[:500])
    except (CheckpointError, OSError):
        # It stays `demoting`, with the name of its attempt: recovery looks again.
        with contextlib.suppress(OSError):
            room.inventory.update(record, problem=str(error)[:500])
