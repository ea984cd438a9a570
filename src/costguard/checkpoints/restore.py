"""Brings a checkpoint back: part by part, every part hashed, and under its name only when all of it is right."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import posixpath
from dataclasses import replace

from costguard.checkpoints.demotion import bring_back
from costguard.checkpoints.digest import md5_of
from costguard.checkpoints.faults import ArchivedError, CheckpointError, MismatchError, RefusedError, StoreError
from costguard.checkpoints.hot import remove_tree
from costguard.checkpoints.mailbox import withdraw
from costguard.checkpoints.manifest import FileEntry, Manifest
from costguard.checkpoints.record import Record
from costguard.checkpoints.room import Room
from costguard.units import format_money


def restore(room: Room, id: str, to: str | None = None) -> str:
    """Bring a checkpoint back to where it was, or make a copy of it elsewhere.

    A restore that was interrupted goes on where it stopped. Where several nodes had parts of it, each brings its own
    back to where they were; a copy elsewhere is of all of it.

    Args:
        room: The run's checkpoints.
        id: Which one.
        to: Where to, the old path if `None`.

    Returns:
        The path where it is now, verified.

    Raises:
        ArchivedError: If it must be restored from an archive first; the message says how long and how much.
        RefusedError: If something else is at that place.
        MismatchError: If the cold copy is not what was hashed.
        StoreError: If the store is away, or the disk is full; nothing partial is left under the name.
    """
    with room.hold():
        record = room.inventory.get(id)
        if record.state == "releasing" and bring_back(room, record):
            # Its hot copy had only been moved aside: no store is needed, which may be away.
            record = room.inventory.update(record, state="both")
        if record.state in ("releasing", "expiring"):
            raise RefusedError(f"checkpoint {id} is {record.state}; recover first.")
        if to is None and record.nodes:
            with contextlib.suppress(StoreError):  # what is here needs no store
                withdraw(room, record, "release")  # decided before it was wanted back
        if to is None and room.inventory.there(record):
            return record.path
        if record.cold_since_ns is None:
            raise RefusedError(f"checkpoint {id} has no cold copy to be restored from.")
        manifest = room.committed(record)
        target = os.path.abspath(to) if to is not None else record.path
        if room.cold.head(room.tombstone_key(id)) is not None:
            raise RefusedError(f"checkpoint {id} is being deleted.")
        if to is None:
            manifest = portion(record, manifest)
        if room.files.scan(target):
            _already_there(room, manifest, target)
        else:
            _check_readable(room, manifest)
            if to is None:
                record = room.inventory.update(record, state="restoring")
            _fetch(room, record, manifest, target, own=to is None)
            if to is not None:
                room.inventory.update(record, reads=record.reads + 1)
        return _arrived(room, record, target) if to is None else target


def _already_there(room: Room, manifest: Manifest, target: str) -> None:
    if not holds(room, manifest, target):
        raise RefusedError(f"{target}: something else is there; restore it to another path.")


def holds(room: Room, manifest: Manifest, target: str) -> bool:
    """Whether what is at a path is what a manifest describes, by its hashes."""
    there = {fact.path: fact for fact in room.files.scan(target)}
    for entry in manifest.files:
        fact = there.get(entry.path)
        if fact is None or fact.kind != "file" or fact.size != entry.size:
            return False
        if _hash(room, _join(target, entry.path), entry) != entry.sha256:
            return False
    return True


def _arrived(room: Room, record: Record, target: str) -> str:
    """Note that it is in both tiers, and make its links again."""
    temp_gone(room, target, record.id)
    for name in record.aliases:
        room.files.link(os.path.basename(target), os.path.join(os.path.dirname(target), name))
    room.inventory.update(
        record,
        state="both",
        fingerprint=room.files.scan(target),
        problem="",
        reads=record.reads + (record.state == "restoring"),
        hot_since_ns=room.now_ns(),
    )
    return target


def finish_restore(room: Room, record: Record) -> bool:
    """Note a restore that had come to its end but for the note; says whether it had."""
    if not room.files.scan(record.path):
        return False
    if not holds(room, portion(record, room.committed(record)), record.path):
        return False
    _arrived(room, record, record.path)
    return True


def portion(record: Record, manifest: Manifest) -> Manifest:
    """What a manifest tells of the files that this disk had: all of them, unless several nodes had parts.

    Args:
        record: The checkpoint on this node.
        manifest: Of all of it.
    """
    if not record.nodes:
        return manifest
    had = {fact.path for fact in record.fingerprint}
    return replace(
        manifest,
        files=tuple(entry for entry in manifest.files if entry.path in had),
        folders=tuple(folder for folder in manifest.folders if folder in had),
        links={path: target for path, target in manifest.links.items() if path in had},
    )


def abandon_restore(room: Room, record: Record) -> None:
    """Throw away what an interrupted restore has brought so far."""
    temp_gone(room, record.path, record.id)
    room.inventory.update(record, state="cold")


def temp_gone(room: Room, target: str, id: str) -> None:
    """Remove the folder in which a restore collects its parts."""
    remove_tree(room.files, _temp(target, id))


def _temp(target: str, id: str) -> str:
    return os.path.join(os.path.dirname(target), f".costguard-restore-{id}")


def _join(root: str, path: str) -> str:
    return os.path.join(root, *path.split("/")) if path else root


def _fetch(room: Room, record: Record, manifest: Manifest, target: str, *, own: bool) -> None:
    temp = _temp(target, record.id)
    try:
        room.files.make_folder(os.path.dirname(target))
        _check_room(room, manifest, target)
        whole = os.path.join(temp, manifest.name)
        room.files.make_folder(temp)
        for folder in sorted(manifest.folders):
            room.files.make_folder(_join(whole, folder))
        for entry in manifest.files:
            _fetch_file(room, manifest, entry, _join(whole, entry.path))
        for path, link in manifest.links.items():
            room.files.link(link, _join(whole, path))
        room.files.rename(whole, target)
        temp_gone(room, target, record.id)
    except (OSError, StoreError, MismatchError) as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or isinstance(error, MismatchError):
            # A part that is kept would take the space that saving needs; a wrong one is of no use.
            remove_tree(room.files, temp)
            if own:
                room.inventory.update(record, state="cold", problem=str(error)[:500])
        if isinstance(error, OSError):
            raise StoreError("full" if full else "other", f"{target}: cannot be written: {error.strerror}.") from error
        raise


def _fetch_file(room: Room, manifest: Manifest, entry: FileEntry, path: str) -> None:
    """Append part after part to what is right so far."""
    key = room.data_key(manifest, entry.place)
    have = _good_parts(room, entry, path)
    for number in range(have, len(entry.part_md5s)):
        start = number * entry.part_bytes
        end = min(start + entry.part_bytes, entry.size)
        part = _part(room, key, start, end, entry.part_md5s[number])
        room.files.append(path, part)
    if _hash(room, path, entry) != entry.sha256:
        room.files.remove(path)
        raise MismatchError(f"{room.cold.url}: {key} does not hold the bytes that its manifest tells of.")
    room.files.settle(path, entry.mtime_ns)


def _part(room: Room, key: str, start: int, end: int, md5: str) -> bytes:
    """One part, asked for twice if the first came damaged."""
    for _ in range(2):
        room.pace.count(end - start)  # training waits for it
        part = room.cold.read(key, start, end) if end > start else b""
        if md5_of(part) == md5:
            return part
    raise MismatchError(f"{room.cold.url}: {key} came damaged at byte {start}, twice; it is not used.")


def _good_parts(room: Room, entry: FileEntry, path: str) -> int:
    """How many whole parts are there and right; whatever follows them is cut off."""
    facts = room.files.scan(path)
    if not facts:
        return 0
    if facts[0].kind != "file":
        room.files.remove(path)
        return 0
    good = 0
    for md5 in entry.part_md5s:
        start = good * entry.part_bytes
        end = min(start + entry.part_bytes, entry.size)
        if facts[0].size < end or md5_of(room.files.read(path, start, end - start)) != md5:
            break
        good += 1
    keep = min(good * entry.part_bytes, entry.size)
    if facts[0].size != keep:
        room.files.truncate(path, keep)
    return good


def _hash(room: Room, path: str, entry: FileEntry) -> str:
    sha256 = hashlib.sha256()
    for start in range(0, entry.size, entry.part_bytes):
        sha256.update(room.files.read(path, start, entry.part_bytes))
    return sha256.hexdigest()


def _check_room(room: Room, manifest: Manifest, target: str) -> None:
    temp = _temp(target, manifest.id)
    have = sum(fact.size for fact in room.files.scan(temp))
    free = room.files.free_bytes(os.path.dirname(target))
    if free + have < manifest.size_bytes:
        needed = manifest.size_bytes - have
        raise OSError(errno.ENOSPC, f"no space left: {needed} bytes are needed and {free} are free")


def _check_readable(room: Room, manifest: Manifest) -> None:
    """Say what an archived copy takes before anything is begun."""
    archived = thawing = 0
    for entry in manifest.files:
        fact = room.cold.head(room.data_key(manifest, entry.place))
        if fact is None:
            raise MismatchError(f"{room.cold.url}: {entry.path or manifest.name} of {manifest.id} is not there.")
        archived += fact.archived
        thawing += fact.thawing
    if archived:
        raise ArchivedError(f"{manifest.name} ({manifest.id}) is archived: {_terms(room, manifest, thawing)}")


def _terms(room: Room, manifest: Manifest, thawing: int) -> str:
    price = room.storage_class
    hours = f"about {price.restore_hours:g} h" if price and price.restore_hours else "an unknown time"
    fee = price.read_usd(manifest.size_bytes) if price else None
    usd = "an unknown price" if fee is None else format_money(fee)
    if thawing:
        return f"its restore is going on and takes {hours} in all; try again then."
    return f"it needs a restore from the archive, {hours} and {usd}; ask for it with `ckpt restore --thaw` or thaw()."


def thaw(room: Room, id: str, days: int = 7, speed: str = "Standard") -> int:
    """Ask the store to make an archived checkpoint readable for some days.

    Args:
        room: The run's checkpoints.
        id: Which one.
        days: How long it stays readable, >= 1.
        speed: `Bulk`, `Standard` or `Expedited`, in the words of S3.

    Returns:
        Objects asked for now; 0 if all are readable or on their way.
    """
    with room.hold():
        manifest = room.committed(room.inventory.get(id))
        asked = 0
        for entry in manifest.files:
            key = room.data_key(manifest, entry.place)
            fact = room.cold.head(key)
            if fact is not None and fact.archived and not fact.thawing:
                room.cold.thaw(key, days, speed)
                asked += 1
        return asked


def check_copy(room: Room, id: str) -> int:
    """Read a whole cold copy back and hash it, without writing it anywhere.

    Returns:
        Bytes read.

    Raises:
        MismatchError: If one file is missing or another one.
    """
    manifest = room.committed(room.inventory.get(id))
    _check_readable(room, manifest)
    for entry in manifest.files:
        key = room.data_key(manifest, entry.place)
        sha256 = hashlib.sha256()
        for start in range(0, entry.size, entry.part_bytes):
            end = min(start + entry.part_bytes, entry.size)
            room.pace.take(end - start)
            sha256.update(room.cold.read(key, start, end))
        if sha256.hexdigest() != entry.sha256:
            raise MismatchError(f"{room.cold.url}: {posixpath.basename(key)} does not hold the bytes that were sent.")
    return manifest.size_bytes


__all__ = ["CheckpointError", "abandon_restore", "check_copy", "finish_restore", "holds", "restore", "thaw"]
