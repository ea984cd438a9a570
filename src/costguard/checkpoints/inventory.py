"""Our own list of a run's checkpoints: one small file each, replaced whole, and nothing outside it is ever touched."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from costguard.checkpoints.faults import CheckpointError
from costguard.checkpoints.hot import FileFact, HotFiles
from costguard.checkpoints.manifest import Manifest
from costguard.checkpoints.record import FACTS, Record, check_kinds
from costguard.keep import History

EVENTS = "events"
"""What happened to runs rather than to checkpoints; not `.json`, which the records are."""


class Inventory:
    """The records of one run.

    Args:
        folder: Folder of their own.
        files: Door to the hot disk.
    """

    def __init__(self, folder: str, files: HotFiles) -> None:
        self.folder = folder
        self._files = files
        self._real_base: str | None = None
        # Training takes up what it saves while a thread beside it moves what was saved before.
        self._guard = threading.RLock()

    def records(self) -> list[Record]:
        """All readable records, from the oldest to the newest."""
        return self._load()[0]

    def problems(self) -> list[str]:
        """A sentence for each record that cannot be read; what it is about is left alone."""
        return self._load()[1]

    def history(self) -> History:
        """All that a rule may know.

        Raises:
            CheckpointError: If what happened to the runs cannot be read; a rule may have kept something for it.
        """
        anomalies: dict[str, list[int]] = {}
        failed: set[str] = set()
        for event in self._events():
            if "anomaly_step" in event:
                anomalies.setdefault(event["run"], []).append(event["anomaly_step"])
            else:
                (failed.add if event["failed"] else failed.discard)(event["run"])
        checkpoints = [record.as_checkpoint() for record in self.records()]
        return History(checkpoints=checkpoints, anomaly_steps=anomalies, failed=failed)

    def note_anomaly(self, run: str, step: int) -> None:
        """Remember that a detector saw a run go wrong at an optimizer step."""
        self._note({"run": run, "anomaly_step": step})

    def note_failed(self, run: str, failed: bool) -> None:
        """Remember whether a run ended in failure."""
        if (run in self.history().failed) != failed:
            self._note({"run": run, "failed": failed})

    def _note(self, event: Mapping[str, Any]) -> None:
        with self._guard:
            lines = [json.dumps(each) for each in (*self._events(), event)]
            self._files.make_folder(self.folder)
            path = os.path.join(self.folder, EVENTS)
            self._files.write(path + ".tmp", "\n".join(lines).encode())
            self._files.rename(path + ".tmp", path)

    def _events(self) -> list[dict[str, Any]]:
        path = os.path.join(self.folder, EVENTS)
        try:
            return [dict(json.loads(line)) for line in self._files.read(path).splitlines()]
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}); nothing moves until it is mended or removed."
            ) from None

    def get(self, id: str) -> Record:
        """One record.

        Raises:
            CheckpointError: If there is none.
        """
        for record in self.records():
            if record.id == id:
                return record
        raise CheckpointError(f"no checkpoint {id!r} in {self.folder}; `costguard ckpt ls` names those there are.")

    def find(self, path: str) -> Record | None:
        """The newest checkpoint that was at a path, by its name or an alias, `None` if there is none any more."""
        folder, name = os.path.split(os.path.abspath(path))
        folder = self._files.real(folder)
        places = (os.path.join(folder, name), self._files.real(path))
        records = [r for r in self.records() if r.state not in ("expiring", "stripping")]
        named = [r for r in records if r.path in places]
        linked = [r for r in records if os.path.dirname(r.path) == folder and name in r.aliases]
        found = named or linked
        return found[-1] if found else None

    def save(self, record: Record) -> Record:
        """Write a record in place of the one before it; whole or not at all."""
        path = self._path(record.id)
        kept = replace(record, path=self.short(record.path))
        self._files.write(path + ".tmp", kept.encode())
        self._files.rename(path + ".tmp", path)
        return record

    def short(self, path: str) -> str:
        """A path as it is written down: relative to the folder beside which all is kept, if it is below that."""
        return os.path.relpath(path, self._base) if path.startswith(self._base + os.sep) else path

    def rename(self, record: Record, id: str, **changes: Any) -> Record:
        """Give a part the id of the checkpoint that it is of; a death in between leaves it under both."""
        with self._guard:
            if record.id == id:
                return self.update(record, **changes)
            before = self.get(record.id)
            if before.pinned:
                self._files.write(self._pin(id), b"")
            named = self.save(replace(before, id=id, **changes))
            self.remove(record.id)
            return named

    def update(self, record: Record, **changes: Any) -> Record:
        """Change some fields of a record as it is now: what others have changed meanwhile stays."""
        with self._guard:
            return self.save(replace(self.get(record.id), **changes))

    def remove(self, id: str) -> None:
        """Forget a checkpoint that is gone."""
        self._files.remove(self._pin(id))
        self._files.remove(self._path(id))

    def adopt(self, path: str, id: str, **facts: Any) -> Record:
        """Take up a checkpoint that was saved.

        The same files are taken up once. Other files at the place of an earlier checkpoint are another one, and
        the earlier one lives on in its cold copy, if it has one.

        Args:
            path: The file or folder; of a link, what it points to.
            id: Identity for it if it is new.
            facts: Fields of `Record`.

        Returns:
            Its record.

        Raises:
            RefusedError: If there is nothing, or something that is no checkpoint.
        """
        with self._guard:
            return self._adopt(self._files.real(path), id, facts)

    def _adopt(self, path: str, id: str, facts: dict[str, Any]) -> Record:
        fingerprint = self._files.scan(path)
        check_kinds(path, fingerprint)
        aliases = tuple(self._files.links_to(path))
        self._files.make_folder(self.folder)
        records = self.records()
        for earlier in (r for r in records if r.path == path and r.state in ("hot", "both", "demoting")):
            if earlier.fingerprint == fingerprint:
                return self.update(earlier, aliases=aliases, **facts)
            self._gone(earlier)
        if facts.pop("pinned", False):
            self._files.write(self._pin(id), b"")
        facts.setdefault("order", max((r.order for r in records), default=0) + 1)
        return self.save(Record(id=id, path=path, fingerprint=fingerprint, aliases=aliases, **facts))

    def _gone(self, earlier: Record) -> None:
        """Its hot files are gone: it lives on in its cold copy, or not at all."""
        # As it is now: another process may have made its cold copy since it was read.
        state = next((record.state for record in self.records() if record.id == earlier.id), None)
        if state == "both":
            self.update(earlier, state="cold")
        elif state == "hot":
            self.remove(earlier.id)

    def there(self, record: Record) -> bool:
        """Whether the hot files are those that were taken up."""
        return record.tier != "cold" and self._files.scan(record.path) == record.fingerprint

    def let_ghosts_go(self) -> list[Record]:
        """Note which hot files were deleted or overwritten by others; where a whole folder is away nothing is noted."""
        with self._guard:
            ghosts = self.ghosts()
            for record in ghosts:
                self._gone(record)
            return ghosts

    def ghosts(self) -> list[Record]:
        """Whose hot files were deleted or overwritten by others; nothing is noted, see `let_ghosts_go`."""
        return [
            record
            for record in self.records()
            if record.state in ("hot", "both")
            and self._files.listing(os.path.dirname(record.path))
            and not self.there(record)
        ]

    def pin(self, id: str, pinned: bool = True) -> Record:
        """Pin a checkpoint, hot or cold, or take the pin away.

        A pin is a file of its own, so that it holds from now on whatever another process writes into the record.
        """
        record = self.get(id)
        if pinned:
            self._files.write(self._pin(id), b"")
        else:
            self._files.remove(self._pin(id))
        return replace(record, pinned=pinned)

    def adopt_cold(self, manifest: Manifest, manifest_sha256: str) -> Record:
        """Take up a checkpoint of which only the cold copy is known.

        It comes back beside the inventory, whatever path its manifest names: whoever can write to the store shall
        not choose where on this disk something is written.
        """
        self._files.make_folder(self.folder)
        known = {f.name for f in fields(Record)}
        facts = {k: v for k, v in manifest.facts.items() if k in FACTS and k in known}
        facts.setdefault("order", 0)
        if facts.pop("pinned", False):
            self._files.write(self._pin(manifest.id), b"")
        files = tuple(FileFact(e.path, "file", e.size, e.mtime_ns) for e in manifest.files)
        return self.save(
            Record(
                id=manifest.id,
                path=self._place(manifest),
                origin=manifest.path,
                state="cold",
                fingerprint=files,
                aliases=manifest.aliases,
                cold_since_ns=manifest.put_ns,
                manifest_sha256=manifest_sha256,
                level=manifest.level,
                storage_class=manifest.storage_class,
                **facts,
            )
        )

    def newest_complete(self) -> Record | None:
        """The newest checkpoint whose save has ended and whose hot files are there, `None` if there is none."""
        whole = (r for r in reversed(self.records()) if r.complete and not r.part)
        return next((r for r in whole if self.there(r)), None)

    def _load(self) -> tuple[list[Record], list[str]]:
        records: list[Record] = []
        problems: list[str] = []
        names = self._files.listing(self.folder)
        pins = {name[: -len(".pin")] for name in names if name.endswith(".pin")}
        for name in names:
            if not name.endswith(".json"):
                continue
            path = os.path.join(self.folder, name)
            try:
                record = Record.decode(self._files.read(path))
                if record.id != name[: -len(".json")]:
                    raise CheckpointError("it is under another one's name")
                whole = os.path.join(self._base, record.path)
                records.append(replace(record, path=whole, pinned=record.id in pins))
            except CheckpointError as error:
                problems.append(f"{path}: {error}; its checkpoint is left alone.")
            except FileNotFoundError:
                continue
        return sorted(records, key=lambda r: (r.order, r.saved_ns, r.id)), problems

    @property
    def _base(self) -> str:
        """The folder beside which all is kept; paths below it are kept relative, so that it can be moved."""
        if self._real_base is None:
            self._real_base = os.path.dirname(self._files.real(self.folder))
        return self._real_base

    def _place(self, manifest: Manifest) -> str:
        below = self._files.real(manifest.path).startswith(self._base + os.sep)
        inside = self._files.real(manifest.path).startswith(self._files.real(self.folder) + os.sep)
        return manifest.path if below and not inside else os.path.join(self._base, manifest.name)

    def _pin(self, id: str) -> str:
        return os.path.join(self.folder, f"{id}.pin")

    def _path(self, id: str) -> str:
        return os.path.join(self.folder, f"{id}.json")
