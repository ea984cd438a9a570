"""A pot's store in a folder of this machine, or one that machines share over a mount."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets

from costguard.syncing import sync_folder

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL, errno.EACCES}
_HIDDEN = "."


class LocalStore:
    """Objects as files.

    An object is written under a hidden name, flushed, and given its own name by a hard link: that fails where the
    name is taken, as `open(path, "xb")` does, but a reader never sees half an object, also not that of a writer that
    was killed. Where there are no hard links it is `open(path, "xb")`.

    Args:
        root: The folder; made with the first object.

    Source:
        link(2) and open(2) of Linux: both are exclusive on NFS too, the link in all versions, O_EXCL from NFSv3 on.
    """

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(os.path.expanduser(root))

    @property
    def url(self) -> str:
        """Where it is."""
        return self._root

    def create_exclusive(self, key: str, data: bytes) -> bool:
        """Make a whole object that must not exist yet."""
        path = self._path(key)
        hidden = self._write_hidden(path, data)
        try:
            os.link(hidden, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._create_without_links(path, data)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(hidden)
        sync_folder(os.path.dirname(path))
        return True

    def put(self, key: str, data: bytes) -> None:
        """Make or replace an object."""
        path = self._path(key)
        os.replace(self._write_hidden(path, data), path)

    def read(self, key: str) -> bytes | None:
        """The whole object."""
        try:
            with open(self._path(key), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, folder: str) -> list[str]:
        """Names of the objects in a folder."""
        try:
            return sorted(name for name in os.listdir(self._path(folder)) if not name.startswith(_HIDDEN))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, key: str) -> None:
        """Remove an object."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(key))

    def modified_ns(self, key: str) -> int | None:
        """When it was last written by the file system's clock."""
        try:
            return os.stat(self._path(key)).st_mtime_ns
        except FileNotFoundError:
            return None

    def _path(self, key: str) -> str:
        return os.path.join(self._root, *key.split("/"))

    @staticmethod
    def _write_hidden(path: str, data: bytes) -> str:
        folder, name = os.path.split(path)
        os.makedirs(folder, exist_ok=True)
        hidden = os.path.join(folder, f"{_HIDDEN}{name}.{secrets.token_hex(8)}")
        with open(hidden, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return hidden

    @staticmethod
    def _create_without_links(path: str, data: bytes) -> bool:
        try:
            with open(path, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            return False
        return True
