"""Makes the names in a folder outlive a power cut."""

from __future__ import annotations

import contextlib
import os

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)


def sync_folder(path: str) -> None:
    """Flush which names a folder holds; nothing happens where that cannot be done.

    Args:
        path: The folder; empty for the working directory.
    """
    # Some network file systems refuse to sync a folder; the file itself is still there.
    with contextlib.suppress(OSError):
        handle = os.open(path or ".", _FLAGS)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
