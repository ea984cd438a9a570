"""Goes on with whatever was interrupted, and clears away what nobody needs: the same result however often."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from costguard.checkpoints.demotion import bring_back, check_cold, committed_record, let_go
from costguard.checkpoints.expiry import delete_cold, finish_expiry
from costguard.checkpoints.faults import CheckpointError, MismatchError, RefusedError
from costguard.checkpoints.gathering import drop_gathering
from costguard.checkpoints.mailbox import GATHER, close_gathering, gathering_key, look, open_ids
from costguard.checkpoints.parts import settle
from costguard.checkpoints.record import Record
from costguard.checkpoints.restore import abandon_restore, finish_restore
from costguard.checkpoints.room import Room, drop_attempt, unprotected
from costguard.checkpoints.stripping import go_on

GRACE_S: Final = timedelta(days=1).total_seconds()


@dataclass(kw_only=True, slots=True)
class Recovery:
    """What a recovery or collection did and found.

    Args:
        done: A sentence for each thing that was brought to its end.
        problems: A sentence for each that could not be; nothing is lost by it.
        interrupted: Ids whose restore can go on.
    """

    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)


def recover(room: Room) -> Recovery:
    """Bring everything that was interrupted to an end or back to its beginning.

    Args:
        room: The run's checkpoints.

    Returns:
        What was done; a store that is away is a problem that is told, and tried again the next time.
    """
    told = Recovery()
    with room.hold():
        told.problems += room.inventory.problems()
        for ghost in room.inventory.let_ghosts_go():
            told.done.append(f"{ghost.id}: {ghost.path} was deleted or overwritten by others")
        for record in room.inventory.records():
            step = _STEPS.get(record.state)
            if step is None:
                continue
            try:
                step(room, record, told)
            except CheckpointError as error:
                told.problems.append(str(error))
    return told


def _demoting(room: Room, record: Record, told: Recovery) -> None:
    """Committed: note it. Not committed: throw the attempt away, the hot copy was never touched."""
    if record.part:
        state = settle(room, record).state
        if state != "demoting":  # else its owner is still gathering
            told.done.append(f"{record.id}: what was sent of it is {'committed' if state == 'both' else 'thrown away'}")
        return
    attempt = record.attempt or ""
    drop = drop_gathering if record.nodes else drop_attempt
    found = room.read_manifest(record.id)
    if found is not None:
        manifest, sha256 = found
        try:
            check_cold(room, record, manifest)
        except MismatchError as error:
            if not record.nodes:
                discard_cold(room, record.id)
                raise
            # Whether the other nodes still have all of it is not known here: nothing of the cold copy is deleted.
            close_gathering(room, record.id, attempt)
            room.inventory.update(record, state="hot", attempt=None, problem=str(error)[:500])
            raise
        if manifest.attempt != attempt:
            drop(room, record.id, attempt)
        if record.nodes:
            close_gathering(room, record.id, attempt)
        committed_record(room, record, manifest, sha256)
        told.done.append(f"{record.id}: its cold copy is committed")
        return
    drop(room, record.id, attempt)
    room.inventory.update(record, state="hot", attempt=None)
    told.done.append(f"{record.id}: its upload was thrown away")


def discard_cold(room: Room, id: str) -> None:
    """Throw away a cold copy that is not all there, so that it is made anew; only while the hot one is.

    Args:
        room: The run's checkpoints.
        id: Which one.

    Raises:
        RefusedError: If there is no hot copy, or other nodes have parts of it.
    """
    with room.hold():
        record = room.inventory.get(id)
        if record.nodes or not room.inventory.there(record):
            raise RefusedError(f"checkpoint {id} has no whole hot copy here; what there is of its cold one stays.")
        room.inventory.update(record, state="demoting", attempt=record.attempt or "discarded")
        delete_cold(room, id)
        room.inventory.update(record, state="hot", attempt=None, cold_since_ns=None, manifest_sha256=None, level=0)


def _releasing(room: Room, record: Record, told: Recovery) -> None:
    """The cold copy is all there: go on. It is not: what was moved aside whole comes back."""
    try:
        if not room.files.scan(room.trash(record)) and room.files.scan(record.path):
            unprotected(room, record)
        check_cold(room, record, room.committed(record))
    except (MismatchError, RefusedError) as error:
        if bring_back(room, record):
            room.inventory.update(record, state="both", problem=str(error)[:500])
        raise
    let_go(room, record)
    told.done.append(f"{record.id}: its hot copy is gone")


def _restoring(room: Room, record: Record, told: Recovery) -> None:
    if finish_restore(room, record):
        told.done.append(f"{record.id}: it is restored")
    else:
        told.interrupted.append(record.id)


def _stripping(room: Room, record: Record, told: Recovery) -> None:
    told.done.append(go_on(room, record))


def _expiring(room: Room, record: Record, told: Recovery) -> None:
    finish_expiry(room, record)
    told.done.append(f"{record.id}: it is deleted")


_STEPS: Final[dict[str, Callable[[Room, Record, Recovery], None]]] = {
    "demoting": _demoting,
    "releasing": _releasing,
    "restoring": _restoring,
    "stripping": _stripping,
    "expiring": _expiring,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphans:
    """What lies in the cold store and belongs to no committed copy.

    Args:
        keys: Objects.
        bytes: Their bytes.
        uploads: Uploads that were never completed, billed and invisible to a list.
        tombstones: Ids whose deletion has stopped half way.
        unknown: Objects that are not of our making; they stay.
        foreign: Ids with a manifest that the inventory does not know.
    """

    keys: tuple[str, ...] = ()
    bytes: int = 0
    uploads: int = 0
    tombstones: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


def find_orphans(room: Room) -> Orphans:
    """Look for what nobody needs, and touch nothing.

    A node that only holds parts cannot tell what the owner of the checkpoints needs, and finds nothing.
    """
    if not room.owner:
        return Orphans()
    busy = {(r.id, r.attempt or "") for r in room.inventory.records()}
    known = {r.id for r in room.inventory.records()}
    keys: list[str] = []
    tombstones: list[str] = []
    unknown: list[str] = []
    foreign: list[str] = []
    for id, names in _by_id(room).items():
        prefix = room.prefix(id)
        live = _live_keys(room, id) if "MANIFEST.json" in names else set()
        if "TOMBSTONE.json" in names:
            tombstones.append(id)
        if "MANIFEST.json" in names and id not in known:
            foreign.append(id)
        for name in names:
            parts = name.split("/")
            if name in ("MANIFEST.json", "TOMBSTONE.json"):
                continue
            if parts[0] not in ("data", "parts") or len(parts) < 3:
                unknown.append(prefix + name)
            elif live is not None and prefix + name not in live and (id, parts[1]) not in busy:
                keys.append(prefix + name)
    gathered = {r.id for r in room.inventory.records() if r.state == "demoting"}
    keys += [gathering_key(room, id) for id in open_ids(room, look(room)) if id not in gathered]
    facts = [room.cold.head(key) for key in keys]
    uploads = [u for u in room.cold.uploads(f"{room.run}/") if not _is_busy(room, u.key, busy)]
    return Orphans(
        keys=tuple(keys),
        bytes=sum(fact.size for fact in facts if fact is not None),
        uploads=len(uploads),
        tombstones=tuple(tombstones),
        unknown=tuple(unknown),
        foreign=tuple(foreign),
    )


def collect(room: Room) -> Recovery:
    """Delete what `find_orphans` finds, and what interrupted restores have left.

    Only for the one machine that owns the run: another one's upload in progress would look like an orphan, and
    its demotion would then fail its verification and be done again.

    A node that only holds parts leaves the cold store to their owner.

    Args:
        room: The run's checkpoints.
    """
    told = recover(room)
    with room.hold():
        for record in room.inventory.records():
            if record.state == "restoring":
                abandon_restore(room, record)
                told.done.append(f"{record.id}: what its restore had brought is thrown away")
        for name in room.files.listing(room.inventory.folder):
            if name.endswith(".json.tmp"):
                room.files.remove(os.path.join(room.inventory.folder, name))
        if room.store is not None and room.owner:
            _collect_cold(room, told)
    return told


def _collect_cold(room: Room, told: Recovery) -> None:
    orphans = find_orphans(room)
    known = {r.id for r in room.inventory.records()}
    for id in orphans.tombstones:
        if id not in known:
            delete_cold(room, id)
            told.done.append(f"{id}: its deletion is finished")
    for key in orphans.keys:
        room.cold.delete(key)
    busy = {(r.id, r.attempt or "") for r in room.inventory.records()}
    for upload in room.cold.uploads(f"{room.run}/"):
        if not _is_busy(room, upload.key, busy):
            room.cold.abort(upload)
    if orphans.keys or orphans.uploads:
        told.done.append(f"{len(orphans.keys)} objects and {orphans.uploads} unfinished uploads are deleted")
    if orphans.unknown:
        count, first = len(orphans.unknown), orphans.unknown[0]
        told.problems.append(f"{room.cold.url}: {count} objects are not of our making, such as {first}; they stay.")


def rebuild(room: Room) -> list[Record]:
    """Take up every committed cold copy that the inventory does not know, as after the loss of the hot disk.

    A node that only holds parts takes up none: they are their owner's.
    """
    taken: list[Record] = []
    if not room.owner:
        return taken
    with room.hold():
        known = {r.id for r in room.inventory.records()}
        for id, names in _by_id(room).items():
            if id in known or "MANIFEST.json" not in names or "TOMBSTONE.json" in names:
                continue
            found = room.read_manifest(id)
            if found is not None:
                taken.append(room.inventory.adopt_cold(*found))
    return taken


def _live_keys(room: Room, id: str) -> set[str] | None:
    """Keys that a manifest names; `None` where it cannot be read: then everything there stays."""
    try:
        found = room.read_manifest(id)
    except CheckpointError:
        return None
    return {room.data_key(found[0], entry.place) for entry in found[0].files} if found else set()


def _is_busy(room: Room, key: str, busy: set[tuple[str, str]]) -> bool:
    parts = key[len(room.run) + 1 :].split("/")
    return len(parts) > 2 and (parts[0], parts[2]) in busy


def _by_id(room: Room) -> dict[str, list[str]]:
    """Names below each id of the run."""
    found: dict[str, list[str]] = defaultdict(list)
    start = len(room.run) + 1
    for key in room.cold.listing(f"{room.run}/"):
        id, slash, name = key[start:].partition("/")
        if slash and id != GATHER:
            found[id].append(name)
    return dict(found)
