"""What every move of a checkpoint needs, and where things lie in the cold store."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from costguard.checkpoints.digest import PART_BYTES
from costguard.checkpoints.faults import BusyError, CheckpointError, MismatchError, RefusedError
from costguard.checkpoints.hot import HotFiles
from costguard.checkpoints.inventory import Inventory
from costguard.checkpoints.manifest import Level, Manifest, check_relative
from costguard.checkpoints.pace import Pace
from costguard.checkpoints.record import Record
from costguard.checkpoints.store import Store
from costguard.errors import config_error
from costguard.keep import History
from costguard.policies.retention import Retention
from costguard.prices.storage import StorageClass


def new_id() -> str:
    """A name that nothing else has."""
    return secrets.token_hex(8)


@dataclass(kw_only=True, slots=True)
class Room:
    """A run's checkpoints, its two tiers, and how to move between them.

    Args:
        inventory: The run's own list.
        files: Door to the hot disk.
        store: The cold store, `None` if there is none.
        run: Name of the run, the first part of every key.
        required: How far a cold copy is verified before the hot one goes, at least `SIZE`.
        part_bytes: Bytes of one part.
        pace: Bandwidth.
        storage_class: Prices of the cold class, `None` if unknown.
        keep_newest: Whether the newest complete checkpoint never leaves the hot disk; off for an archive.
        node: Name of this disk among those of the run.
        gather: How a checkpoint is demoted of which shards are on other nodes; such a one stays if `None`.
        owner: Whether this list is the run's own; off on a node that only holds parts of another one's checkpoints.
        new_id: Makes names of attempts.
        now_ns: Wall clock, ns since the epoch.
    """

    inventory: Inventory
    files: HotFiles
    store: Store | None
    run: str
    required: Level = Level.ETAG
    part_bytes: int = PART_BYTES
    pace: Pace = field(default_factory=Pace)
    storage_class: StorageClass | None = None
    keep_newest: bool = True
    node: str = ""
    owner: bool = True
    gather: Callable[[Room, str], Record] | None = None
    new_id: Callable[[], str] = new_id
    now_ns: Callable[[], int] = time.time_ns
    _guard: threading.RLock = field(default_factory=threading.RLock)
    _depth: int = 0

    def __post_init__(self) -> None:
        check_relative(self.run)
        if self.required < Level.SIZE:
            raise config_error(f"Room(required={self.required!r}): expected SIZE, ETAG or CONTENT.")

    @property
    def cold(self) -> Store:
        """The cold store.

        Raises:
            RefusedError: If there is none.
        """
        if self.store is None:
            raise RefusedError("there is no cold store; name one, such as s3://bucket/run.")
        return self.store

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Be the only one on this host that moves this run's checkpoints.

        Raises:
            BusyError: If another process is.
        """
        with self._guard:
            handle = None
            if self._depth == 0:
                self.files.make_folder(self.inventory.folder)
                handle = self.files.lock(os.path.join(self.inventory.folder, "lock"))
                if handle is None:
                    raise BusyError(f"another process moves checkpoints of {self.inventory.folder}; wait for it.")
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if handle is not None:
                    self.files.unlock(handle)

    def on_disk(self, retention: Retention, history: History) -> Retention:
        """What is wanted, on the hot disk as full as it is."""
        if retention.min_free is None:
            return retention
        root = os.path.dirname(self.inventory.folder)
        return retention.on_disk(history, self.files.free_bytes(root), self.files.total_bytes(root))

    # -- where things lie ------------------------------------------------------------------------------------------

    def prefix(self, id: str) -> str:
        """Of everything of one checkpoint."""
        return f"{self.run}/{id}/"

    def manifest_key(self, id: str) -> str:
        """Of what commits a cold copy."""
        return f"{self.run}/{id}/MANIFEST.json"

    def tombstone_key(self, id: str) -> str:
        """Of what says that a cold copy is being deleted and must not be restored."""
        return f"{self.run}/{id}/TOMBSTONE.json"

    def data_prefix(self, id: str, attempt: str) -> str:
        """Of the objects of one upload."""
        return f"{self.run}/{id}/data/{attempt}/"

    def data_key(self, manifest: Manifest, place: str) -> str:
        """Of one file, by its `FileEntry.place`."""
        return self.data_prefix(manifest.id, manifest.attempt) + (place or manifest.name)

    def trash(self, record: Record) -> str:
        """Where a hot copy waits to be deleted: on the same disk, so that getting there is one rename."""
        return os.path.join(os.path.dirname(record.path), ".costguard-trash", record.id)

    # -- manifests -------------------------------------------------------------------------------------------------

    def read_manifest(self, id: str) -> tuple[Manifest, str] | None:
        """The manifest of a cold copy and its hash by a fresh look, `None` if there is none.

        Raises:
            CheckpointError: If it is damaged, newer, or another one's.
        """
        key = self.manifest_key(id)
        fact = self.cold.head(key)
        if fact is None:
            return None
        data = self.cold.read(key, 0, fact.size)
        manifest = Manifest.decode(data)
        if manifest.id != id:
            raise MismatchError(f"the manifest under {id} is that of {manifest.id}; nothing was touched.")
        return manifest, hashlib.sha256(data).hexdigest()

    def committed(self, record: Record) -> Manifest:
        """The manifest that a record says was written.

        Raises:
            MismatchError: If it is gone or another one.
        """
        found = self.read_manifest(record.id)
        if found is None:
            raise MismatchError(f"{record.id}: the manifest of its cold copy is gone.")
        manifest, sha256 = found
        if record.manifest_sha256 not in (None, sha256):
            raise MismatchError(f"{record.id}: the manifest of its cold copy is not the one that was written.")
        return manifest


def unprotected(room: Room, record: Record) -> None:
    """Refuse to let go of what must stay, whatever was decided.

    Raises:
        RefusedError: If it must.
    """
    newest = room.inventory.newest_complete() if room.keep_newest else None
    for holds, why in (
        (record.pinned, "it is pinned"),
        (record.resumed_from, "this run was resumed from it"),
        (not record.complete, "its save is not known to have ended"),
        (newest is not None and newest.id == record.id, "it is the newest complete checkpoint"),
    ):
        if holds:
            raise RefusedError(f"checkpoint {record.id} (step {record.step}) stays: {why}.")


def drop_attempt(room: Room, id: str, attempt: str) -> None:
    """Delete what one upload has left, its unfinished uploads first."""
    clear(room, room.data_prefix(id, attempt))


def clear(room: Room, prefix: str) -> None:
    """Delete all objects below a prefix, unfinished uploads first.

    Raises:
        CheckpointError: If one is still there afterwards.
    """
    for upload in room.cold.uploads(prefix):
        room.cold.abort(upload)
    for key in room.cold.listing(prefix):
        room.cold.delete(key)
    left = room.cold.listing(prefix)
    if left:
        raise CheckpointError(f"{room.cold.url}: {len(left)} objects of {prefix} are still there after their deletion.")
