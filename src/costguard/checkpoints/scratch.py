"""Temporary folders and prefixes with a time to live: registered by whoever makes them, swept when it is over."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from costguard.checkpoints.faults import CheckpointError, RefusedError
from costguard.checkpoints.hot import HotFiles, remove_tree
from costguard.checkpoints.store import Store
from costguard.errors import config_error

MARK = ".costguard-scratch"
"""Name of the file that says whose a place is; a place without it is not swept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scratch:
    """One temporary place.

    Args:
        id: Its identity, also in the mark that lies in it.
        place: The folder, or the URL of a prefix.
        ttl_ns: Nanoseconds that it lives after it was last written to, as far as that can be seen.
        made_ns: When it was registered, ns since the epoch.
        note: What it is for.
        verified: Whether what was made from it has been checked, so that it may go at once.
    """

    id: str
    place: str
    ttl_ns: int
    made_ns: int
    note: str = ""
    verified: bool = False

    @property
    def remote(self) -> bool:
        """Whether it is a prefix of a store."""
        return "://" in self.place


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """A place whose time is over.

    Args:
        scratch: The place.
        size_bytes: Its bytes, `None` if they were not counted.
        reason: Why it goes, or why it stays.
        sweepable: Whether it may go.
    """

    scratch: Scratch
    size_bytes: int | None
    reason: str
    sweepable: bool


