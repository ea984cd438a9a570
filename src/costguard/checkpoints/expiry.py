"""Deletes a checkpoint for good: a tombstone first, then the bytes, and last its place in the inventory."""

from __future__ import annotations

import json
import os

from costguard.checkpoints.demotion import empty_trash
from costguard.checkpoints.faults import CheckpointError, RefusedError
from costguard.checkpoints.mailbox import clear_part, gathering_key, tell_nodes
from costguard.checkpoints.record import Record
from costguard.checkpoints.restore import temp_gone
from costguard.checkpoints.room import Room, unprotected


def expire(room: Room, id: str) -> None:
    """Delete a checkpoint in both tiers.

    Args:
        room: The run's checkpoints.
        id: Which one.

    Raises:
        RefusedError: If it must stay: pinned, newest, resumed from, unfinished.
        CheckpointError: If the store does not let go of it; what is left is tried again by the next recovery.
    """
    with room.hold():
        record = room.inventory.get(id)
        if record.state == "stripping":
            raise RefusedError(f"checkpoint {id} is being made of {record.stripped_from}; recover first.")
        if record.part:
            raise RefusedError(f"{record.path} is a part of a checkpoint; the node that has its .metadata deletes it.")
        if record.state != "expiring":
            unprotected(room, record)
            record = room.inventory.update(record, state="expiring")
        finish_expiry(room, record)


def finish_expiry(room: Room, record: Record) -> None:
    """Go on with an expiry from wherever it stopped; of a part only what this node has goes."""
    owned = room.store is not None and not record.part
    if owned and record.nodes:
        room.cold.delete(gathering_key(room, record.id))
    if owned and (record.cold_since_ns is not None or record.attempt is not None):
        delete_cold(room, record.id)
    if record.part and record.attempt is not None:
        clear_part(room, record)
    if room.files.scan(record.path) == record.fingerprint:
        trash = room.trash(record)
        room.files.make_folder(os.path.dirname(trash))
        room.files.rename(record.path, trash)
    empty_trash(room, record)
    temp_gone(room, record.path, record.id)
    if owned:
        tell_nodes(room, record, "expire")
    room.inventory.remove(record.id)


def delete_cold(room: Room, id: str) -> None:
    """Delete a cold copy; the manifest goes last but for the tombstone, which keeps it from being restored.

    Raises:
        CheckpointError: If objects are still there afterwards.
    """
    room.cold.create(room.tombstone_key(id), json.dumps({"schema": 1, "id": id}).encode())
    for upload in room.cold.uploads(room.prefix(id)):
        room.cold.abort(upload)
    last = (room.manifest_key(id), room.tombstone_key(id))
    for key in room.cold.listing(room.prefix(id)):
        if key not in last:
            room.cold.delete(key)
    # A store may take a deletion and not do it: only a fresh list tells.
    left = [key for key in room.cold.listing(room.prefix(id)) if key not in last]
    if left:
        raise CheckpointError(f"{room.cold.url}: {len(left)} objects of {id} are still there after their deletion.")
    for key in last:
        room.cold.delete(key)
