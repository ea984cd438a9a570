"""What a pot needs of the place where it lies, and how each call to it is kept short."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from costguard.deadline import within
from costguard.errors import PotAwayError, PotError, config_error

_T = TypeVar("_T")
HANGING = 4
"""Calls that may hang at once before further ones are refused unasked, so that no pile of threads grows."""


class Store(Protocol):
    """A folder that many machines share; a key is a path below it, with `/`."""

    @property
    def url(self) -> str:
        """Where it is."""
        ...

    def create_exclusive(self, key: str, data: bytes) -> bool:
        """Make a whole object that must not exist yet; returns whether it was made, false if one was there.

        Raises:
            NotImplementedError: If this kind of store has no such operation.
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Make or replace an object."""
        ...

    def read(self, key: str) -> bytes | None:
        """The whole object, `None` if there is none."""
        ...

    def list(self, folder: str) -> list[str]:
        """Names of the objects in a folder, sorted; empty if there is no such folder."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; nothing happens if there is none."""
        ...

    def modified_ns(self, key: str) -> int | None:
        """When it was last written by the store's own clock, ns since the epoch; `None` if there is none."""
        ...


class Guarded:
    """A store each of whose calls ends in time, and fails in one way only.

    Args:
        store: The store.
        deadline_s: Seconds that one call may take.
    """

    def __init__(self, store: Store, deadline_s: float) -> None:
        self._store = store
        self._deadline_s = deadline_s
        self._hanging = threading.Semaphore(HANGING)

    @property
    def url(self) -> str:
        """Where it is."""
        return self._store.url

    def create_exclusive(self, key: str, data: bytes) -> bool:
        """Make an object that must not exist yet."""
        return self._call(lambda: self._store.create_exclusive(key, data))

    def put(self, key: str, data: bytes) -> None:
        """Make or replace an object."""
        self._call(lambda: self._store.put(key, data))

    def read(self, key: str) -> bytes | None:
        """The whole object."""
        return self._call(lambda: self._store.read(key))

    def list(self, folder: str) -> list[str]:
        """Names of the objects in a folder."""
        return self._call(lambda: self._store.list(folder))

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._call(lambda: self._store.delete(key))

    def modified_ns(self, key: str) -> int | None:
        """When it was last written by the store's own clock."""
        return self._call(lambda: self._store.modified_ns(key))

    def _call(self, work: Callable[[], _T]) -> _T:
        if not self._hanging.acquire(blocking=False):
            raise PotAwayError(f"the pot at {self.url} is away ({HANGING} calls have no answer yet).")

        def counted() -> _T:
            try:
                return work()
            finally:
                self._hanging.release()

        try:
            return within(self._deadline_s, counted)
        except (PotError, NotImplementedError):
            raise
        except Exception as error:  # a store may raise anything
            text = str(error).splitlines()[0] if str(error) else "no message"
            raise PotAwayError(f"the pot at {self.url} is away ({type(error).__name__}: {text[:200]}).") from error


def open_store(url: str, deadline_s: float = 10.0) -> Store:
    """Reach the folder that a URL names.

    Args:
        url: A local path, `file://`, or any URL that fsspec knows, such as `s3://bucket/pots/thesis`.
        deadline_s: Seconds that one call may take, above 0.

    Raises:
        ConfigError: If the URL cannot be used.
        PotAwayError: If there is no answer in time.
    """
    if not isinstance(url, str) or not url.strip():
        raise config_error(f"Pot(url={url!r}): expected a folder or URL such as 's3://bucket/pots/thesis'.")
    protocol, found, path = url.partition("://")
    if not found or protocol in ("file", "local"):
        from costguard.pots.local import LocalStore

        return Guarded(LocalStore(path if found else url), deadline_s)
    from costguard.pots.remote import RemoteStore

    try:
        return Guarded(within(deadline_s, lambda: RemoteStore(url)), deadline_s)
    except ImportError as error:
        extra = "; pip install 'lightning-costguard[s3]'" if protocol.startswith("s3") else ""
        raise config_error(f"Pot(url={url!r}): {error}{extra}.") from None
    except ValueError as error:
        raise config_error(f"Pot(url={url!r}): {error}; expected a folder or a URL that fsspec knows.") from None
    except Exception as error:
        raise PotAwayError(f"the pot at {url} is away ({type(error).__name__}: {error}).") from error
