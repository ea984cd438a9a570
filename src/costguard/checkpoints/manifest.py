"""The manifest that commits a cold copy: what it is made of, by hashes, and enough to restore it anywhere."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Literal

from costguard.checkpoints.faults import CheckpointError, RefusedError

SCHEMA = 1


class Level(IntEnum):
    """How far a cold copy has been verified."""

    NONE = 0
    SIZE = 1
    ETAG = 2
    CONTENT = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One file of a checkpoint.

    Args:
        path: Relative to the checkpoint with slashes, empty if the checkpoint is one file.
        size: Bytes.
        sha256: Hash of its content.
        part_bytes: Bytes of each part but the last.
        part_md5s: Hash of each part, so that a restore goes on where it stopped.
        mtime_ns: When it was written on the hot disk.
        node: Node that had it on its own disk, `None` where one disk had all.
    """

    path: str
    size: int
    sha256: str
    part_bytes: int
    part_md5s: tuple[str, ...]
    mtime_ns: int
    node: str | None = None

    @property
    def place(self) -> str:
        """Its place below the objects of its upload: each node writes to keys of its own."""
        return self.path if self.node is None else f"{self.node}/{self.path}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; where one disk had all it is as it was before there were nodes."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        return data if self.node is not None else {k: v for k, v in data.items() if k != "node"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a cold copy is made of.

    Args:
        id: The checkpoint's identity.
        run: The run's.
        attempt: Names the upload whose objects these are.
        name: Name of the file or folder.
        kind: `file` or `folder`.
        path: Where it was on the hot disk.
        files: All its files.
        folders: All its folders, empty ones too.
        links: Symbolic links in it, by path.
        aliases: Names beside it that were links to it.
        facts: Step, metrics and what else a rule may ask for.
        level: How far each object was verified before this was written.
        put_ns: When it was written, ns since the epoch.
        storage_class: Class of its objects, `None` where there are none.
    """

    id: str
    run: str
    attempt: str
    name: str
    kind: Literal["file", "folder"]
    path: str
    files: tuple[FileEntry, ...]
    folders: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    level: int = Level.NONE
    put_ns: int = 0
    storage_class: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that had its files on disks of their own, sorted; none where one disk had all."""
        return tuple(sorted({entry.node for entry in self.files if entry.node is not None}))

    def same_content(self, other: Manifest) -> bool:
        """Whether both describe the same bytes under the same names."""
        return {(e.path, e.sha256) for e in self.files} == {(e.path, e.sha256) for e in other.files}

    def encode(self) -> bytes:
        """As JSON."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["files"] = [entry.to_json() for entry in self.files]
        return json.dumps({"schema": SCHEMA, **data}, sort_keys=True, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> Manifest:
        """Read a manifest, trusting nothing in it.

        Raises:
            CheckpointError: If it is damaged or of a newer version.
            RefusedError: If a path in it leads out of the checkpoint.
        """
        try:
            raw = json.loads(data)
            if raw.pop("schema") != SCHEMA:
                raise CheckpointError("a manifest of a newer version: update costguard; nothing was touched.")
            entries = tuple(_entry(each) for each in raw.pop("files"))
            names = {f.name for f in fields(Manifest)}
            manifest = Manifest(files=entries, **{k: _tuple(v) for k, v in raw.items() if k in names})
            _check_kinds(manifest)
            check_paths(manifest)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"a manifest cannot be read ({type(error).__name__}); nothing was touched.") from None
        return manifest


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _entry(raw: Mapping[str, Any]) -> FileEntry:
    entry = FileEntry(**{**raw, "part_md5s": tuple(raw["part_md5s"])})
    numbers = isinstance(entry.size, int) and isinstance(entry.part_bytes, int)
    if not numbers or entry.size < 0 or entry.part_bytes < 1:
        raise ValueError("a size that is none")
    if len(entry.part_md5s) != max(1, -(-entry.size // entry.part_bytes)) or len(str(entry.sha256)) != 64:
        raise ValueError("hashes that do not fit")
    return entry


def _check_kinds(manifest: Manifest) -> None:
    texts = [manifest.id, manifest.run, manifest.attempt, manifest.name, manifest.path, manifest.storage_class or ""]
    texts += [entry.node for entry in manifest.files if entry.node is not None]
    whole = (manifest.level, manifest.put_ns, *(e.mtime_ns for e in manifest.files))
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(n, int) for n in whole):
        raise ValueError("another kind of value")
    if not isinstance(manifest.facts, dict) or not isinstance(manifest.links, dict):
        raise ValueError("another kind of value")
    if manifest.kind not in ("file", "folder"):
        raise ValueError("neither a file nor a folder")


def check_paths(manifest: Manifest) -> None:
    """Refuse whatever would be read or written outside of the checkpoint.

    Raises:
        RefusedError: If a name is a path, a path climbs, or a link leads out.
    """
    check_name(manifest.id)
    check_name(manifest.attempt)
    for name in (manifest.name, *manifest.aliases, *(e.node for e in manifest.files if e.node is not None)):
        check_name(name)
    if manifest.kind == "file":
        if [e.path for e in manifest.files] != [""] or manifest.folders or manifest.links:
            raise RefusedError("the manifest of one file names others.")
        return
    every = [*(e.path for e in manifest.files), *manifest.links, *(f for f in manifest.folders if f)]
    for path in every:
        check_relative(path)
    if len(set(every)) != len(every):
        raise RefusedError("a manifest names one path twice.")
    for path, target in manifest.links.items():
        landed = posixpath.normpath(posixpath.join(posixpath.dirname(path), str(target)))
        if str(target).startswith("/") or landed == ".." or landed.startswith("../") or "\0" in str(target):
            raise RefusedError(f"the link {path!r} of a manifest leads out of the checkpoint.")
    leaves = {*(e.path for e in manifest.files), *manifest.links}
    for path in every:
        above = posixpath.dirname(path)
        while above:
            if above in leaves:
                raise RefusedError(f"the path {path!r} of a manifest goes through a file or a link.")
            above = posixpath.dirname(above)


def check_relative(path: str) -> None:
    """Refuse a path that is not plainly below a folder.

    Raises:
        RefusedError: If it is empty, absolute, climbs, or is written in a roundabout way.
    """
    parts = path.split("/") if isinstance(path, str) else [""]
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        raise RefusedError(f"the path {path!r} of a manifest leads out of the checkpoint.")


def check_name(name: str) -> None:
    """Refuse a name that is no plain one.

    Raises:
        RefusedError: If it is a path.
    """
    check_relative(name)
    if "/" in name:
        raise RefusedError(f"the name {name!r} of a manifest is a path.")
