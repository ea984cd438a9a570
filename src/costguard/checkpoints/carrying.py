"""Carries out what was decided of a checkpoint, unless a guard holds it where it is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.faults import StoreError
from costguard.checkpoints.record import Record
from costguard.checkpoints.room import Room
from costguard.checkpoints.stripping import strip
from costguard.checkpoints.weights import WholeError
from costguard.policies.retention import Decision, Move

_LAST: Final = re.compile(r"last.*\.ckpt")
"""Names that `ckpt_path="last"` chooses from, in `ModelCheckpoint._find_last_checkpoints` of Lightning 2.6."""


def carry_out(room: Room, decision: Decision, pointers: Iterable[str] = ()) -> str | None:
    """Do what was decided of one checkpoint.

    Args:
        room: The checkpoints.
        decision: What is to become of one of them.
        pointers: Files that a restart goes on from; those stay on the hot disk.

    Returns:
        Why it stays where it is all the same, `None` if it was done or there was nothing to do.

    Raises:
        CheckpointError: If it could not be done; nothing is lost by it. What cannot be stripped moves whole first.
    """
    record = next((r for r in room.inventory.records() if r.id == decision.id), None)
    if record is None or decision.move is Move.KEEP:
        return None
    why = why_it_stays(room, record, pointers)
    if why is not None:
        return why
    if decision.move is Move.EXPIRE:
        expire(room, record.id)
    elif room.store is None:
        return "there is no cold store"
    elif decision.move is Move.STRIP:
        _strip(room, record)
    else:
        _demote(room, record)
    return None


def _demote(room: Room, record: Record) -> None:
    if record.tier != "cold":
        demote(room, record.id)
        release(room, record.id)


def _strip(room: Room, record: Record) -> None:
    """Leave its optimizer state away; where that cannot be, what is hot moves whole, so that its disk gets free."""
    try:
        if not strip(room, record.id).stripped:
            _demote(room, record)
    except WholeError:
        _demote(room, record)
        raise
    except StoreError as error:
        if error.kind != "full":
            raise
        _demote(room, record)
        raise WholeError(str(error), lasting=False) from error


def why_it_stays(room: Room, record: Record, pointers: Iterable[str] = ()) -> str | None:
    """What holds a checkpoint where it is, whatever was decided; `None` if nothing does.

    Args:
        room: The checkpoints.
        record: One of them.
        pointers: Files that a restart goes on from.
    """
    newest = room.inventory.newest_complete()
    pointed = {os.path.realpath(path) for path in pointers if path}
    hot = record.tier != "cold"
    for holds, why in (
        (record.resumed_from, "a run was resumed from it"),
        (record.pinned, "it is pinned"),
        (newest is not None and newest.id == record.id, "it is the newest complete checkpoint"),
        (hot and record.path in pointed, "a restart goes on from it"),
        (hot and bool(room.files.links_to(record.path)), "a link beside it points to it"),
    ):
        if holds:
            return why
    return None


def restart_files(room: Room) -> list[str]:
    """Files beside the checkpoints that a restart may go on from by their name, for where no Trainer is there to ask.

    Args:
        room: The checkpoints.
    """
    folders = sorted({os.path.dirname(record.path) for record in room.inventory.records()})
    return [os.path.join(f, name) for f in folders for name in room.files.listing(f) if _LAST.fullmatch(name)]
