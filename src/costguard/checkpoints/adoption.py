"""Takes up checkpoints that are on the hot disk and in no list, so that rules and moves know of them too."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from costguard.checkpoints.faults import RefusedError
from costguard.checkpoints.hot import FileFact
from costguard.checkpoints.record import Record, check_kinds
from costguard.checkpoints.room import Room
from costguard.checkpoints.store import LocalStore

_STEP = re.compile(r"step=(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    """What became of a path that was to be taken up.

    Args:
        record: Its record.
        known: Whether it was in the list before.
        step_from: Where its optimizer step is from: `list`, `option`, `name`, or `nothing`, which makes it 0.
    """

    record: Record
    known: bool
    step_from: str


def take_up(room: Room, path: str, step: int | None = None) -> Adoption:
    """Put a checkpoint that is on the hot disk into the list.

    It belongs to no run, so that no rule measures a training by it, and takes the place among the others that its time
    gives it: what was saved long ago does not become the newest.

    Args:
        room: The checkpoints.
        path: The file, or the folder of a sharded one; of a link, what it points to.
        step: Its optimizer step; the `step=N` of its name if `None`. It is not opened: that would run its pickles.

    Raises:
        RefusedError: If it is no checkpoint, unfinished, or part of what is in the list or in the cold store.
    """
    path = room.files.real(path)
    facts = room.files.scan(path)
    check_kinds(path, facts)
    _check_apart(room, path)
    _check_finished(path, facts)
    known = room.inventory.find(path)
    if known is not None and room.inventory.there(known):
        return Adoption(record=known, known=True, step_from="list")
    named = _STEP.search(os.path.basename(path))
    step_from = "option" if step is not None else "name" if named else "nothing"
    saved_ns = max(fact.mtime_ns for fact in facts)
    record = room.inventory.adopt(
        path,
        room.new_id(),
        step=step if step is not None else int(named[1]) if named else 0,
        saved_ns=saved_ns,
        order=max((r.order for r in room.inventory.records() if r.saved_ns <= saved_ns), default=0),
    )
    return Adoption(record=record, known=False, step_from=step_from)


def _check_apart(room: Room, path: str) -> None:
    """Refuse our own files, and what holds or is part of another checkpoint: letting one go would take both."""
    own = [room.files.real(room.inventory.folder)]
    if isinstance(room.store, LocalStore):
        own.append(room.files.real(room.store.root))
    listed = [r.path for r in room.inventory.records() if r.tier != "cold" and r.path != path]
    for other in (*own, *listed):
        if f"{path}{os.sep}".startswith(f"{other}{os.sep}"):
            what = "what costguard keeps for itself" if other in own else f"the checkpoint {other}"
            raise RefusedError(f"{path} is part of {what}; nothing was taken up.")
        if other.startswith(f"{path}{os.sep}"):
            raise RefusedError(f"{path} holds {other}; name what lies in it, one by one.")
    if any(part.startswith(".costguard-") for part in path.split(os.sep)):
        raise RefusedError(f"{path} is on its way in or out; `costguard ckpt recover` brings that to an end.")


def _check_finished(path: str, facts: tuple[FileFact, ...]) -> None:
    """A sharded checkpoint is finished by its `.metadata`, which is written last."""
    names = {os.path.basename(fact.path) for fact in facts}
    if any(name.endswith(".distcp") for name in names) and ".metadata" not in names:
        raise RefusedError(f"{path} has shards and no .metadata: its save has not ended; nothing was taken up.")
