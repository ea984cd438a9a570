"""Writes a checkpoint again without its optimizer state; the one module of the room that knows torch, imported late."""

from __future__ import annotations

import dataclasses
import enum
import io
import os
import pathlib
import pickle
import re
from collections.abc import Mapping
from typing import IO, Any, Final, cast

from costguard.checkpoints.demotion import parts_of
from costguard.checkpoints.faults import RefusedError
from costguard.checkpoints.hot import FileFact
from costguard.checkpoints.room import Room

STATES: Final = "optimizer_states"
"""Where a Lightning file has them."""
_META: Final = "meta.pt"
"""What Lightning writes into a sharded checkpoint beside the weights and the optimizers."""
_OF_OPTIMIZER: Final = re.compile(r"optimizer_\d+(\.|$)")
"""Keys of a sharded checkpoint that Lightning gives to optimizers."""
_ZIP: Final = b"PK\x03\x04"


class WholeError(RefusedError):
    """A checkpoint keeps its optimizer state.

    Args:
        message: One sentence.
        lasting: Whether that is so of the checkpoint, or only of this process.
        silent: Whether there is nothing that a user could want to know.
    """

    def __init__(self, message: str, *, lasting: bool = True, silent: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting
        self.silent = silent


def check_kind(path: str, fingerprint: tuple[FileFact, ...]) -> None:
    """Refuse by its names alone what cannot be stripped.

    Raises:
        WholeError: If it is a folder that `torch.distributed.checkpoint` has not written.
    """
    names = {fact.path for fact in fingerprint if fact.kind == "file"}
    if names != {""} and not {".metadata", _META} <= names:
        raise WholeError(
            f"{path}: a folder without a .metadata and a {_META}, as DeepSpeed writes it; only files and folders of "
            "torch.distributed.checkpoint can be stripped, so it keeps its optimizer state."
        )


def leave_optimizer_away(room: Room, source: str, target: str) -> None:
    """Write a checkpoint to another place without its optimizer state; all else is in it, bit for bit.

    A file is mapped, not read: what is written passes through one part of memory. Nobody else may change it meanwhile,
    as reading on in a mapped file that was cut ends the process. Of a sharded folder ranges of bytes are copied.

    Args:
        room: For its door to the disk, its pace and the size of its parts.
        source: The file or folder; its bytes are known to be right.
        target: Where to; nothing is there.

    Raises:
        WholeError: If it has no optimizer state, is not Lightning's, or holds types that may not be loaded.
        OSError: If it cannot be written; what is there of it is to be removed.
    """
    facts = room.files.scan(source)
    if facts[0].kind == "folder":
        _strip_folder(room, source, target, facts)
    else:
        _strip_file(room, source, target, facts[0])


# -- one file --------------------------------------------------------------------------------------------------------


def _strip_file(room: Room, source: str, target: str, fact: FileFact) -> None:
    if room.files.read(source, 0, len(_ZIP)) != _ZIP:
        raise WholeError(f"{source}: not a file of torch.save.", silent=True)
    loaded = _load(room, source)
    if not isinstance(loaded, dict) or "state_dict" not in loaded or not loaded.get(STATES):
        raise WholeError(f"{source}: no checkpoint of Lightning with optimizer state.", silent=True)
    import torch

    parts = _Parts(room, target)
    rest = {key: value for key, value in loaded.items() if key != STATES}
    torch.save(rest, cast("IO[bytes]", parts))
    parts.settle(fact.mtime_ns)


def _load(room: Room, source: str) -> Any:
    import torch

    def mapped(path: str) -> Any:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)

    try:
        return room.files.lend(source, mapped)
    except (OSError, MemoryError):
        raise
    except pickle.UnpicklingError as error:
        types = room.files.lend(source, _unsafe) or str(error).splitlines()[0]
        raise WholeError(
            f"its optimizer state stays: it is loaded with weights_only=True alone, which refuses {types}; keep that "
            "out of hyperparameters and callbacks, or allow it with torch.serialization.add_safe_globals.",
            lasting=False,
        ) from None
    except Exception as error:  # whatever a file that only looks like one makes of it
        raise WholeError(f"{source}: torch cannot load it ({type(error).__name__}).", silent=True) from error


def _unsafe(path: str) -> str:
    """The types that are in the way; empty where torch is too old to tell."""
    import torch

    tell = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    return "" if tell is None else ", ".join(sorted(tell(path)))


class _Parts(io.RawIOBase):
    """Takes what torch writes and appends it to a file part by part.

    Torch's writer is not made for a `write` that raises: what failed is remembered, and raised at the end.
    """

    def __init__(self, room: Room, path: str) -> None:
        self._room = room
        self._path = path
        self._held = bytearray()
        self._failure: BaseException | None = None

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any) -> int:
        """Take some more."""
        view = memoryview(data).cast("B")
        size = len(view)
        while len(view) and self._failure is None:
            taken = self._room.part_bytes - len(self._held)
            self._held += view[:taken]
            view = view[taken:]
            if len(self._held) == self._room.part_bytes:
                self._put()
        return size

    def _put(self) -> None:
        try:
            self._room.pace.take(len(self._held))
            self._room.files.append(self._path, bytes(self._held))
        except BaseException as error:
            self._failure = error
        self._held.clear()

    def settle(self, mtime_ns: int) -> None:
        """Write what is left and flush it.

        Raises:
            OSError: If any of it could not be written.
        """
        if self._failure is None and self._held:
            self._put()
        if self._failure is not None:
            raise self._failure
        self._room.files.settle(self._path, mtime_ns)


