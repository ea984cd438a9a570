"""Demotes a sharded checkpoint whose shards lie on the disks of several nodes: the side of the one with `.metadata`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from costguard.checkpoints.demotion import (
    check_cold,
    check_demotable,
    committed_record,
    create_manifest,
    files_of,
    give_up,
    named_shards,
    upload,
)
from costguard.checkpoints.faults import CheckpointError, RefusedError, StoreError
from costguard.checkpoints.mailbox import (
    Gathering,
    Part,
    close_gathering,
    gathering_key,
    parts_prefix,
    read_gathering,
    read_part,
)
from costguard.checkpoints.manifest import FileEntry, Manifest, check_paths
from costguard.checkpoints.record import Record
from costguard.checkpoints.room import Room, clear
from costguard.errors import config_error

PATIENCE_S: Final = 600.0
"""Longest without a sign of the other nodes, unless another is given: chosen; they send while this node does."""
POLL_S: Final = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How a node waits for the others.

    Args:
        seconds: Longest without a new object of theirs, above 0; a shard is one object.
        poll_s: Seconds between two looks, above 0.
        stopped: Whether to give up at once.
        sleep: Waits so many seconds.
        now_ns: Clock of this node that never goes back.
    """

    seconds: float = PATIENCE_S
    poll_s: float = POLL_S
    stopped: Callable[[], bool] = lambda: False
    sleep: Callable[[float], object] = time.sleep
    now_ns: Callable[[], int] = time.monotonic_ns

    def __post_init__(self) -> None:
        for name in ("seconds", "poll_s"):
            if not getattr(self, name) > 0:
                raise config_error(f"Patience({name}={getattr(self, name)!r}): expected seconds above 0.")


def gather(room: Room, id: str, patience: Patience | None = None) -> Record:
    """Make one complete, verified and committed cold copy of what several nodes have; all hot copies stay.

    Every node sends what it has; this one waits, and commits only if all shards that `.metadata` names have come,
    each once. Else the upload is thrown away, and everything stays where it is, on all nodes.

    Args:
        room: The run's checkpoints, on the node that has `.metadata`.
        id: Which one.
        patience: How long the others are waited for.

    Returns:
        Its record, now in both tiers.

    Raises:
        RefusedError: If a shard did not come, came twice with different content, or is none of this checkpoint;
            if a node refuses; if files have changed since they were taken up.
        MismatchError: If the store does not hold what was sent.
        StoreError: If the store is away.
    """
    with room.hold():
        record = room.inventory.get(id)
        if record.tier != "hot":
            return record
        check_demotable(room, record)
        if not room.node:
            raise RefusedError(f"{record.path}: this list has no name among the nodes of the run, so it stays.")
        attempt = room.new_id()
        record = room.inventory.update(record, state="demoting", attempt=attempt, nodes=(room.node,), problem="")
        try:
            manifest = _gathered(room, record, attempt, patience or Patience())
            written, sha256 = create_manifest(room, record, manifest)
            # In this order: a node that finds the gathering closed looks for the manifest then.
            close_gathering(room, id, attempt)
            return committed_record(room, record, written, sha256)
        except Exception as error:
            give_up(room, record, attempt, error, drop_gathering)
            raise


def drop_gathering(room: Room, id: str, attempt: str) -> None:
    """Throw an upload of several nodes away, the question first: who finds it gone cleans up what he has sent."""
    if _asked_by(room, id) in (attempt, None):
        room.cold.delete(gathering_key(room, id))
    prefix = room.data_prefix(id, attempt)
    clear(room, f"{prefix}{room.node}/")
    # What others send at this moment is theirs to delete, and `collect`'s if they die of it.
    for begun in room.cold.uploads(prefix):
        room.cold.abort(begun)
    for key in [*room.cold.listing(prefix), *room.cold.listing(parts_prefix(room, id, attempt))]:
        room.cold.delete(key)


def _asked_by(room: Room, id: str) -> str | None:
    """The upload that is asked for, `None` if there is none or it cannot be read: no node answers that."""
    try:
        asked = read_gathering(room, id)
    except StoreError:
        raise
    except CheckpointError:
        return None
    return asked.attempt if asked is not None else None


def _gathered(room: Room, record: Record, attempt: str, patience: Patience) -> Manifest:
    """The manifest of what all nodes have sent, each object of which was looked at just now."""
    wanted = named_shards(room, record)
    missing = wanted - files_of(record)
    _ask(room, record, attempt, wanted)
    own = upload(room, record, attempt, node=room.node)
    parts = _wait(room, record, attempt, missing, patience)
    manifest = _joined(record, own, parts)
    _check_shards(record, manifest, wanted)
    check_cold(room, record, manifest)
    if room.files.scan(record.path) != record.fingerprint:
        raise RefusedError(f"{record.path} was changed while its shards were gathered; nothing was moved.")
    return manifest


