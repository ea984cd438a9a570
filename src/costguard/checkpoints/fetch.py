"""Gives back a checkpoint by the path that it once had, wherever it is now."""

from __future__ import annotations

import os
from typing import Any

from costguard.checkpoints.cabinet import room_above
from costguard.checkpoints.faults import RefusedError
from costguard.checkpoints.restore import restore


def fetch(path: str, **options: Any) -> str:
    """Make a checkpoint readable under its old path, from the cold store if it is there.

    For what passes by the Trainer: `Model.load_from_checkpoint(costguard.fetch(path))`.

    Args:
        path: Where it was saved.
        options: Of the cold store, as for `CheckpointTiering`: `storage_options`, `allow_plain_http`.

    Returns:
        The same path; it can be read now.

    Raises:
        RunNotFoundError: If no list of checkpoints lies above it.
        CheckpointError: If it is not known there, or its cold copy cannot be read.
    """
    if os.path.exists(path):
        return path
    room = room_above(os.path.dirname(os.path.abspath(path)), **options)
    record = room.inventory.find(path)
    if record is None:
        raise RefusedError(f"{path}: no such checkpoint, neither here nor in the list of {room.inventory.folder}.")
    return restore(room, record.id)
