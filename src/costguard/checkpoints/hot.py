"""The only door through which the room touches the hot disk: few verbs, so that tests can break each of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from costguard.syncing import sync_folder

_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)

FactKind = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True, slots=True)
class FileFact:
    """What tells one file of a checkpoint from any other that may take its place.

    Args:
        path: Relative to the checkpoint, empty for the checkpoint itself.
        kind: File, folder, symbolic link, or something that is no part of a checkpoint.
        size: Bytes of a file.
        mtime_ns: When it was written, as the disk says.
        inode: Its number on the disk.
        target: Where a link points to.
    """

    path: str
    kind: FactKind
    size: int = 0
    mtime_ns: int = 0
    inode: int = 0
    target: str = ""

    def to_json(self) -> list[Any]:
        """Plain data that `from_json` reads back."""
        return [self.path, self.kind, self.size, self.mtime_ns, self.inode, self.target]

    @staticmethod
    def from_json(data: list[Any]) -> FileFact:
        """Read what `to_json` wrote."""
        return FileFact(*data)


class HotFiles:
    """The verbs on a real disk. Folders are flushed too, so that a name survives a power cut."""

    def scan(self, path: str) -> tuple[FileFact, ...]:
        """Facts of a file, or of a folder and all below it, sorted; empty if there is nothing."""
        try:
            return tuple(sorted(self._walk(path, ""), key=lambda fact: fact.path))
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def _walk(self, path: str, relative: str) -> list[FileFact]:
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            found = [FileFact(relative, "folder")]
            for name in os.listdir(path):
                found += self._walk(os.path.join(path, name), f"{relative}/{name}" if relative else name)
            return found
        if stat.S_ISLNK(status.st_mode):
            return [FileFact(relative, "link", target=os.readlink(path))]
        kind: FactKind = "file" if stat.S_ISREG(status.st_mode) else "other"
        return [FileFact(relative, kind, status.st_size, status.st_mtime_ns, status.st_ino)]

    def read(self, path: str, start: int = 0, size: int = -1) -> bytes:
        """Bytes of a file from `start` on, at most `size` of them, all if negative."""
        handle = os.open(path, os.O_RDONLY | _CLOEXEC)
        try:
            wanted = os.fstat(handle).st_size - start if size < 0 else size
            chunks: list[bytes] = []
            while wanted > 0:
                chunk = os.pread(handle, wanted, start)
                if not chunk:
                    break
                chunks.append(chunk)
                start += len(chunk)
                wanted -= len(chunk)
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            os.close(handle)

    def lend(self, path: str, reader: Callable[[str], Any]) -> Any:
        """Have a file read by what wants its path, such as a loader that maps it; what the reader returns."""
        return reader(path)

    def write(self, path: str, data: bytes) -> None:
        """Write a whole small file, its bytes flushed to the disk."""
        self._put(path, data, os.O_TRUNC)

    def append(self, path: str, data: bytes) -> None:
        """Append to a file that is made if it is not there; a symbolic link is never followed."""
        self._put(path, data, os.O_APPEND, sync=False)

    @staticmethod
    def _put(path: str, data: bytes, flags: int, *, sync: bool = True) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | _NOFOLLOW | _CLOEXEC | flags, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)

    def truncate(self, path: str, size: int) -> None:
        """Cut a file."""
        os.truncate(path, size)

    def settle(self, path: str, mtime_ns: int) -> None:
        """Set a file's time and flush it to the disk."""
        os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)
        sync_folder(path)

    def rename(self, source: str, target: str) -> None:
        """Give a file or folder another name on the same disk, in place of what has it."""
        os.replace(source, target)
        sync_folder(os.path.dirname(target))
        if os.path.dirname(source) != os.path.dirname(target):
            sync_folder(os.path.dirname(source))

    def link(self, target: str, path: str) -> None:
        """Make a symbolic link; nothing happens if something is there."""
        with contextlib.suppress(FileExistsError):
            os.symlink(target, path)

    def remove(self, path: str) -> None:
        """Remove a file or link; nothing happens if it is gone."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def remove_folder(self, path: str) -> bool:
        """Remove an empty folder; says whether it is gone."""
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it."""
        os.makedirs(path, exist_ok=True)
        sync_folder(os.path.dirname(path))

    def listing(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty if there is no such folder."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def links_to(self, path: str) -> list[str]:
        """Names of the symbolic links beside a path that point to it, sorted."""
        folder = os.path.dirname(path)
        real = os.path.realpath(path)
        names = []
        for name in self.listing(folder):
            other = os.path.join(folder, name)
            if os.path.islink(other) and os.path.realpath(other) == real:
                names.append(name)
        return names

    def real(self, path: str) -> str:
        """A path with all links followed."""
        return os.path.realpath(path)

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be written to the disk that a folder is on."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        """All bytes of the disk that a folder is on."""
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def lock(self, path: str) -> int | None:
        """Take a lock that other processes of this host respect; returns a handle, `None` if another has it."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            # Some network mounts know no locks: keys are unique to an attempt, so nothing is lost without one.
            pass
        return handle

    def unlock(self, handle: int) -> None:
        """Give a lock back."""
        with contextlib.suppress(OSError):
            # Unlocked by name: a child that was forked meanwhile holds the handle too.
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def remove_tree(files: HotFiles, path: str) -> None:
    """Remove a file, or a folder and all below it, one by one and never through a link."""
    for fact in reversed(files.scan(path)):
        below = os.path.join(path, fact.path) if fact.path else path
        if fact.kind == "folder":
            files.remove_folder(below)
        else:
            files.remove(below)
