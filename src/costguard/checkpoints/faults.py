"""What can go wrong with a checkpoint or its store, in words that hold no credentials.

CheckpointError
├── RefusedError   an invariant forbids it: the sentence says which
│   └── BusyError  somebody else is at it
├── MismatchError  bytes are not the ones that were hashed
├── ArchivedError  the cold copy cannot be read before it is restored from the archive
└── StoreError     the store did not do it; `kind` says whether trying again may help
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from costguard.errors import CostguardError

Kind = Literal["away", "slow_down", "denied", "credentials", "clock", "no_bucket", "full", "other"]

RETRYABLE: Final[frozenset[str]] = frozenset({"away", "slow_down"})


class CheckpointError(CostguardError):
    """A checkpoint was not moved, restored or deleted; it is where it was."""


class RefusedError(CheckpointError):
    """An invariant forbids what was asked for."""


class BusyError(RefusedError):
    """Another process or thread moves checkpoints of the same list; it can be asked again later."""


class MismatchError(CheckpointError):
    """Bytes are not the ones that were hashed; nothing is deleted or used."""


class ArchivedError(CheckpointError):
    """The cold copy is in an archive and must be restored from it first."""


class StoreError(CheckpointError):
    """The store did not do what it was asked to.

    Args:
        kind: Why, as far as it is known.
        message: One sentence without credentials.
    """

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind


_CODES: Final[dict[str, Kind]] = {
    "InternalError": "away",
    "ServiceUnavailable": "away",
    "RequestTimeout": "away",
    "OperationAborted": "away",
    "BadDigest": "away",
    "XAmzContentSHA256Mismatch": "away",
    "ConditionalRequestConflict": "away",
    "IncompleteBody": "away",
    "SlowDown": "slow_down",
    "ExpiredToken": "credentials",
    "InvalidToken": "credentials",
    "InvalidAccessKeyId": "credentials",
    "SignatureDoesNotMatch": "credentials",
    "AccessDenied": "denied",
    "RequestTimeTooSkewed": "clock",
    "NoSuchBucket": "no_bucket",
}
_SENTENCES: Final[dict[Kind, str]] = {
    "away": "the store is away or did not answer",
    "slow_down": "the store asks to slow down",
    "denied": "the store denies it; check the rights to put, get, list, delete and abort uploads",
    "credentials": "the store does not accept the credentials or they have expired; refresh them",
    "clock": "the clock of this machine and the store's differ too much (clock skew); set this machine's clock",
    "no_bucket": "there is no such bucket or folder; the copies in it are not known to be gone",
    "full": "there is no space left",
    "other": "the store failed",
}
_ERRNOS: Final[dict[int, Kind]] = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
}


def code_of(error: BaseException) -> str:
    """The code that an S3 server gave, from the error or its cause; empty if it gave none."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        seen = seen.__cause__ or seen.__context__
    return ""


def kind_of(error: BaseException) -> Kind:
    """What sort of failure an error of a store is."""
    code, number = code_of(error), getattr(error, "errno", None)
    if code in _CODES:
        return _CODES[code]
    if number in _ERRNOS:
        return _ERRNOS[number]
    if isinstance(error, PermissionError):
        return "denied"
    name = type(error).__name__
    if "NoCredentials" in name or "Token" in name:
        return "credentials"
    return "away" if _passing(error) or re.search(r"Timeout|Payload|Connect|Incomplete|HTTPClient", name) else "other"


def _passing(error: BaseException) -> bool:
    if isinstance(error, (TimeoutError, ConnectionError)):
        return True
    if isinstance(error, (FileNotFoundError, FileExistsError, PermissionError)):
        return False  # an answer, and the same one the next time
    return isinstance(error, OSError) and error.errno in (None, errno.EBUSY, errno.EREMOTEIO, errno.EIO)


def store_error(url: str, what: str, error: BaseException, secrets: Iterable[str] = ()) -> StoreError:
    """Say in one sentence what a store did not do.

    Args:
        url: The store.
        what: What was asked of it, such as `write runs/a`.
        error: What it raised.
        secrets: Texts that must not appear.
    """
    kind = kind_of(error)
    told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"[:300]
    return StoreError(kind, scrub(f"{scrub_url(url)}: cannot {what}: {_SENTENCES[kind]} ({told}).", secrets))


def scrub(text: str, secrets: Iterable[str]) -> str:
    """Blot out credentials."""
    for secret in sorted((s for s in secrets if len(s) >= 4), key=len, reverse=True):
        text = text.replace(secret, "***")
    return _SIGNED.sub(r"\1=***", text)


_SIGNED = re.compile(r"(X-Amz-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|Signature|sig)=[^&\s'\"]+")


def scrub_url(url: str) -> str:
    """A URL without its user and password.

    Example:
        >>> scrub_url("s3://key:secret@bucket/runs")
        's3://***@bucket/runs'
    """
    return re.sub(r"://[^/@]+@", "://***@", url)


_HARMLESS = re.compile(r"endpoint|region|storage_?class|encryption|acl|signature_version|anon|url", re.IGNORECASE)


def secrets_in(options: Mapping[str, Any]) -> list[str]:
    """Every text in a store's options that may be a credential."""
    found: list[str] = []
    for key, value in options.items():
        if isinstance(value, Mapping):
            found += secrets_in(value)
        elif isinstance(value, str) and not _HARMLESS.search(str(key)):
            found.append(value)
    return found
