"""A pot's store on anything that fsspec reaches: the one module of the room that knows fsspec."""

from __future__ import annotations

import contextlib
import errno
import inspect

import fsspec


class RemoteStore:
    """Objects of an object store.

    Args:
        url: The folder, such as `s3://bucket/pots/thesis`.

    Raises:
        ValueError: If fsspec knows no such protocol.
        ImportError: If the protocol's package is not installed.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        # A pot is read while others write it: a listing that was kept is a wrong one.
        self._fs, self._root = fsspec.core.url_to_fs(self._url, use_listings_cache=False)
        self._pipes = "s3" in self._fs.protocol and "mode" in inspect.signature(self._fs._pipe_file).parameters

    @property
    def url(self) -> str:
        """Where it is."""
        return self._url

    def create_exclusive(self, key: str, data: bytes) -> bool:
        """Make a whole object that must not exist yet, in one request (`If-None-Match: *` on S3).

        By `open(path, "xb")`: `pipe_file(mode="create")` asks first and writes then on most file systems. Not so in
        s3fs, where it sends the same one request for a third of the time.
        """
        path = self._path(key)
        try:
            if self._pipes:
                self._fs.pipe_file(path, data, mode="create")
            else:
                with self._fs.open(path, "xb") as file:
                    file.write(data)
        except FileExistsError:
            return False
        except ValueError as error:  # "mode must be one of ...", of releases and protocols without "xb"
            raise NotImplementedError(str(error)) from error
        except OSError as error:
            # AWS names the condition that failed and s3fs makes a FileExistsError of it; SeaweedFS and Ceph answer
            # 412 without a name (EINVAL). A 409 tells of a race with another writer (EBUSY): there may be no object.
            if error.errno in (errno.EINVAL, errno.EBUSY) and self.read(key) is not None:
                return False
            raise
        return True

    def put(self, key: str, data: bytes) -> None:
        """Make or replace an object."""
        self._fs.pipe_file(self._path(key), data)

    def read(self, key: str) -> bytes | None:
        """The whole object."""
        try:
            return bytes(self._fs.cat_file(self._path(key)))
        except FileNotFoundError:
            return None

    def list(self, folder: str) -> list[str]:
        """Names of the objects in a folder."""
        self._fs.invalidate_cache()
        try:
            listed = self._fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(path).rsplit("/", 1)[-1] for path in listed)

    def delete(self, key: str) -> None:
        """Remove an object."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(key))

    def modified_ns(self, key: str) -> int | None:
        """When it was last written by the store's own clock."""
        self._fs.invalidate_cache()
        try:
            return int(self._fs.modified(self._path(key)).timestamp() * 1e9)
        except FileNotFoundError:
            return None

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"