# -- a sharded folder ------------------------------------------------------------------------------------------------


def _strip_folder(room: Room, source: str, target: str, facts: tuple[FileFact, ...]) -> None:
    """Copy from each shard the ranges that are no optimizer's, and say in a new `.metadata` where they are now."""
    files = {fact.path: fact for fact in facts if fact.kind == "file"}
    metadata = _read_metadata(source, room.files.read(os.path.join(source, ".metadata")))
    _check_places(source, metadata, files)
    kept = {index: info for index, info in metadata.storage_data.items() if not _OF_OPTIMIZER.match(index.fqn)}
    if len(kept) == len(metadata.storage_data):
        raise WholeError(f"{source}: no optimizer state in it.", silent=True)
    for fact in facts:
        if fact.kind == "folder":
            room.files.make_folder(os.path.join(target, fact.path))
        elif fact.kind == "link":
            room.files.link(fact.target, os.path.join(target, fact.path))
    shards = {info.relative_path for info in metadata.storage_data.values()}
    for path in sorted(files.keys() - shards - {".metadata"}):
        _copy(room, source, target, files[path], [(0, files[path].size)])
    for path in sorted({info.relative_path for info in kept.values()}):
        inside = sorted((info.offset, info.length) for info in kept.values() if info.relative_path == path)
        _copy(room, source, target, files[path], inside)
    room.files.write(os.path.join(target, ".metadata"), pickle.dumps(_moved(metadata, kept)))
    room.files.settle(os.path.join(target, ".metadata"), files[".metadata"].mtime_ns)


def _copy(room: Room, source: str, target: str, fact: FileFact, ranges: list[tuple[int, int]]) -> None:
    path = os.path.join(target, fact.path)
    for start, length in ranges:
        parts = parts_of(room, os.path.join(source, fact.path), start, start + length, room.part_bytes)
        for part in room.pace.parts(parts):
            room.files.append(path, part)
    room.files.settle(path, fact.mtime_ns)


def _moved(metadata: Any, kept: Mapping[Any, Any]) -> Any:
    """The metadata of what is kept, where it lies now: one after the other in its old order."""
    ends: dict[str, int] = {}
    places: dict[Any, Any] = {}
    for index, info in sorted(kept.items(), key=lambda each: (each[1].relative_path, each[1].offset, each[1].length)):
        places[index] = dataclasses.replace(info, offset=ends.get(info.relative_path, 0))
        ends[info.relative_path] = ends.get(info.relative_path, 0) + info.length
    planned = metadata.planner_data
    return dataclasses.replace(
        metadata,
        state_dict_metadata=_without_optimizer(metadata.state_dict_metadata),
        planner_data=_without_optimizer(planned) if isinstance(planned, dict) else planned,
        storage_data={index: places[index] for index in kept},
    )


def _without_optimizer(named: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in named.items() if not _OF_OPTIMIZER.match(key)}


def _check_places(source: str, metadata: Any, files: Mapping[str, FileFact]) -> None:
    for info in metadata.storage_data.values():
        shard = files.get(info.relative_path)
        if shard is None or info.offset < 0 or info.length < 0 or info.offset + info.length > shard.size:
            raise WholeError(f"{source}: its .metadata names bytes of {info.relative_path!r} that are not there.")


def _read_metadata(source: str, data: bytes) -> Any:
    """Load a `.metadata` and nothing but the types that make one: it is a pickle."""
    try:
        metadata = _Metadata(io.BytesIO(data)).load()
        if type(metadata).__name__ == "Metadata" and isinstance(metadata.storage_data, dict):
            return metadata
        problem = "it says nothing of where its tensors lie"
    except Exception as error:  # a pickle may ask for anything
        problem = str(error) or type(error).__name__
    raise WholeError(f"{source} keeps its optimizer state: its .metadata cannot be read: {problem}.")


class _Metadata(pickle.Unpickler):
    """Knows the plain data types of `torch.distributed.checkpoint`, and runs no code of a file's own choice."""

    _ROOMS = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")

    def find_class(self, module: str, name: str) -> Any:
        """The type of that name, if it is one of plain data.

        Raises:
            pickle.UnpicklingError: If it is not.
        """
        import torch

        if (module, name) in (("torch.serialization", "_get_layout"), ("collections", "OrderedDict")):
            return super().find_class(module, name)
        if module in (*self._ROOMS, "torch", "pathlib", "pathlib._local") and "." not in name:
            found = super().find_class(module, name)
            plain = isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, enum.Enum))
            if module in self._ROOMS and plain:
                return found
            if isinstance(found, torch.dtype) or found is torch.Size:
                return found
            if isinstance(found, type) and issubclass(found, pathlib.PurePath):
                return found
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
