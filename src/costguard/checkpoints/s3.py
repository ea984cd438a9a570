"""The cold store that is an S3 bucket: parts in flight, a deadline around each call, and no reply taken for proof."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import islice
from typing import Any, Final

from costguard.checkpoints.digest import md5_of
from costguard.checkpoints.faults import RETRYABLE, ArchivedError, StoreError, code_of, kind_of, store_error
from costguard.checkpoints.store import ObjectFact, Upload

CONCURRENCY: Final = 6
"""Parts in flight: fewer leave a server idle between two, more only hold memory (`benchmarks/demotion.py`)."""
SMALL_BYTES: Final = 128 << 10
"""Colder classes bill at least so much for an object, so smaller ones stay in the standard class.

Source: Amazon S3 pricing page, minimum billable object size of Standard-IA and Glacier Instant Retrieval.
"""
_ARCHIVES: Final = ("GLACIER", "DEEP_ARCHIVE")


def _onward(ahead: list[bytes], coming: Iterable[bytes]) -> Iterator[bytes]:
    """What was looked at ahead, then the rest, holding on to none of it."""
    while ahead:
        yield ahead.pop(0)
    yield from coming


def _checked(part: bytes, md5s: Sequence[str] = (), number: int = 1) -> dict[str, str]:
    """What has a server refuse bytes that are not those that were sent: their MD5, where it is known already."""
    md5 = md5s[number - 1] if number <= len(md5s) else md5_of(part)
    return {"ContentMD5": base64.b64encode(bytes.fromhex(md5)).decode()}


class S3Store:
    """A bucket, or a part of one, through an s3fs file system of our own.

    Args:
        fs: The file system: not shared with anybody, without a cache of listings.
        bucket: Name of the bucket.
        prefix: Put before each key.
        url: Where it is, without credentials.
        storage_class: Class of large objects, the bucket's own if `None`.
        deadline_s: Seconds after which one attempt of one call is given up.
        attempts: Attempts of each call.
        secrets: Texts that must not appear in errors.
        backoff_s: Longest wait before the second attempt; it doubles from there, up to a minute.
    """

    def __init__(
        self,
        fs: Any,
        bucket: str,
        prefix: str,
        *,
        url: str,
        storage_class: str | None = None,
        deadline_s: float = 300.0,
        attempts: int = 6,
        secrets: Iterable[str] = (),
        backoff_s: float = 1.0,
    ) -> None:
        self._fs = fs
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.url = url
        self._storage_class = storage_class
        self._deadline_s = deadline_s
        self._attempts = attempts
        self._secrets = tuple(secrets)
        self._backoff_s = backoff_s
        self._pid = os.getpid()

    # -- verbs -----------------------------------------------------------------------------------------------------

    def put(self, key: str, parts: Iterable[bytes], size: int, part_md5s: Sequence[str] = ()) -> None:
        """Write an object: at once if it is one part, else with a few parts in flight."""
        coming = iter(parts)
        ahead = list(islice(coming, 2))
        if len(ahead) < 2:
            body = b"".join(ahead)
            sent = {"Body": body, **_checked(body, part_md5s), **self._at(key), **self._class(size)}
            self._do("put_object", f"write {key}", **sent)
            return
        begun = self._do("create_multipart_upload", f"write {key}", **self._at(key), **self._class(size))
        upload = Upload(key, begun["UploadId"])
        flying: deque[Future[Any]] = deque()
        try:
            tags = self._send_parts(upload, _onward(ahead, coming), part_md5s, flying)
            listed = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
            self._complete(upload, listed)
        except Exception:
            for part in flying:
                part.cancel()
            self._try_abort(upload)
            raise

    def _send_parts(
        self, upload: Upload, parts: Iterable[bytes], part_md5s: Sequence[str], flying: deque[Future[Any]]
    ) -> list[str]:
        tags: list[str] = []
        for number, part in enumerate(parts, 1):
            if len(flying) == CONCURRENCY:
                tags.append(self._tag(upload, flying.popleft()))
            where = {
                "UploadId": upload.id,
                "PartNumber": number,
                **self._at(upload.key),
                **_checked(part, part_md5s, number),
            }
            flying.append(self._run(partial(self._send_part, io.BytesIO(part), where)))
        while flying:
            tags.append(self._tag(upload, flying.popleft()))
        return tags

    def _send_part(self, part: io.BytesIO, where: dict[str, Any]) -> Awaitable[Any]:
        # A stream is sent in pieces, where asyncio would copy and shift a part that it is given whole; the client
        # does not close it, so that another attempt can begin anew.
        part.seek(0)
        sent: Awaitable[Any] = self._fs._call_s3("upload_part", Body=part, **where)
        return sent

    def _tag(self, upload: Upload, part: Future[Any]) -> str:
        return str(self._told(f"write {upload.key}", part.result)["ETag"])

    def _complete(self, upload: Upload, parts: list[dict[str, Any]]) -> None:
        try:
            self._do(
                "complete_multipart_upload",
                f"write {upload.key}",
                UploadId=upload.id,
                MultipartUpload={"Parts": parts},
                **self._at(upload.key),
            )
        except StoreError:
            # The reply may have been lost on the way back, and a second try is told that there is no such upload.
            # Only what is there counts; keys are unique, so that nobody else can have put it there.
            if self.head(upload.key) is None:
                raise

    def create(self, key: str, data: bytes) -> bool:
        """Write a small object unless there is one, in the standard class."""
        what, sent = f"write {key}", {"Body": data, **_checked(data), **self._at(key)}
        try:
            self._told(what, self._begin("put_object", IfNoneMatch="*", **sent).result)
        except StoreError as error:
            cause = error.__cause__
            if isinstance(cause, FileExistsError) or code_of(cause or error) in ("PreconditionFailed", "412"):
                return False
            if code_of(cause or error) not in ("NotImplemented", "501"):
                raise
            # A server without conditional writes: two machines at one run could overwrite each other's manifest,
            # and each would see by its hash that the manifest is not its own.
            if self.head(key) is not None:
                return False
            self._do("put_object", what, **sent)
        return True

    def head(self, key: str) -> ObjectFact | None:
        """Ask for an object's size, tag and class."""
        try:
            found = self._do("head_object", f"look at {key}", **self._at(key))
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._check_bucket()
            return None
        storage_class = found.get("StorageClass", "STANDARD")
        restored = found.get("Restore", "")
        frozen = storage_class in _ARCHIVES or bool(found.get("ArchiveStatus"))
        return ObjectFact(
            size=found["ContentLength"],
            etag=found.get("ETag", "").strip('"').lower() or None,
            storage_class=storage_class,
            archived=frozen and 'ongoing-request="false"' not in restored,
            thawing='ongoing-request="true"' in restored,
        )

    def read(self, key: str, start: int, end: int) -> bytes:
        """Ask for a range; a body that is cut short is asked for again."""
        if end <= start:
            return b""

        async def body() -> bytes:
            where = {"Range": f"bytes={start}-{end - 1}", **self._at(key)}
            answer = await self._fs._call_s3("get_object", **where)
            async with answer["Body"] as stream:
                data: bytes = await stream.read()
            if len(data) != end - start:
                raise ConnectionError(f"{len(data)} bytes came instead of {end - start}")
            return data

        try:
            found: bytes = self._told(f"read {key}", self._run(body).result)
        except StoreError as error:
            if code_of(error) == "InvalidObjectState":
                raise ArchivedError(f"{self.url}: {key} is archived and needs a restore from the archive.") from error
            raise
        return found

    def listing(self, prefix: str) -> list[str]:
        """All keys below a prefix, page by page."""
        keys: list[str] = []
        more: dict[str, Any] = {}
        while True:
            page = self._do("list_objects_v2", f"list {prefix}", **self._below(prefix), **more)
            keys += [each["Key"][len(self._prefix) :] for each in page.get("Contents", [])]
            if not page.get("IsTruncated"):
                return sorted(keys)
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        """Delete one object; s3fs hides the errors of deleting many."""
        self._do("delete_object", f"delete {key}", **self._at(key))

    def uploads(self, prefix: str) -> list[Upload]:
        """Multipart uploads that were begun and never ended."""
        found: list[Upload] = []
        more: dict[str, Any] = {}
        while True:
            page = self._do("list_multipart_uploads", f"list uploads of {prefix}", **self._below(prefix), **more)
            for each in page.get("Uploads", []):
                if each["Key"].startswith(self._prefix + prefix):
                    found.append(Upload(each["Key"][len(self._prefix) :], each["UploadId"]))
            if not page.get("IsTruncated") or not page.get("NextKeyMarker"):
                return found
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker", "")}

    def abort(self, upload: Upload) -> None:
        """Throw away the parts of an upload; nothing happens if it is gone."""
        try:
            self._do("abort_multipart_upload", f"abort {upload.key}", UploadId=upload.id, **self._at(upload.key))
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise

    def thaw(self, key: str, days: int, speed: str) -> None:
        """Ask for an archived object to be readable for some days."""
        request = {"Days": days, "GlacierJobParameters": {"Tier": speed}}
        try:
            self._do("restore_object", f"restore {key}", RestoreRequest=request, **self._at(key))
        except StoreError as error:
            if code_of(error) != "RestoreAlreadyInProgress":
                raise

    def versioned(self) -> bool:
        """Whether the bucket keeps what is deleted."""
        found = self._do("get_bucket_versioning", "ask for versioning", Bucket=self._bucket)
        return str(found.get("Status", "")) in ("Enabled", "Suspended")

    def server_ns(self) -> int | None:
        """The server's clock, ns since the epoch, `None` if it does not tell."""
        found = self._do("list_objects_v2", "ask for its clock", MaxKeys=1, **self._below(""))
        date = found.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        return round(parsedate_to_datetime(date).timestamp()) * 1_000_000_000 if date else None

    # -- calls -----------------------------------------------------------------------------------------------------

    def _do(self, method: str, what: str, **arguments: Any) -> Any:
        return self._told(what, self._begin(method, **arguments).result)

    def _begin(self, method: str, **arguments: Any) -> Future[Any]:
        return self._run(lambda: self._fs._call_s3(method, **arguments))

    def _run(self, call: Callable[[], Awaitable[Any]]) -> Future[Any]:
        """Begin a call on the file system's own loop; tried again while that may help, each time with a deadline."""
        if os.getpid() != self._pid:
            raise StoreError("other", f"{self.url}: opened before a fork; a child process must open it again.")

        async def tried() -> Any:
            for attempt in range(1, self._attempts + 1):
                try:
                    return await asyncio.wait_for(call(), self._deadline_s)
                except Exception as error:
                    if attempt == self._attempts or kind_of(error) not in RETRYABLE:
                        raise
                # Full jitter: those that were turned away together do not come back together.
                await asyncio.sleep(random.uniform(0, min(60.0, self._backoff_s * 2 ** (attempt - 1))))

        return asyncio.run_coroutine_threadsafe(tried(), self._fs.loop)

    def _told(self, what: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except StoreError:
            raise
        except Exception as error:
            raise store_error(self.url, what, error, self._secrets) from error

    def _check_bucket(self) -> None:
        """A bucket that is missing never reads as an object that is gone."""
        try:
            self._do("head_bucket", "look at the bucket", Bucket=self._bucket)
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                said = "there is no such bucket; the copies in it are not known to be gone."
                raise StoreError("no_bucket", f"{self.url}: {said}") from error
            if error.kind not in ("denied",):  # a right to look at objects does not include the bucket
                raise

    def _try_abort(self, upload: Upload) -> None:
        try:
            self.abort(upload)
        except StoreError:
            return  # the next recovery finds it by its prefix

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _below(self, prefix: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Prefix": self._prefix + prefix}

    def _class(self, size: int) -> dict[str, str]:
        if self._storage_class is None or size < SMALL_BYTES:
            return {}
        return {"StorageClass": self._storage_class}
