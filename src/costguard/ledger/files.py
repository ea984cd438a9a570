"""The only door through which the journal touches a disk: few verbs, so that tests can break each of them."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Protocol

from costguard.ledger.mounts import is_network
from costguard.syncing import sync_folder

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)


class PageMemory(Protocol):
    """A page that is written in slices, each of which survives the death of the process."""

    def __setitem__(self, where: slice, data: bytes, /) -> None: ...


class Files(Protocol):
    """What the journal needs from a file system."""

    def make_folder(self, path: str) -> None:
        """Create a folder and those above it; nothing happens if it is there."""
        ...

    def create(self, path: str) -> int:
        """Create a file that must not exist yet and open it for appending; returns a handle."""
        ...

    def write(self, handle: int, data: bytes) -> int:
        """Append bytes; returns how many were taken."""
        ...

    def sync(self, handle: int) -> None:
        """Return only when what was written is on the disk."""
        ...

    def close(self, handle: int) -> None:
        """Close a handle."""
        ...

    def map_page(self, path: str, size: int) -> PageMemory:
        """Create a file of `size` zero bytes, its blocks reserved, and map it shared."""
        ...

    def read(self, path: str, start: int = 0) -> bytes:
        """All bytes of a file from `start` on."""
        ...

    def listing(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty if there is no such folder."""
        ...


class WrittenPage:
    """A page on a network mount; a write that fails is left out, the next one may succeed.

    Args:
        handle: File descriptor, owned by the page from now on.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __setitem__(self, where: slice, data: bytes) -> None:
        """Write a slice."""
        with contextlib.suppress(OSError):
            os.pwrite(self._handle, data, where.start or 0)

    def __del__(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            os.close(self._handle)


class LocalFiles:
    """`Files` on a local or mounted file system."""

    def make_folder(self, path: str) -> None:
        """Create a folder and those above it."""
        os.makedirs(path, exist_ok=True)

    def create(self, path: str) -> int:
        """Create a file exclusively and make its name durable."""
        handle = os.open(path, _CREATE, 0o644)
        sync_folder(os.path.dirname(path))
        return handle

    def write(self, handle: int, data: bytes) -> int:
        """Append bytes in one call of the system."""
        return os.write(handle, data)

    def sync(self, handle: int) -> None:
        """Flush a file to the disk."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close a handle."""
        os.close(handle)

    def map_page(self, path: str, size: int) -> PageMemory:
        """Create and map a page; blocks are reserved first, since a full disk would kill the writer by a signal.

        On a network mount the page is written by calls of the system: mapped memory there ends the process by a
        signal when the server is away.
        """
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o644)
        try:
            os.write(handle, bytes(size))
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, size)
            if is_network(os.path.abspath(path)):
                return WrittenPage(os.dup(handle))
            return memoryview(mmap.mmap(handle, size, mmap.MAP_SHARED))
        finally:
            os.close(handle)

    def read(self, path: str, start: int = 0) -> bytes:
        """All bytes of a file from `start` on."""
        with open(path, "rb") as file:
            file.seek(start)
            return file.read()

    def listing(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []
