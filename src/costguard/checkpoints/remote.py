"""Opens a cold store by its URL; the only module here that knows fsspec."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import fsspec

from costguard.checkpoints.digest import PART_BYTES
from costguard.checkpoints.faults import StoreError, scrub_url, secrets_in, store_error
from costguard.checkpoints.s3 import S3Store
from costguard.checkpoints.store import LocalStore, ObjectFact, Store, Upload
from costguard.deadline import within
from costguard.errors import config_error

DEADLINE_S: Final = 300.0
_S3 = ("s3", "s3a")


def open_store(
    url: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    storage_class: str | None = None,
    deadline_s: float = DEADLINE_S,
    attempts: int = 6,
    allow_plain_http: bool = False,
) -> Store:
    """Open a cold store.

    Args:
        url: A folder, `file://`, `s3://bucket/prefix`, or whatever else fsspec can write to.
        storage_options: Given to fsspec, encryption included.
        storage_class: Class of large objects on S3, such as `GLACIER_IR`.
        deadline_s: Seconds after which one attempt of one call is given up.
        attempts: Attempts of each call.
        allow_plain_http: Whether a host that is not this machine may be spoken to without TLS.

    Raises:
        ConfigError: If the URL cannot be used, its package is missing, or it is without TLS.
    """
    protocol, separator, rest = url.partition("://")
    if not separator or protocol in ("file", "local"):
        return LocalStore(rest if separator else url)
    options = dict(storage_options or {})
    if protocol in _S3:
        options["config_kwargs"] = _client_config(options.get("config_kwargs", {}))
    shown = scrub_url(url).rstrip("/")
    secrets = [*secrets_in(options), *secrets_in(fsspec.config.conf.get(protocol, {})), *_secrets_around(url)]
    fs, root = _file_system(url, shown, protocol, options)
    if not allow_plain_http:
        _check_tls(shown, _endpoint(fs, options))
    if protocol in _S3:
        # Retries multiply: s3fs around botocore around ours would take minutes to say that a store is away.
        fs.retries = 1
        bucket, _, prefix = root.partition("/")
        return S3Store(
            fs,
            bucket,
            prefix,
            url=shown,
            storage_class=storage_class,
            deadline_s=deadline_s,
            attempts=attempts,
            secrets=secrets,
        )
    return FsspecStore(fs, root, url=shown, deadline_s=deadline_s, secrets=secrets)


def _client_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """The S3 client's configuration: ours, then the user's own, then what was given here.

    Everything that is written goes with its MD5, which is among what is signed: further checksums of the same bytes
    would only take time, and some servers refuse them.
    """
    configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
    own = {"retries": {"total_max_attempts": 1}, "request_checksum_calculation": "when_required"}
    s3 = {"payload_signing_enabled": False, **configured.get("s3", {}), **given.get("s3", {})}
    return {**own, **configured, **given, "s3": s3}


def _file_system(url: str, shown: str, protocol: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """A file system of our own: the user's has a cache that listings come from."""
    private = {"skip_instance_cache": True, "use_listings_cache": False}
    try:
        kind = fsspec.get_filesystem_class(protocol)
        # What a URL itself says, a user and password among it, as fsspec would have it.
        fs = kind(**{**kind._get_kwargs_from_urls(url), **options, **private})
        return fs, str(kind._strip_protocol(url)).strip("/") if protocol in _S3 else str(kind._strip_protocol(url))
    except ImportError as error:
        extra = (
            "pip install 'lightning-costguard[s3]'" if protocol in _S3 else f"install fsspec's package for {protocol}"
        )
        raise config_error(f"open_store({shown!r}): {error}; {extra}.") from None
    except ValueError as error:
        raise config_error(
            f"open_store({shown!r}): {error}; expected a folder or a URL such as s3://bucket/run."
        ) from None


def _secrets_around(url: str) -> Iterator[str]:
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        yield from (unquote(part) for part in (parts.username, parts.password) if part)
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"):
        if os.environ.get(name):
            yield os.environ[name]


def _endpoint(fs: Any, options: Mapping[str, Any]) -> str:
    """Whom a file system speaks to, empty if it is the provider's own address."""
    client = getattr(fs, "client_kwargs", None) or options.get("client_kwargs") or {}
    named = getattr(fs, "endpoint_url", None) or client.get("endpoint_url") or options.get("endpoint_url")
    if not named and type(fs).__name__ == "S3FileSystem":
        named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not named and getattr(fs, "use_ssl", True) is False:
        return "http://the provider"
    return str(named or "")


