"""Archives any folder by the protocol of checkpoints: raw corpora, outputs of experiments that failed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.digest import part_bytes_for
from costguard.checkpoints.faults import RefusedError
from costguard.checkpoints.record import Record, check_kinds
from costguard.checkpoints.recovery import rebuild, recover
from costguard.checkpoints.room import Room


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivePlan:
    """What archiving a path would take.

    Args:
        path: The file or folder.
        files: Files in it.
        size_bytes: Their bytes.
        requests: Writing requests that it takes.
        usd_per_month: Exact dollars for 30 days in the archive, `None` if unknown.
        usd_fee: Exact dollars for the requests, `None` if unknown.
    """

    path: str
    files: int
    size_bytes: int
    requests: int
    usd_per_month: Fraction | None
    usd_fee: Fraction | None


def plan_archive(room: Room, path: str) -> ArchivePlan:
    """Count what archiving a path would take, and touch nothing.

    Args:
        room: The archive: a room whose run is the archive's name and whose `keep_newest` is off.
        path: The file or folder.

    Raises:
        RefusedError: If there is nothing, or something that cannot be archived.
    """
    path = room.files.real(path)
    facts = room.files.scan(path)
    check_kinds(path, facts)
    sizes = [fact.size for fact in facts if fact.kind == "file"]
    requests = 1 + sum(_requests(size, room.part_bytes) for size in sizes)
    price = room.storage_class
    return ArchivePlan(
        path=path,
        files=len(sizes),
        size_bytes=sum(sizes),
        requests=requests,
        usd_per_month=price.month_usd(sum(sizes)) if price else None,
        usd_fee=price.put_usd(requests) if price else None,
    )


def _requests(size: int, part_bytes: int) -> int:
    """One for a small file; one for each part, one to begin and one to end a large one."""
    parts = max(1, -(-size // part_bytes_for(size, part_bytes)))
    return 1 if parts == 1 else parts + 2


def archive(room: Room, path: str, *, delete: bool = False) -> Record:
    """Put a path into the archive.

    Args:
        room: The archive.
        path: The file or folder.
        delete: Whether to delete it here once its copy is complete and verified.

    Returns:
        Its record; repeating it goes on where it stopped and archives nothing twice.

    Raises:
        RefusedError: If it holds the archive's own inventory, or something that cannot be archived.
        StoreError: If the store is away; nothing is deleted then.
    """
    path = room.files.real(path)
    own = room.files.real(room.inventory.folder)
    if own == path or own.startswith(path + os.sep):
        raise RefusedError(f"{path} holds the archive's own list; archive what is below or beside it.")
    with room.hold():
        recover(room)
        record = room.inventory.find(path)
        if record is None or not room.inventory.there(record):
            record = room.inventory.adopt(path, room.new_id(), saved_ns=room.now_ns())
        record = demote(room, record.id)
        return release(room, record.id) if delete else record


def archived(room: Room) -> Sequence[Record]:
    """Everything in the archive, also what another machine has put there.

    Args:
        room: The archive.
    """
    rebuild(room)
    return [record for record in room.inventory.records() if record.cold_since_ns is not None]
