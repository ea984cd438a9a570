"""The journal file that one rank writes during one attempt."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from typing import Any

from costguard.errors import warn
from costguard.ledger.files import Files
from costguard.ledger.lines import encode

KEPT_LINES = 10_000
"""Lines kept in memory while the disk takes none; beyond it the oldest that are not the first are dropped."""


class Segment:
    """Appends lines; a disk that takes none costs a warning, never an exception, and lines are tried again.

    Args:
        files: The file layer.
        path: File to create; it must not exist.

    Raises:
        FileExistsError: If another process has this attempt and rank already.
        OSError: If it cannot be created at all.
    """

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._files = files
        # A signal handler may save a checkpoint, and so append a line, in the middle of an append of its own thread:
        # the lock lets it in, and its line waits for the append that it interrupted.
        self._lock = threading.RLock()
        self._busy = False
        self._numbers = itertools.count()
        self._waiting: list[bytes] = []
        self._torn = False
        self._ended = False
        self._warned = False
        self._dropped = 0
        self._handle: int | None = files.create(path)

    def append(self, kind: str, *, sync: bool = False, last: bool = False, **fields: Any) -> None:
        """Write one line, and what still waits before it.

        Args:
            kind: What the line tells.
            sync: Return only when it is on the disk.
            last: Ignore all lines that come after it, also those of other threads.
            fields: Plain data.
        """
        with self._lock:
            if self._handle is None or self._ended:
                return
            self._ended = last
            self._waiting.append(encode(next(self._numbers), kind, fields))
            if self._busy:
                return
            if len(self._waiting) > KEPT_LINES:
                del self._waiting[1]
                self._dropped += 1
            try:
                self._drain(self._handle)
                if sync:
                    self._files.sync(self._handle)
            except OSError as error:
                self._lost(error)

    def close(self) -> None:
        """Flush to the disk and close; more lines are ignored."""
        with self._lock:
            if self._handle is None:
                return
            handle, self._handle = self._handle, None
            try:
                self._drain(handle)
                self._files.sync(handle)
            except OSError as error:
                self._lost(error)
            try:
                self._files.close(handle)
            except OSError as error:
                self._lost(error)
            lost = len(self._waiting) + self._dropped
            if lost:
                warn(f"{lost} lines of the journal {self.path} could not be written and are lost.")

    def _drain(self, handle: int) -> None:
        self._busy = True
        try:
            while self._waiting:
                # After a write that was cut short the next line starts afresh, so that only one line is lost.
                data = b"\n" + self._waiting[0] if self._torn else self._waiting[0]
                if self._files.write(handle, data) < len(data):
                    self._torn = True
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._torn = False
                del self._waiting[0]
        finally:
            self._busy = False

    def _lost(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warn(
                f"cannot write the journal {self.path} ({error.strerror or error}): training goes on and metering "
                "continues in memory, but what is not written when the process ends is lost; free space there."
            )
