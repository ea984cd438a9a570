"""The shared page of one rank: its latest state in mapped memory, which survives the death of the process."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from costguard.flops.step import NO_WORK, Work
from costguard.ledger.activity import Counters, MeterState, Warmup
from costguard.ledger.files import PageMemory
from costguard.records import Activity

PAGE_BYTES = 4096
_MAGIC = b"CGPAGE02"
_ALIVE = struct.Struct("<QQ")
_ALIVE_AT = 64
_WALL = struct.Struct("<q")
_WALL_AT = 128
_STEP_SLOTS = (512, 1024)
_BEAT_SLOTS = (2048, 2560)
_UNKNOWN = -1
_WORK_WORDS = 6
"""Three counts of FLOPs of 128 bits: 64 hold six hours of one GPU."""
_SLOT = struct.Struct(f"<QQQQqqqqq{len(Activity)}Q{_WORK_WORDS}Q{2 + _WORK_WORDS}QQ")
_SLOT_BYTES = _SLOT.size
_pack = _SLOT.pack
_MASK = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15
_UNKNOWN_WORK = (1 << 128) - 1
_NO_WORDS = (_MASK,) * _WORK_WORDS


class Page:
    """Writes states into two slots in turn, each with a checksum, so that one of them is always whole.

    Training writes at each step (`write`), another thread a few times a second (`beat`); each has two slots of its
    own, so that they need no lock.

    Args:
        memory: Shared mapping of `PAGE_BYTES` bytes.
        now_ns: The clock.
        wall_offset_ns: Wall clock minus that clock.
    """

    def __init__(self, memory: PageMemory, now_ns: Callable[[], int], wall_offset_ns: int = 0) -> None:
        self._memory = memory
        self._now_ns = now_ns
        self._beats = _Slots(memory, _BEAT_SLOTS)
        self.write = _Slots(memory, _STEP_SLOTS).write
        memory[_WALL_AT : _WALL_AT + _WALL.size] = _WALL.pack(wall_offset_ns)
        memory[0 : len(_MAGIC)] = _MAGIC

    def beat(self, state: MeterState) -> None:
        """Keep what is going on, and that the process is alive now; called by another thread than `write`."""
        self._beats.write(state)
        now = self._now_ns()
        self._memory[_ALIVE_AT : _ALIVE_AT + _ALIVE.size] = _ALIVE.pack(now, now ^ _MASK)


class _Slots:
    """Two places that are written in turn by one thread."""

    def __init__(self, memory: PageMemory, places: tuple[int, int]) -> None:
        self._memory = memory
        self._places = places
        self._sequence = 0
        self._warmup: Warmup | None = None
        self._warmup_words: tuple[int, ...] = ()

    def write(self, state: MeterState) -> None:
        """Put `state` into the place that holds the older one."""
        start, since, activity, totals, (step, batches, tokens, padding, samples, work, warmup) = state
        self._sequence = sequence = self._sequence + 1
        if tokens is None:
            tokens = _UNKNOWN
        if padding is None:
            padding = _UNKNOWN
        if samples is None:
            samples = _UNKNOWN
        if warmup is not self._warmup:  # which changes seldom
            self._warmup, self._warmup_words = warmup, (warmup.batches, warmup.tokens, *_words(warmup.work))
        words = _NO_WORDS if work is None else _words(work)
        # A plain sum, since the tables of a real checksum are never in the processor's cache after a training step.
        check = (
            sequence * _MIX
            + since
            + activity
            + 3 * step
            + 9 * (batches + 3 * (tokens + 3 * (padding + 3 * samples)))
            + sum(words)
            + sum(self._warmup_words)
        ) & _MASK
        slot = _pack(
            sequence, start, since, activity, step, batches, tokens, padding, samples, *totals, *words,
            *self._warmup_words, check,
        )  # fmt: skip
        at = self._places[sequence & 1]
        self._memory[at : at + _SLOT_BYTES] = slot


def _words(work: Work) -> tuple[int, ...]:
    """Two words of 64 bits for each count; an unknown one has all bits set."""
    full, causal, hardware = work
    if causal is None:
        causal = _UNKNOWN_WORK
    if hardware is None:
        hardware = _UNKNOWN_WORK
    return (full & _MASK, full >> 64, causal & _MASK, causal >> 64, hardware & _MASK, hardware >> 64)


def _work(words: Sequence[int]) -> Work | None:
    counts = [low | high << 64 for low, high in zip(words[::2], words[1::2], strict=True)]
    full, causal, hardware = (None if count == _UNKNOWN_WORK else count for count in counts)
    return None if full is None else Work(full, causal, hardware)


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
    slots = [slot for at in (*_STEP_SLOTS, *_BEAT_SLOTS) if (slot := _whole_slot(raw, at))]
    if not slots:
        return None
    # The latest is the one whose activity began last; of two that began together, the one that has done more.
    newest = max(slots, key=lambda slot: (slot[2], slot[5], slot[0]))
    _, start, since, activity, step, batches, tokens, padding, samples, *rest = newest
    totals, words, warm = (
        rest[: len(Activity)],
        rest[len(Activity) :][:_WORK_WORDS],
        rest[len(Activity) + _WORK_WORDS :],
    )
    warmup = Warmup(warm[0], warm[1], _work(warm[2:]) or NO_WORK)
    counters = Counters(
        step, batches, _known(tokens), _known(padding), _known(samples), work=_work(words), warmup=warmup
    )
    state = MeterState(start, since, activity, tuple(totals), counters)
    alive, check = _ALIVE.unpack_from(raw, _ALIVE_AT)
    (wall_offset,) = _WALL.unpack_from(raw, _WALL_AT)
    return PageReading(state, max(since, alive if alive ^ _MASK == check else 0), wall_offset)


def _whole_slot(raw: bytes, at: int) -> tuple[int, ...] | None:
    """The fields of a slot, `None` if it is torn or damaged: the check is for the counters, the sum for the totals."""
    fields = _SLOT.unpack_from(raw, at)
    sequence, start, since, activity, step, batches, tokens, padding, samples = fields[:9]
    totals, words = fields[9 : 9 + len(Activity)], fields[9 + len(Activity) : -1]
    check = (
        sequence * _MIX + since + activity + 3 * step + 9 * (batches + 3 * (tokens + 3 * (padding + 3 * samples)))
    ) + sum(words)
    whole = sequence > 0 and activity < len(Activity) and sum(totals) == since - start and check & _MASK == fields[-1]
    return fields[:-1] if whole else None


def _known(value: int) -> int | None:
    return None if value == _UNKNOWN else value
