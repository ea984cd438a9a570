"""The few verbs that decisions need of a store, so that a run's mirror can be decided on from anywhere."""

from __future__ import annotations

import itertools
import os
from typing import Any

import fsspec

from costguard.ledger.files import Files, LocalFiles, PageMemory


class StoreFiles:
    """`Files` on a store that fsspec knows; a file is written when it is closed, and only if it is not there yet.

    Args:
        url: Any URL of the store.

    Raises:
        ValueError: If fsspec knows no such protocol.
        ImportError: If the protocol's package is not installed.
    """

    def __init__(self, url: str) -> None:
        self._fs: Any = fsspec.core.url_to_fs(url)[0]
        self._open: dict[int, tuple[str, bytearray]] = {}
        self._numbers = itertools.count(1)

    def make_folder(self, path: str) -> None:
        """Create a folder, where the store has such."""
        self._fs.makedirs(path, exist_ok=True)

    def create(self, path: str) -> int:
        """Begin a file that must not exist yet."""
        if self._fs.exists(path):
            raise FileExistsError(path)
        handle = next(self._numbers)
        self._open[handle] = (path, bytearray())
        return handle

    def write(self, handle: int, data: bytes) -> int:
        """Add bytes."""
        self._open[handle][1].extend(data)
        return len(data)

    def sync(self, handle: int) -> None:
        """Nothing is on the store before the file is closed."""

    def close(self, handle: int) -> None:
        """Write the file."""
        path, data = self._open.pop(handle)
        try:
            with self._fs.open(path, "xb") as file:
                file.write(bytes(data))
        except FileExistsError:
            raise
        except OSError as error:
            # Some stores (SeaweedFS) answer with another error than "it exists".
            if self._fs.exists(path):
                raise FileExistsError(path) from error
            raise

    def map_page(self, path: str, size: int) -> PageMemory:
        """Stores have no memory."""
        raise OSError(f"{path}: a store cannot be mapped")

    def read(self, path: str, start: int = 0) -> bytes:
        """All bytes of a file from `start` on."""
        data: bytes = self._fs.cat_file(path)
        return data[start:]

    def listing(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty if there is no such folder."""
        self._fs.invalidate_cache()
        try:
            listed = self._fs.ls(path, detail=False)
        except FileNotFoundError:
            return []
        return sorted(os.path.basename(key.rstrip("/")) for key in listed)


def files_of(place: str) -> Files:
    """The file layer of a folder or URL."""
    return StoreFiles(place) if "://" in place else LocalFiles()
