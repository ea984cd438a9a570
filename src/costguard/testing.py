"""Clocks that stand still and disks that fail on purpose: for our tests and for those of our users."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from costguard.ledger.files import LocalFiles, PageMemory


class ManualClock:
    """A clock that moves only when told to.

    Args:
        now_ns: Where the measuring clock stands.
        wall_ns: Where the wall clock stands, nanoseconds since the epoch.

    Example:
        >>> clock = ManualClock(now_ns=5)
        >>> clock.advance(2)
        >>> clock.now_ns()
        2000000005
    """

    def __init__(self, now_ns: int = 0, wall_ns: int = 1_800_000_000_000_000_000) -> None:
        self._now_ns = now_ns
        self._wall_ns = wall_ns

    def now_ns(self) -> int:
        """The measuring clock."""
        return self._now_ns

    def wall_ns(self) -> int:
        """The wall clock."""
        return self._wall_ns

    def advance(self, seconds: float) -> None:
        """Move both clocks on by `seconds`."""
        self._now_ns += round(seconds * 1e9)
        self._wall_ns += round(seconds * 1e9)

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock only, as an administrator or NTP does."""
        self._wall_ns += round(seconds * 1e9)


class CrashFiles(LocalFiles):
    """The journal's file layer, ending the process at one operation.

    Args:
        at: Which operation to end at, counted from 1 over all that change the disk; 0 for never.
        how: `before` it is done, `after` it, or `torn`: a write of half its bytes.
        only_synced: Keep back what is not yet synced, as a power cut would.
        log: File descriptor to which each operation is reported before it begins, -1 for none.
    """

    def __init__(self, at: int = 0, how: str = "before", *, only_synced: bool = False, log: int = -1) -> None:
        self._at = at
        self._how = how
        self._only_synced = only_synced
        self._log = log
        self._held: dict[int, bytes] = {}
        self.operations = 0

    def make_folder(self, path: str) -> None:
        """Create a folder."""
        self._step("make_folder", path, lambda: super(CrashFiles, self).make_folder(path))

    def create(self, path: str) -> int:
        """Create a file exclusively."""
        handles: list[int] = []
        self._step("create", path, lambda: handles.append(super(CrashFiles, self).create(path)))
        return handles[0]

    def write(self, handle: int, data: bytes) -> int:
        """Append bytes, or hold them back until the next sync."""
        self._step(
            "write",
            str(len(data)),
            lambda: self._take(handle, data),
            lambda: self._take(handle, data[: len(data) // 2]),
        )
        return len(data)

    def sync(self, handle: int) -> None:
        """Flush a file to the disk."""

        def flush() -> None:
            held = self._held.pop(handle, b"")
            if held:
                os.write(handle, held)
            super(CrashFiles, self).sync(handle)

        self._step("sync", "", flush)

    def close(self, handle: int) -> None:
        """Close a handle; what was held back for a sync that never came is written, as the system would in time."""
        held = self._held.pop(handle, b"")
        if held:
            os.write(handle, held)
        super().close(handle)

    def map_page(self, path: str, size: int) -> PageMemory:
        """Create and map a page."""
        pages: list[PageMemory] = []
        self._step("map_page", path, lambda: pages.append(super(CrashFiles, self).map_page(path, size)))
        return pages[0]

    def _take(self, handle: int, data: bytes) -> None:
        if self._only_synced:
            self._held[handle] = self._held.get(handle, b"") + data
        else:
            os.write(handle, data)

    def _step(self, name: str, detail: str, do: Callable[[], None], torn: Callable[[], None] | None = None) -> None:
        self.operations += 1
        last = self.operations == self._at
        if self._log >= 0:
            os.write(self._log, f"{self.operations} {name} {detail}\n".encode())
        if last and self._how == "torn" and torn is not None:
            torn()
        elif not last or self._how == "after":
            do()
        if last:
            os._exit(9)


class FullDisk(LocalFiles):
    """A file layer whose disk takes no more bytes while `full` is set.

    Args:
        room: Bytes that it takes before it is full.
    """

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self.full = True

    def write(self, handle: int, data: bytes) -> int:
        """Append as much as there is room for; nothing at all raises ENOSPC, as the system does."""
        if not self.full:
            return super().write(handle, data)
        taken = min(self.room, len(data))
        if taken == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= taken
        return super().write(handle, data[:taken])
