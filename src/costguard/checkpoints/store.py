"""What the room needs of a cold store, and the one that is a local folder."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol

from costguard.checkpoints.faults import StoreError, store_error
from costguard.syncing import sync_folder


@dataclass(frozen=True, slots=True)
class ObjectFact:
    """What a fresh look at an object tells.

    Args:
        size: Bytes.
        etag: The store's own tag of the content, `None` where it has none.
        storage_class: Class that it is in, `None` where there are none.
        archived: Whether it must be restored from an archive before it can be read.
        thawing: Whether that has been asked for and is going on.
    """

    size: int
    etag: str | None = None
    storage_class: str | None = None
    archived: bool = False
    thawing: bool = False


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that was begun and neither completed nor aborted; the store bills its parts."""

    key: str
    id: str


class Store(Protocol):
    """The verbs of a cold store. Keys are relative to it, with slashes; each call tells the truth of now."""

    @property
    def url(self) -> str:
        """Where it is, without credentials."""
        ...

    def put(self, key: str, parts: Iterable[bytes], size: int, part_md5s: Sequence[str] = ()) -> None:
        """Write an object from parts, the last of which may be shorter.

        Args:
            key: Where to.
            parts: Its bytes.
            size: How many they are.
            part_md5s: Grows with each part that is drawn by its MD5, so that the store can check what arrives.

        Raises:
            StoreError: If it was not taken in full.
        """
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write a small object unless there is one; says whether it was written by this very call."""
        ...

    def head(self, key: str) -> ObjectFact | None:
        """Look at an object, `None` if there is none."""
        ...

    def read(self, key: str, start: int, end: int) -> bytes:
        """Bytes from `start` up to but not including `end`.

        Raises:
            ArchivedError: If it is in an archive.
            StoreError: If it cannot be read.
        """
        ...

    def listing(self, prefix: str) -> list[str]:
        """All keys that begin with a prefix, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; nothing happens if it is gone."""
        ...

    def uploads(self, prefix: str) -> list[Upload]:
        """Uploads below a prefix that were never completed."""
        ...

    def abort(self, upload: Upload) -> None:
        """Throw away an upload's parts."""
        ...

    def thaw(self, key: str, days: int, speed: str) -> None:
        """Ask for an archived object to be readable for some days."""
        ...


def _begun(path: str) -> BinaryIO:
    """Begin a file; another process may remove the folder, empty as it is, before there is a file in it."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return open(path, "xb")
    raise FileNotFoundError(errno.ENOENT, "its folder is removed again and again", path)


_TRIES: Final = 100
_UPLOAD = re.compile(r".*\.upload-[0-9a-f]{16}", re.DOTALL)
"""A file that has not got its name yet; a key that looks like one is not taken."""


class LocalStore:
    """A folder, on another disk as a rule, as a cold store.

    Args:
        root: The folder; it is made at the first write.
    """

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.url = f"file://{self.root}"

    def put(self, key: str, parts: Iterable[bytes], size: int, part_md5s: Sequence[str] = ()) -> None:
        """Write beside the place, flush, then give it its name."""
        path = self._new_path(key)
        with self._told(f"write {key}"):
            begun = f"{path}.upload-{secrets.token_hex(8)}"
            try:
                written = self._write(begun, parts)
            except Exception:
                with contextlib.suppress(OSError):
                    os.remove(begun)
                raise
            if written != size:
                os.remove(begun)
                raise StoreError("other", f"{self.url}: cannot write {key}: {written} bytes came instead of {size}.")
            os.replace(begun, path)
            self._sync_above(path)

    def create(self, key: str, data: bytes) -> bool:
        """Write beside the place, flush, then link it there: a name is linked once only."""
        path = self._new_path(key)
        with self._told(f"write {key}"):
            begun = f"{path}.upload-{secrets.token_hex(8)}"
            self._write(begun, [data])
            try:
                os.link(begun, path)
            except FileExistsError:
                return False
            except (PermissionError, NotImplementedError):
                return self._create_unlinked(path, data)
            finally:
                os.remove(begun)
            self._sync_above(path)
        return True

    def _create_unlinked(self, path: str, data: bytes) -> bool:
        # Some mounts know no hard links. A torn file cannot be read, and then everything stays where it is.
        try:
            self._write(path, [data])
        except FileExistsError:
            return False
        return True

    def head(self, key: str) -> ObjectFact | None:
        """Look at a file."""
        with self._told(f"look at {key}"):
            try:
                return ObjectFact(os.stat(self._path(key)).st_size)
            except (FileNotFoundError, NotADirectoryError):
                self._present()
                return None

    def read(self, key: str, start: int, end: int) -> bytes:
        """Read a part of a file."""
        with self._told(f"read {key}"), open(self._path(key), "rb") as file:
            file.seek(start)
            return file.read(end - start)

    def listing(self, prefix: str) -> list[str]:
        """All finished files below a prefix."""
        return [key for key in self._all(prefix) if not _UPLOAD.fullmatch(key)]

    def delete(self, key: str) -> None:
        """Remove a file, and the folders that it leaves empty."""
        path = self._path(key)
        with self._told(f"delete {key}"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
            folder = os.path.dirname(path)
            while folder != self.root and folder.startswith(self.root):
                try:
                    os.rmdir(folder)
                except OSError:
                    break
                folder = os.path.dirname(folder)

    def uploads(self, prefix: str) -> list[Upload]:
        """Files that were begun and never got their name."""
        return [Upload(key, key) for key in self._all(prefix) if _UPLOAD.fullmatch(key)]

    def abort(self, upload: Upload) -> None:
        """Remove what was begun."""
        self.delete(upload.id)

    def thaw(self, key: str, days: int, speed: str) -> None:
        """Nothing is archived in a folder."""

    def _all(self, prefix: str) -> list[str]:
        found: list[str] = []
        folder = os.path.join(self.root, os.path.dirname(prefix))
        with self._told(f"list {prefix}"):
            self._present()
            for where, _, names in os.walk(folder):
                base = os.path.relpath(where, self.root).replace(os.sep, "/")
                found += [name if base == "." else f"{base}/{name}" for name in names]
        return sorted(key for key in found if key.startswith(prefix))

    def _present(self) -> None:
        # Only what has a folder above it was ever written: a disk that is not mounted does not read as empty.
        if not os.path.isdir(self.root) and not os.path.isdir(os.path.dirname(self.root)):
            raise StoreError("no_bucket", f"{self.url}: there is no such folder; its copies are not known to be gone.")

    def _path(self, key: str) -> str:
        path = os.path.normpath(os.path.join(self.root, key))
        if not path.startswith(self.root + os.sep):
            raise StoreError("other", f"{self.url}: the key {key!r} leads out of the store.")
        return path

    def _new_path(self, key: str) -> str:
        if _UPLOAD.fullmatch(key):
            raise StoreError("other", f"{self.url}: the key {key!r} looks like an unfinished upload; rename the file.")
        return self._path(key)

    @staticmethod
    def _write(path: str, parts: Iterable[bytes]) -> int:
        written = 0
        with _begun(path) as file:
            for part in parts:
                written += file.write(part)
            file.flush()
            os.fsync(file.fileno())
        return written

    def _sync_above(self, path: str) -> None:
        """Flush the names of a file and of the folders that may have been made for it."""
        while len(path) > len(self.root):
            path = os.path.dirname(path)
            sync_folder(path)

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise store_error(self.url, what, error) from error
