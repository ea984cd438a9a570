"""The hashes of a file in one pass: its own, those of its parts, and the tag that an S3 store should show for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

PART_BYTES: Final = 16 << 20
"""Bytes of a part: six in flight and those being hashed bound the memory below 200 MB."""
MOST_PARTS: Final = 10_000
"""Parts that S3 allows in one upload. Source: Amazon S3 User Guide, multipart upload limits."""
_MIB: Final = 1 << 20


def part_bytes_for(size: int, wanted: int = PART_BYTES) -> int:
    """Bytes of one part of a file: as wanted, or more where that would be too many parts.

    Example:
        >>> part_bytes_for(10**12) // 2**20
        96
    """
    least = -(-size // MOST_PARTS)
    return wanted if least <= wanted else -(-least // _MIB) * _MIB


def expected_etag(part_md5s: Sequence[str]) -> str:
    """The ETag that an S3 store shows: of one part its MD5, of more the MD5 of their MD5s and how many.

    Example:
        >>> expected_etag(["d41d8cd98f00b204e9800998ecf8427e"])
        'd41d8cd98f00b204e9800998ecf8427e'

    Source:
        Amazon S3 User Guide, "Checking object integrity": ETags of multipart uploads; not with SSE-KMS or SSE-C.
    """
    if len(part_md5s) == 1:
        return part_md5s[0]
    joined = b"".join(bytes.fromhex(md5) for md5 in part_md5s)
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(part_md5s)}"


def md5_of(data: bytes) -> str:
    """MD5 of one part; it tells damage, not malice."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


class Digest:
    """Hashes what passes through it."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.part_md5s: list[str] = []
        self.size = 0

    def watch(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Pass parts on, hashed."""
        for part in parts:
            self.add(part)
            yield part

    def add(self, part: bytes) -> None:
        """Take in one part."""
        self._sha256.update(part)
        self.part_md5s.append(md5_of(part))
        self.size += len(part)

    @property
    def sha256(self) -> str:
        """Hash of all so far."""
        return self._sha256.hexdigest()