class ScratchRegistry:
    """The list of temporary places.

    Args:
        folder: Folder of its own.
        files: Door to the disk.
        open_store: Opens the store of a URL; `costguard.checkpoints.remote.open_store` as a rule.
        now_ns: Wall clock, ns since the epoch.
    """

    def __init__(
        self,
        folder: str,
        *,
        files: HotFiles | None = None,
        open_store: Callable[[str], Store] | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._folder = os.path.abspath(folder)
        self._files = files or HotFiles()
        self._open_store = open_store
        self._now_ns = now_ns

    def register(self, place: str, ttl_s: float, note: str = "") -> Scratch:
        """Register a place; a folder is made if it is not there, and must be empty otherwise or marked already.

        Args:
            place: A folder, or the URL of a prefix.
            ttl_s: Seconds that it lives after it was last written to, > 0.
            note: What it is for.

        Raises:
            ConfigError: If the time is none.
            RefusedError: If there is something that was not put there as scratch.
        """
        if not ttl_s > 0:
            raise config_error(f"register(ttl_s={ttl_s!r}): expected seconds above 0.")
        place = place.rstrip("/") if "://" in place else self._files.real(place)
        for known in self.entries():
            if known.place == place:
                return self._save(replace(known, ttl_ns=round(ttl_s * 1e9), made_ns=self._now_ns(), verified=False))
        made = Scratch(
            id=secrets.token_hex(8), place=place, ttl_ns=round(ttl_s * 1e9), made_ns=self._now_ns(), note=note
        )
        # Listed before it is marked: a mark without an entry would be forgotten for ever.
        self._save(made)
        try:
            self._mark(made)
        except CheckpointError:
            self._files.remove(self._path(made.id))
            raise
        return made

    def verified(self, place: str) -> Scratch:
        """Say that what was made from a place has been checked, so that it may go at the next sweep.

        Raises:
            CheckpointError: If the place is not registered.
        """
        wanted = place.rstrip("/") if "://" in place else self._files.real(place)
        for known in self.entries():
            if known.place == wanted:
                return self._save(replace(known, verified=True))
        raise CheckpointError(f"{place} is not registered as scratch; nothing of it will be deleted.")

    def entries(self) -> list[Scratch]:
        """All registered places, by name."""
        found: list[Scratch] = []
        for name in self._files.listing(self._folder):
            if name.endswith(".json"):
                try:
                    raw = json.loads(self._files.read(os.path.join(self._folder, name)))
                    found.append(Scratch(**{f.name: raw[f.name] for f in fields(Scratch)}))
                except (ValueError, KeyError, TypeError):
                    continue  # unknown means keep
        return sorted(found, key=lambda each: each.place)

    def due(self) -> list[Due]:
        """The places whose time is over, and touch nothing."""
        return [each for entry in self.entries() if (each := self._look(entry)) is not None]

    def sweep(self) -> list[Due]:
        """Delete the places whose time is over.

        Returns:
            What went, and what should have and could not.
        """
        told: list[Due] = []
        for each in self.due():
            if each.sweepable:
                try:
                    self._delete(each.scratch)
                except (CheckpointError, OSError) as error:
                    told.append(replace(each, sweepable=False, reason=str(error)))
                    continue
                self._files.remove(self._path(each.scratch.id))
            told.append(each)
        return told

    def _look(self, entry: Scratch) -> Due | None:
        try:
            size, newest_ns, marked = self._remote_facts(entry) if entry.remote else self._local_facts(entry)
        except (CheckpointError, OSError) as error:
            return Due(scratch=entry, size_bytes=None, reason=str(error), sweepable=False)
        age_ns = self._now_ns() - max(entry.made_ns, newest_ns)
        if not entry.verified and age_ns < entry.ttl_ns:
            return None
        if not marked:
            reason = f"{entry.place} has no mark of ours any more; it stays"
            return Due(scratch=entry, size_bytes=size, reason=reason, sweepable=False)
        reason = "it was verified" if entry.verified else "its time is over"
        return Due(scratch=entry, size_bytes=size, reason=reason, sweepable=True)

    def _local_facts(self, entry: Scratch) -> tuple[int, int, bool]:
        facts = self._files.scan(entry.place)
        trash = self._files.scan(self._trash(entry))
        size = sum(fact.size for fact in facts)
        newest = max((fact.mtime_ns for fact in facts if fact.path != MARK), default=0)
        # One that was moved aside has shown its mark before.
        return size, newest, bool(trash) or not facts or self._read_mark(entry) == entry.id

    def _read_mark(self, entry: Scratch) -> str:
        try:
            return self._files.read(os.path.join(entry.place, MARK)).decode()
        except (OSError, ValueError):
            return ""

    def _remote_facts(self, entry: Scratch) -> tuple[int, int, bool]:
        store = self._store(entry)
        facts = [store.head(key) for key in store.listing("")]
        mark = store.head(MARK)
        marked = mark is not None and store.read(MARK, 0, mark.size).decode() == entry.id
        return sum(fact.size for fact in facts if fact), 0, marked or not facts

    def _mark(self, entry: Scratch) -> None:
        if entry.remote:
            store = self._store(entry)
            if store.listing("") or not store.create(MARK, entry.id.encode()):
                raise RefusedError(f"{entry.place} is not empty; only a prefix of its own can be scratch.")
            return
        if self._files.listing(entry.place):
            raise RefusedError(f"{entry.place} is not empty; only a folder of its own can be scratch.")
        self._files.make_folder(entry.place)
        self._files.write(os.path.join(entry.place, MARK), entry.id.encode())

    def _delete(self, entry: Scratch) -> None:
        if entry.remote:
            store = self._store(entry)
            # The mark goes last, so that a sweep that was interrupted goes on.
            for key in [key for key in store.listing("") if key != MARK] + [MARK]:
                store.delete(key)
            left = store.listing("")
            if left:
                raise CheckpointError(f"{entry.place}: {len(left)} objects are still there after their deletion.")
            return
        trash = self._trash(entry)
        if self._read_mark(entry) == entry.id:
            self._files.rename(entry.place, trash)
        remove_tree(self._files, trash)

    def _trash(self, entry: Scratch) -> str:
        return os.path.join(os.path.dirname(entry.place), f".costguard-trash-{entry.id}")

    def _store(self, entry: Scratch) -> Store:
        if self._open_store is None:
            from costguard.checkpoints.remote import open_store

            self._open_store = open_store
        return self._open_store(entry.place)

    def _path(self, id: str) -> str:
        return os.path.join(self._folder, f"{id}.json")

    def _save(self, entry: Scratch) -> Scratch:
        self._files.make_folder(self._folder)
        data: dict[str, Any] = {f.name: getattr(entry, f.name) for f in fields(entry)}
        self._files.write(self._path(entry.id) + ".tmp", json.dumps({"schema": 1, **data}).encode())
        self._files.rename(self._path(entry.id) + ".tmp", self._path(entry.id))
        return entry
