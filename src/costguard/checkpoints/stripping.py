"""Keeps a checkpoint without its optimizer state: makes another of it in the cold store, and lets the full one go."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from dataclasses import replace
from typing import Final

from costguard.checkpoints.demotion import (
    check_cold,
    committed_record,
    create_manifest,
    missing_shards,
    parts_of,
    upload,
)
from costguard.checkpoints.expiry import delete_cold, finish_expiry
from costguard.checkpoints.faults import CheckpointError, MismatchError, RefusedError, StoreError
from costguard.checkpoints.hot import FileFact, remove_tree
from costguard.checkpoints.manifest import Level, Manifest
from costguard.checkpoints.record import Record
from costguard.checkpoints.restore import holds, restore
from costguard.checkpoints.room import Room, drop_attempt, new_id, unprotected
from costguard.checkpoints.weights import WholeError, check_kind, leave_optimizer_away

LEAST_SAVED_PERCENT: Final = 10
"""What gets smaller by less than this stays resumable instead: chosen."""


def stripped_id(id: str) -> str:
    """Id of the checkpoint that is made of another one: always the same, so that whoever makes it makes one only."""
    return hashlib.sha256(f"{id} without optimizer state".encode()).hexdigest()[: len(new_id())]


def strip(room: Room, id: str) -> Record:
    """Replace a checkpoint by one without optimizer state, in the cold store.

    The full one goes when the manifest of the other is there, was read again, and all that it names was looked at.

    Args:
        room: The run's checkpoints.
        id: Which one.

    Returns:
        The record of what took its place, or its own if it has no optimizer state: then it is not tried again.

    Raises:
        RefusedError: If it must stay: pinned, newest, resumed from, unfinished; or if it cannot be stripped
            (`WholeError`).
        ArchivedError: If its cold copy cannot be read at once.
        MismatchError: If the cold copy is not what was hashed, or the store does not hold what was sent.
        StoreError: If the store is away, or the disk is full; nothing is left then, and the full one stays.
    """
    with room.hold():
        full = room.inventory.get(id)
        if full.stripped:
            return full
        _check_strippable(room, full)
        slim = _known(room, stripped_id(id))
        if slim is not None:
            return _take_over(room, full, slim)
        slim = _begin(room, full)
        try:
            committed = _make(room, full, slim)
        except WholeError as error:
            undo(room, slim)
            told = str(error)[:500]
            full = room.inventory.update(full, kept_whole=told if error.lasting else "", problem="")
            if error.silent:
                return full
            raise
        except Exception as error:
            _give_up(room, full, slim, error)
            raise
        return _finish(room, slim, *committed)


def _check_strippable(room: Room, full: Record) -> None:
    unprotected(room, full)
    if full.state not in ("hot", "both", "cold", "restoring"):
        raise RefusedError(f"checkpoint {full.id} is {full.state}; recover first.")
    _ = room.cold  # there must be one


def _take_over(room: Room, full: Record, slim: Record) -> Record:
    """Both are known, as after a list was made anew from the cold store."""
    if slim.state != "cold" or full.tier != "cold" or slim.stripped_from != full.id:
        raise RefusedError(f"checkpoint {slim.id} is {slim.state} already; recover first.")
    manifest = room.committed(slim)
    slim = room.inventory.update(slim, state="stripping", attempt=room.new_id())
    return _finish(room, slim, manifest, slim.manifest_sha256 or "")


def _begin(room: Room, full: Record) -> Record:
    slim = replace(
        full,
        id=stripped_id(full.id),
        state="stripping",
        attempt=room.new_id(),
        fingerprint=(),
        cold_since_ns=None,
        manifest_sha256=None,
        level=0,
        storage_class=None,
        problem="",
        kept_whole="",
        # What the full one cost until now is its own.
        blocked_ns=0,
        reads=0,
        hot_since_ns=None,
        hot_before_ns=0,
        stripped=True,
        stripped_from=full.id,
    )
    return room.inventory.save(slim)


def _make(room: Room, full: Record, slim: Record) -> tuple[Manifest, str]:
    """Write it beside the inventory, under no checkpoint's name, and commit it as any other."""
    check_kind(full.path, full.fingerprint)
    if full.nodes or (room.inventory.there(full) and missing_shards(room, full)):
        raise WholeError(f"{full.path}: its shards lie on the disks of several nodes, so it keeps its optimizer state.")
    work = _work(room, slim)
    target = os.path.join(work, "stripped")
    try:
        room.files.make_folder(work)
        source = _source(room, full, work)
        leave_optimizer_away(room, source, target)
        if source == full.path and room.files.scan(source) != full.fingerprint:
            raise RefusedError(f"{source} was changed while it was being read; nothing was moved.")
        remove_tree(room.files, os.path.join(work, "full"))
        slim = room.inventory.update(slim, fingerprint=room.files.scan(target))
    except OSError as error:
        full_disk = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StoreError(
            "full" if full_disk else "other",
            f"{work}: cannot be written: {error.strerror}; step {full.step} keeps its optimizer state for now.",
        ) from error
    if slim.size_bytes * 100 > full.size_bytes * (100 - LEAST_SAVED_PERCENT):
        raise WholeError(f"{full.path}: nearly all of it is weights.", silent=True)
    manifest = upload(room, slim, slim.attempt or "", target)
    return create_manifest(room, slim, manifest)


