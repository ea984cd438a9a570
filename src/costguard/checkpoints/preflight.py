"""Tries out, before a run leans on it, what a cold store lets us do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from costguard.checkpoints.faults import CheckpointError
from costguard.checkpoints.room import Room

CLOCK_NS = 300 * 1_000_000_000
"""S3 refuses requests signed more than 15 minutes off; a third of it is worth a word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one probe found.

    Args:
        probe: `write`, `exclusive`, `read`, `list`, `uploads`, `delete`, `versioning`, `clock`, `disk`, `temp`.
        ok: Whether it is as it should be; `None` if it cannot be told.
        sentence: What it is, and what to do about it.
    """

    probe: str
    ok: bool | None
    sentence: str


def probe(room: Room) -> list[Finding]:
    """Write, read, list and delete one small object, and look at what costs money unseen and at the disks.

    Args:
        room: The run's checkpoints.

    Returns:
        A finding for each probe; those after a failed one that they need, and of a store that is not there, are
        left out.
    """
    disks = [_disk(room), _temp(room)]
    return disks if room.store is None else [*_probe_store(room), *disks]


def _probe_store(room: Room) -> list[Finding]:
    store, key, data = room.cold, f"{room.run}/probe-{room.new_id()}/object", b"costguard was here"
    found: list[Finding] = []
    steps: list[tuple[str, Callable[[], bool], str, str]] = [
        ("write", lambda: store.create(key, data), "objects can be written", "an object could not be written"),
        (
            "exclusive",
            lambda: not store.create(key, b"second"),
            "an object is created once only",
            "an existing object was overwritten: two machines at one run could overwrite each other's manifest",
        ),
        ("read", lambda: store.read(key, 0, len(data)) == data, "what is read is what was written", "other bytes came"),
        ("list", lambda: store.listing(key) == [key], "a list shows it at once", "a list does not show it"),
        (
            "uploads",
            lambda: not store.uploads(f"{room.run}/"),
            "no unfinished upload",
            "there are unfinished uploads, which are billed and in no list; `costguard ckpt gc` aborts them",
        ),
        ("delete", lambda: _deleted(room, key), "objects can be deleted", "a deleted object is still there"),
    ]
    for name, step, good, bad in steps:
        try:
            ok = step()
        except CheckpointError as error:
            found.append(Finding(probe=name, ok=False, sentence=str(error)))
            if name == "write":
                return found
            continue
        found.append(Finding(probe=name, ok=ok, sentence=f"{store.url}: {good if ok else bad}."))
    return [*found, *_versioning(room), *_clock(room)]


def _deleted(room: Room, key: str) -> bool:
    room.cold.delete(key)
    return room.cold.head(key) is None


def _versioning(room: Room) -> list[Finding]:
    """Where versions are kept a deletion frees nothing."""
    ask = getattr(room.cold, "versioned", None)
    if ask is None:
        return []
    try:
        kept = bool(ask())
    except CheckpointError as error:
        return [Finding(probe="versioning", ok=None, sentence=str(error))]
    said = "keeps versions: what is deleted is still billed until a lifecycle rule expires it" if kept else "keeps none"
    return [Finding(probe="versioning", ok=not kept, sentence=f"{room.cold.url}: {said}.")]


def _clock(room: Room) -> list[Finding]:
    ask = getattr(room.cold, "server_ns", None)
    if ask is None:
        return []
    try:
        there = ask()
    except CheckpointError as error:
        return [Finding(probe="clock", ok=None, sentence=str(error))]
    if there is None:
        return [Finding(probe="clock", ok=None, sentence=f"{room.cold.url}: its clock cannot be told.")]
    off = room.now_ns() - there
    sentence = f"this machine's clock and the store's differ by {abs(off) / 1e9:.0f} s"
    return [Finding(probe="clock", ok=abs(off) < CLOCK_NS, sentence=f"{sentence}.")]


def _disk(room: Room) -> Finding:
    """Restores and trash lie beside the checkpoints, so only their own disk matters."""
    free, largest = room.files.free_bytes(os.path.dirname(room.inventory.folder)), _largest(room)
    ok = free > largest
    sentence = f"{free / 1e9:.1f} GB are free, the largest checkpoint has {largest / 1e9:.1f} GB"
    return Finding(probe="disk", ok=ok, sentence=f"{sentence}{'' if ok else '; a restore would not fit'}.")


def _temp(room: Room) -> Finding:
    """A file that Lightning saves is written to the temporary folder first, and moved to its place from there.

    Source: `_atomic_save` of Lightning 2.6, through a transaction of fsspec's local file system; Lightning#21253.
    """
    temp, root = tempfile.gettempdir(), os.path.dirname(os.path.abspath(room.inventory.folder))
    folders = {os.path.dirname(record.path) for record in room.inventory.records()} | {root}
    there = sorted(folder for folder in folders if os.path.isdir(folder))
    away = [folder for folder in there if os.stat(folder).st_dev != os.stat(temp).st_dev]
    if not away:
        return Finding(probe="temp", ok=True, sentence=f"{temp} is on the disk of the checkpoints.")
    free, largest = room.files.free_bytes(temp), _largest(room)
    fits = "" if free > largest else f", and its {free / 1e9:.1f} GB are too few for {largest / 1e9:.1f} GB"
    sentence = (
        f"{temp} is on another disk than {away[0]}, so that Lightning copies what it saves from there, and a death in "
        f"between leaves half a file{fits}; set TMPDIR to a folder on the disk of the checkpoints."
    )
    return Finding(probe="temp", ok=False, sentence=sentence)


def _largest(room: Room) -> int:
    return max((record.size_bytes for record in room.inventory.records()), default=0)