def _check_tls(shown: str, endpoint: str) -> None:
    host = urlsplit(endpoint).hostname or ""
    if endpoint.startswith("http://") and host not in ("localhost", "::1") and not host.startswith("127."):
        raise config_error(
            f"open_store({shown!r}): the endpoint {scrub_url(endpoint)} is without TLS; expected https://, or "
            "allow_plain_http=True if the network between is trusted."
        )


class FsspecStore:
    """Any other store that fsspec can write to, by its plain verbs.

    Args:
        fs: The file system: not shared with anybody.
        root: Put before each key.
        url: Where it is, without credentials.
        deadline_s: Seconds after which a call is given up.
        secrets: Texts that must not appear in errors.
    """

    def __init__(
        self, fs: Any, root: str, *, url: str, deadline_s: float = DEADLINE_S, secrets: Iterable[str] = ()
    ) -> None:
        self._fs = fs
        self._root = root.rstrip("/")
        self.url = url
        self._deadline_s = deadline_s
        self._secrets = tuple(secrets)

    def put(self, key: str, parts: Iterable[bytes], size: int, part_md5s: Sequence[str] = ()) -> None:
        """Write through a file that is thrown away on errors: closing it would commit what it has."""
        path, what = self._path(key), f"write {key}"
        self._do(what, lambda: self._fs.makedirs(self._fs._parent(path), exist_ok=True))
        file = self._do(what, lambda: self._fs.open(path, "wb", block_size=PART_BYTES))
        try:
            for part in parts:
                self._do(what, lambda part=part: file.write(part))  # type: ignore[misc]
        except Exception:
            with contextlib.suppress(Exception):
                file.discard()
            # An open file commits itself when it is collected.
            with contextlib.suppress(Exception):
                file.closed = True
            # Some have put it there from the start; nobody else writes to this key.
            with contextlib.suppress(Exception):
                within(self._deadline_s, lambda: self._fs.rm_file(path))
            raise
        self._do(what, file.close)

    def create(self, key: str, data: bytes) -> bool:
        """Write a small object unless there is one."""
        path, what = self._path(key), f"write {key}"
        self._do(what, lambda: self._fs.makedirs(self._fs._parent(path), exist_ok=True))
        try:
            self._do(what, lambda: self._fs.pipe_file(path, data, mode="create"))
        except StoreError as error:
            if isinstance(error.__cause__, FileExistsError):
                return False
            raise
        return True

    def head(self, key: str) -> ObjectFact | None:
        """Ask for an object's size."""
        try:
            self._fs.invalidate_cache()
            found = self._do(f"look at {key}", lambda: self._fs.info(self._path(key)))
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        return ObjectFact(int(found["size"])) if found.get("type") == "file" else None

    def read(self, key: str, start: int, end: int) -> bytes:
        """Read a part."""
        if end <= start:
            return b""
        data: bytes = self._do(f"read {key}", lambda: self._fs.cat_file(self._path(key), start=start, end=end))
        return data

    def listing(self, prefix: str) -> list[str]:
        """All keys below a prefix."""
        folder = self._path(prefix).rpartition("/")[0]
        self._fs.invalidate_cache()
        found = self._do(f"list {prefix}", lambda: self._fs.find(folder))
        keys = [key[len(self._root) + 1 :] for key in found if key.startswith(self._root + "/")]
        return sorted(key for key in keys if key.startswith(prefix))

    def delete(self, key: str) -> None:
        """Delete one object."""
        try:
            self._do(f"delete {key}", lambda: self._fs.rm_file(self._path(key)))
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise

    def uploads(self, prefix: str) -> list[Upload]:
        """None: what fsspec begins here it does not show."""
        return []

    def abort(self, upload: Upload) -> None:
        """Nothing to abort."""

    def thaw(self, key: str, days: int, speed: str) -> None:
        """Classes of these stores are read at once, or by the provider's own tools."""

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _do(self, what: str, work: Callable[[], Any]) -> Any:
        try:
            return within(self._deadline_s, work)
        except Exception as error:
            raise store_error(self.url, what, error, self._secrets) from error