def _source(room: Room, full: Record, work: str) -> str:
    """Where its right bytes are: the hot copy if it is there and what was hashed, else what the cold one gives.

    A hot file is copied: it will be mapped, and training may save over it.
    """
    whole = os.path.join(work, "full")
    if not room.inventory.there(full) or not _is_what_was_hashed(room, full):
        return restore(room, full.id, to=whole)
    if full.fingerprint[0].kind == "folder":
        return full.path
    if room.files.free_bytes(work) < full.size_bytes:
        raise OSError(errno.ENOSPC, f"no space left: {full.size_bytes} bytes are needed")
    for part in room.pace.parts(parts_of(room, full.path, 0, full.size_bytes, room.part_bytes)):
        room.files.append(whole, part)
    if room.files.scan(full.path) != full.fingerprint:
        raise RefusedError(f"{full.path} was changed while it was being read; nothing was moved.")
    room.files.settle(whole, full.fingerprint[0].mtime_ns)
    return whole


def _is_what_was_hashed(room: Room, full: Record) -> bool:
    return full.cold_since_ns is None or holds(room, room.committed(full), full.path)


def _finish(room: Room, slim: Record, manifest: Manifest, sha256: str) -> Record:
    """Let the full one go, if all of what was committed is there and nothing holds the full one.

    Raises:
        RefusedError: If the full one must stay by now, as it was pinned meanwhile, or if the other was not verified as
            far as is asked for; that is gone then.
        MismatchError: If the stripped one is not all there; the full one stays.
    """
    check_cold(room, slim, manifest)
    full = _known(room, slim.stripped_from)
    goes = full is not None and full.state != "expiring"
    if full is not None and goes:
        try:
            unprotected(room, full)
            _check_level(room, full, manifest)
        except RefusedError:
            undo(room, slim)
            raise
        full = room.inventory.update(full, state="expiring")
    remove_tree(room.files, _work(room, slim))
    files = tuple(FileFact(e.path, "file", e.size, e.mtime_ns) for e in manifest.files)
    slim = committed_record(room, slim, manifest, sha256, state="cold", fingerprint=files)
    if full is not None and goes:  # what was on its way already, recovery goes on with
        finish_expiry(room, full)
    return slim


def _check_level(room: Room, full: Record, manifest: Manifest) -> None:
    if manifest.level < room.required:
        raise RefusedError(
            f"checkpoint {full.id} stays whole: what was made of it was verified to level "
            f"{Level(manifest.level).name}, and {room.required.name} is asked for."
        )


def undo(room: Room, slim: Record) -> None:
    """Throw away what was made; the full one was never touched."""
    remove_tree(room.files, _work(room, slim))
    found = room.read_manifest(slim.id)
    # What another machine has committed of the same is its own.
    ours = found is not None and found[0].attempt == slim.attempt
    if ours or room.cold.head(room.tombstone_key(slim.id)) is not None:
        delete_cold(room, slim.id)
    else:
        drop_attempt(room, slim.id, slim.attempt or "")
    room.inventory.remove(slim.id)


def go_on(room: Room, slim: Record) -> str:
    """Bring to its end what was committed, and back to its beginning what was not.

    Args:
        room: The run's checkpoints.
        slim: The stripped one.

    Returns:
        A sentence for what was done.
    """
    found = room.read_manifest(slim.id)
    if found is None or not _is_ours(slim, *found) or room.cold.head(room.tombstone_key(slim.id)) is not None:
        undo(room, slim)
        return f"{slim.stripped_from}: it keeps its optimizer state, what was made without is thrown away"
    try:
        _finish(room, slim, *found)
    except RefusedError as error:
        return f"{slim.stripped_from}: it keeps its optimizer state: {error}"
    except MismatchError:
        full = _known(room, slim.stripped_from)
        if full is not None and full.state != "expiring":
            undo(room, slim)
        raise
    return f"{slim.stripped_from}: it is kept without its optimizer state"


def check_resumable(record: Record | None) -> None:
    """Refuse to train on from a checkpoint that has no optimizer state any more.

    Raises:
        RefusedError: If it was stripped.
    """
    if record is not None and record.stripped:
        raise RefusedError(
            f"{record.path}: its optimizer state was left away (strip_optimizer_after), so training cannot go on from "
            "it; resume from another checkpoint, or begin anew from its weights with "
            "Model.load_from_checkpoint(costguard.fetch(path)); validate, test and predict read it as it is."
        )


def _give_up(room: Room, full: Record, slim: Record, error: Exception) -> None:
    """Leave the full one as it was; what was made is deleted if the store lets us, else by the next recovery."""
    with contextlib.suppress(CheckpointError, OSError):
        remove_tree(room.files, _work(room, slim))
        found = room.read_manifest(slim.id)
        if found is None or not _is_ours(slim, *found):
            undo(room, slim)
    with contextlib.suppress(CheckpointError, OSError):
        room.inventory.update(full, problem=str(error)[:500])


def _is_ours(slim: Record, manifest: Manifest, sha256: str) -> bool:
    return sha256 == slim.manifest_sha256 or manifest.attempt == slim.attempt


def _known(room: Room, id: str | None) -> Record | None:
    return next((record for record in room.inventory.records() if record.id == id), None)


def _work(room: Room, slim: Record) -> str:
    return os.path.join(room.inventory.folder, f"strip-{slim.attempt}")
