"""The shared page of one rank: its latest state in mapped memory, which survives the death of the process."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from costguard.ledger.activity import Counters, MeterState
from costguard.ledger.files import PageMemory
from costguard.records import Activity

PAGE_BYTES = 4096
_MAGIC = b"CGPAGE01"
_ALIVE = struct.Struct("<QQ")
_ALIVE_AT = 64
_WALL = struct.Struct("<q")
_WALL_AT = 128
_SLOTS_AT = (512, 2048)
_UNKNOWN = -1
_SLOT = struct.Struct(f"<QQQQqqqqq{len(Activity)}Q")
_CRC = struct.Struct("<I")
_SLOT_BYTES = _SLOT.size + _CRC.size
_MASK = (1 << 64) - 1


class Page:
    """Writes states into two slots in turn, each with a checksum, so that one of them is always whole.

    Args:
        memory: Shared mapping of `PAGE_BYTES` bytes.
        now_ns: The clock.
        wall_offset_ns: Wall clock minus that clock.
    """

    def __init__(self, memory: PageMemory, now_ns: Callable[[], int], wall_offset_ns: int = 0) -> None:
        self._memory = memory
        self._now_ns = now_ns
        self._sequence = 0
        memory[_WALL_AT : _WALL_AT + _WALL.size] = _WALL.pack(wall_offset_ns)
        memory[0 : len(_MAGIC)] = _MAGIC

    def write(self, state: MeterState) -> None:
        """Put `state` into the slot that holds the older one."""
        start, since, activity, totals, counters = state
        step, batches, tokens, padding, samples = counters
        self._sequence = sequence = self._sequence + 1
        slot = _SLOT.pack(
            sequence,
            start,
            since,
            activity,
            step,
            batches,
            _UNKNOWN if tokens is None else tokens,
            _UNKNOWN if padding is None else padding,
            _UNKNOWN if samples is None else samples,
            *totals,
        )
        at = _SLOTS_AT[sequence & 1]
        self._memory[at : at + _SLOT_BYTES] = slot + _CRC.pack(zlib.crc32(slot))

    def beat(self) -> None:
        """Note that the process is alive now; called by another thread than `write`."""
        now = self._now_ns()
        self._memory[_ALIVE_AT : _ALIVE_AT + _ALIVE.size] = _ALIVE.pack(now, now ^ _MASK)


@dataclass(frozen=True, slots=True)
class PageReading:
    """What a page tells: the last whole state, when the process was last known to be alive, and the wall clock then."""

    state: MeterState
    alive_ns: int
    wall_offset_ns: int = 0


def read_page(data: bytes | memoryview) -> PageReading | None:
    """Read a page that may have been left at any instant.

    Args:
        data: The bytes of the page.

    Returns:
        The newer of the whole slots, or `None` if there is none (never written, cut short, not a page).
    """
    raw = bytes(data)
    if len(raw) < PAGE_BYTES or raw[: len(_MAGIC)] != _MAGIC:
        return None
    slots = [slot for at in _SLOTS_AT if (slot := _whole_slot(raw, at))]
    if not slots:
        return None
    _, start, since, activity, step, batches, tokens, padding, samples, *totals = max(slots)
    counters = Counters(step, batches, _known(tokens), _known(padding), _known(samples))
    state = MeterState(start, since, activity, tuple(totals), counters)
    alive, check = _ALIVE.unpack_from(raw, _ALIVE_AT)
    (wall_offset,) = _WALL.unpack_from(raw, _WALL_AT)
    return PageReading(state, max(since, alive if alive ^ _MASK == check else 0), wall_offset)


def _whole_slot(raw: bytes, at: int) -> tuple[int, ...] | None:
    body, crc = raw[at : at + _SLOT.size], raw[at + _SLOT.size : at + _SLOT_BYTES]
    if _CRC.unpack(crc)[0] != zlib.crc32(body):
        return None
    fields = _SLOT.unpack(body)
    whole = fields[0] > 0 and fields[3] < len(Activity) and sum(fields[9:]) == fields[2] - fields[1]
    return fields if whole else None


def _known(value: int) -> int | None:
    return None if value == _UNKNOWN else value
