"""One file of a pot: a JSON object with format, schema version and checksum, and how it is read back or refused."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from costguard.errors import PotError

SCHEMA = 1
FORMAT = "costguard-pot"


def seal(fields: Mapping[str, Any]) -> bytes:
    """Write one file.

    Args:
        fields: Plain data; must not use the keys `format`, `v` and `crc`.
    """
    body = json.dumps({"format": FORMAT, "v": SCHEMA, **fields}, separators=(",", ":"), allow_nan=False)
    return f'{body[:-1]},"crc":"{zlib.crc32(body.encode()):08x}"}}'.encode()


def unseal(data: bytes, place: str) -> dict[str, Any]:
    """Read one file.

    Args:
        data: Its bytes.
        place: Where it lies, for the error.

    Raises:
        PotError: If it is not ours, damaged, or written by a newer costguard.
    """
    try:
        fields = json.loads(data)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT or not isinstance(fields.get("v"), int):
        raise PotError(f"{place} is not a readable file of a pot ({len(data)} bytes); put back what was there.")
    if fields["v"] > SCHEMA:
        raise PotError(f"{place} has schema {fields['v']}, this costguard reads up to {SCHEMA}; upgrade it.")
    crc = fields.pop("crc", None)
    if crc != f"{zlib.crc32(json.dumps(fields, separators=(',', ':')).encode()):08x}":
        raise PotError(f"{place} fails its checksum; put back what was there.")
    return fields
