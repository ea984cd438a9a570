"""Shows how far a long transfer is: a bar where somebody looks at a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from costguard.checkpoints.room import Room
from costguard.units import format_bytes, format_duration_s

LINE_S: Final = 10.0


@contextlib.contextmanager
def progress(room: Room, what: str, total: int) -> Iterator[None]:
    """Show on stderr how many bytes a room moves meanwhile.

    Args:
        room: The checkpoints; its pace tells of each part.
        what: What is being done, such as `restore step 5`.
        total: Bytes that it takes at most; what takes none is not shown.
    """
    if not total:
        yield
        return
    shown: _Shown = _bar(what, total) or _Lines(what, total)
    room.pace.observer = shown.moved
    try:
        yield
        shown.done()
    finally:
        room.pace.observer = None
        shown.close()


class _Shown(Protocol):
    def moved(self, size: int) -> None: ...
    def done(self) -> None: ...
    def close(self) -> None: ...


class _Lines:
    """One line at the start, one at the end, and at most one in ten seconds between.

    Args:
        what: What is being done.
        total: Bytes that it takes.
        now_s: Clock that never goes back.
    """

    def __init__(self, what: str, total: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._what, self._total, self._now_s = what, total, now_s
        self._moved, self._begin_s = 0, now_s()
        self._told_s = self._begin_s
        self._say(format_bytes(total))

    def moved(self, size: int) -> None:
        self._moved += size
        now_s = self._now_s()
        if now_s - self._told_s >= LINE_S:
            self._told_s = now_s
            share = min(100, 100 * self._moved // self._total)
            self._say(f"{format_bytes(self._moved)} of {format_bytes(self._total)} ({share}%)")

    def done(self) -> None:
        self._say(f"done, {format_bytes(self._moved)} in {format_duration_s(self._now_s() - self._begin_s)}")

    def close(self) -> None:
        """There is nothing to close."""

    def _say(self, said: str) -> None:
        print(f"{self._what}: {said}", file=sys.stderr, flush=True)


def _bar(what: str, total: int) -> _Shown | None:
    """A bar of tqdm, which is there wherever Lightning is; `None` where nobody would see it."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread beside

        def moved(self, size: int) -> None:
            self.update(size)

        def done(self) -> None:
            """Closing is all that is left."""

    Bar.set_lock(threading.RLock())  # its own is for bars of many processes
    size = os.get_terminal_size(sys.stderr.fileno())
    # Some terminals do not tell how large they are; a bar of no width would not be seen.
    shape = {"ncols": size.columns or 80, "nrows": size.lines or 24}
    bar: _Shown = Bar(total=total, desc=what, unit="B", unit_scale=True, file=sys.stderr, **shape)
    return bar