def _ask(room: Room, record: Record, attempt: str, wanted: Iterable[str]) -> None:
    below = room.inventory.short(record.path)
    asked = Gathering(
        id=record.id,
        attempt=attempt,
        path=record.path,
        below=below if below != record.path else "",
        step=record.step,
        shards=tuple(sorted(wanted)),
    )
    if not room.cold.create(gathering_key(room, record.id), asked.encode()):
        there = read_gathering(room, record.id)
        if there != asked:  # else the reply to our own was lost
            raise RefusedError(f"{record.path} is being gathered by somebody else; nothing was moved.")


def _wait(room: Room, record: Record, attempt: str, missing: set[str], patience: Patience) -> list[Part]:
    """The parts of the nodes, as soon as they have all that is missing."""
    parts: dict[str, Part] = {}
    signs, since = 0, patience.now_ns()
    while True:
        for part in _new_parts(room, record, attempt, parts):
            parts[part.node] = part
            record = room.inventory.update(record, nodes=tuple(sorted({*record.nodes, part.node})))
            if part.problem:
                raise RefusedError(f"{record.path}: node {part.node} sends no shards, so it stays: {part.problem}")
        left = missing - {entry.path for part in parts.values() for entry in _entries(part)}
        if not left:
            return list(parts.values())
        seen = len(parts) + len(room.cold.listing(room.data_prefix(record.id, attempt)))
        if seen > signs:
            signs, since = seen, patience.now_ns()
        waited_s = (patience.now_ns() - since) / 1e9
        if waited_s >= patience.seconds or patience.stopped():
            raise RefusedError(
                f"{record.path}: {len(left)} shards that its .metadata names did not come from other nodes, such as "
                f"{min(left)}; the last sign of one was {waited_s:.0f} s ago, so it stays on all of them."
            )
        patience.sleep(patience.poll_s)


def _new_parts(room: Room, record: Record, attempt: str, known: dict[str, Part]) -> list[Part]:
    prefix = parts_prefix(room, record.id, attempt)
    nodes = [key[len(prefix) : -len(".json")] for key in room.cold.listing(prefix)]
    found = [read_part(room, record.id, attempt, node) for node in nodes if node not in known]
    return [part for part in found if part is not None]


def _entries(part: Part) -> Sequence[FileEntry]:
    return part.manifest.files if part.manifest is not None else ()


def _joined(record: Record, own: Manifest, parts: list[Part]) -> Manifest:
    """One manifest of all parts; of what two have alike it names one, and the other node deletes its own.

    Raises:
        RefusedError: If two nodes have different files or links under one path.
    """
    sent = [own, *sorted((p.manifest for p in parts if p.manifest is not None), key=lambda m: m.nodes)]
    files: dict[str, FileEntry] = {}
    links: dict[str, tuple[str, str]] = {}
    for each in sent:
        for entry in each.files:
            first = files.setdefault(entry.path, entry)
            if first.sha256 != entry.sha256:
                _differ(record, entry.path, first.node, entry.node)
        for path, target in each.links.items():
            there, node = links.setdefault(path, (target, each.nodes[0]))
            if there != target:
                _differ(record, path, node, each.nodes[0])
    joined = replace(
        own,
        files=tuple(files[path] for path in sorted(files)),
        links={path: target for path, (target, _) in links.items()},
        folders=tuple(sorted({folder for each in sent for folder in each.folders})),
        level=min(each.level for each in sent),
    )
    check_paths(joined)
    return joined


def _differ(record: Record, path: str, one: str | None, other: str | None) -> None:
    raise RefusedError(f"{record.path}: {path} of node {other} is another one than that of {one}, so it stays on all.")


def _check_shards(record: Record, manifest: Manifest, wanted: set[str]) -> None:
    """Refuse all but exactly the shards that `.metadata` names."""
    shards = {entry.path: entry.node for entry in manifest.files if entry.path.endswith(".distcp")}
    foreign = sorted(set(shards) - wanted)
    if foreign:
        raise RefusedError(
            f"{record.path}: {len(foreign)} shards are there that its .metadata does not name, such as {foreign[0]} "
            f"of node {shards[foreign[0]]}; remove what is left of another save, until then it stays on all nodes."
        )
    missing = sorted(wanted - set(shards))
    if missing:
        raise RefusedError(f"{record.path}: {len(missing)} shards are missing, such as {missing[0]}, so it stays.")
