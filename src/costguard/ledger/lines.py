"""One line of the journal: a JSON object with number, schema version and checksum, and how lines are read back."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
_HEAD = b'{"v":'
_TAIL = b',"crc":"'
_TAIL_BYTES = len(_TAIL) + 8 + 2


def encode(number: int, kind: str, fields: Mapping[str, Any]) -> bytes:
    """Write one line, newline included.

    Args:
        number: Position in the segment, from 0.
        kind: What the line tells.
        fields: Plain data; must not use the keys `v`, `n`, `k` and `crc`.
    """
    body = json.dumps({"v": SCHEMA, "n": number, "k": kind, **fields}, separators=(",", ":"), allow_nan=False)
    head = body[:-1].encode()
    return head + _TAIL + b'%08x"}\n' % zlib.crc32(head)


@dataclass(slots=True)
class Reading:
    """What could be read of one segment.

    Args:
        lines: Whole lines in order, each number once.
        problems: One sentence for each thing that could not be read.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def decode(data: bytes, name: str) -> Reading:
    """Read a segment as it was left; never raises.

    A torn last line, a line with a wrong checksum and a line of a newer schema are left out and named; a line
    that stands there twice counts once.

    Args:
        data: The bytes of the segment.
        name: How to call it in a problem.
    """
    reading = Reading()
    seen: set[int] = set()
    if not data:
        reading.problems.append(f"{name} is empty: the attempt ended before its first line")
    rows = data.split(b"\n")
    for index, row in enumerate(rows):
        if not row:
            continue
        line = _parse(row)
        if line is None:
            # Where the newline itself was hit, a whole line stands at the end of the row.
            later = _parse(row[max(0, row.rfind(_HEAD)) :])
            if later is not None and later["n"] not in seen and later["v"] <= SCHEMA:
                seen.add(later["n"])
                reading.lines.append(later)
            torn = index == len(rows) - 1
            reading.problems.append(
                f"{name}: the last line is torn and was left out"
                if torn
                else f"{name}: line {index + 1} fails its checksum and was left out"
            )
        elif line["v"] > SCHEMA:
            reading.problems.append(
                f"{name}: line {index + 1} has schema {line['v']}, this costguard reads up to {SCHEMA}; upgrade it"
            )
        elif line["n"] not in seen:
            seen.add(line["n"])
            reading.lines.append(line)
    reading.lines.sort(key=lambda line: int(line["n"]))
    return reading


def _parse(row: bytes) -> dict[str, Any] | None:
    head, tail = row[:-_TAIL_BYTES], row[-_TAIL_BYTES:]
    if not tail.startswith(_TAIL) or tail[len(_TAIL) :] != b'%08x"}' % zlib.crc32(head):
        return None
    try:
        line = json.loads(head + b"}")
    except ValueError:
        return None
    valid = isinstance(line, dict) and isinstance(line.get("v"), int) and isinstance(line.get("n"), int)
    return line if valid else None
