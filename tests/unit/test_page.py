"""The shared page: whatever instant the process dies at, one whole state is in it."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import NS, examples
from costguard.flops.step import Work
from costguard.ledger.activity import ActivityMeter, Batch, Counters, MeterState
from costguard.ledger.attempt import count
from costguard.ledger.page import PAGE_BYTES, Page, read_page
from costguard.records import Activity
from costguard.testing import ManualClock

COUNTS = st.none() | st.integers(0, 2**62)


def states(number: int) -> list[MeterState]:
    """States of a meter that goes on."""
    clock = ManualClock(now_ns=5 * NS)
    meter = ActivityMeter(NS, Activity.STARTUP, clock.now_ns)
    found = []
    for step in range(number):
        clock.advance(0.5)
        meter.settle(clock.now_ns() - 7, step % len(Activity), Counters(step, step, step * 10, None, step))
        found.append(meter.state)
    return found


def page_of(*written: MeterState) -> bytearray:
    memory = bytearray(PAGE_BYTES)
    page = Page(memoryview(memory), lambda: 0)
    for state in written:
        page.write(state)
    return memory


@pytest.mark.parametrize("number", [1, 2, 3, 10])
def test_the_last_state_is_read_back(number: int) -> None:
    """The newer of the two slots counts, whichever of them it is."""
    written = states(number)
    reading = read_page(page_of(*written))
    assert reading is not None
    assert reading.state == written[-1]
    assert reading.alive_ns == written[-1].since_ns


@given(COUNTS, COUNTS, COUNTS, st.integers(0, 2**62), st.integers(0, len(Activity) - 1))
@examples(100)
def test_unknown_counts_stay_unknown(
    tokens: int | None, padding: int | None, samples: int | None, step: int, activity: int
) -> None:
    """A count comes back as it was, also where it is unknown, which is not zero."""
    totals = (3, *[0] * (len(Activity) - 1))
    state = MeterState(10, 13, activity, totals, Counters(step, step, tokens, padding, samples))
    reading = read_page(page_of(state))
    assert reading is not None
    assert reading.state == state


@pytest.mark.parametrize("earlier", [1, 2, 3])
def test_a_slot_torn_at_any_byte_leaves_the_state_before(earlier: int) -> None:
    """With any number of bytes of the new state in place, from either end, the page holds the old or the new state."""
    written = states(earlier + 1)
    before, after = page_of(*written[:-1]), page_of(*written)
    changed = [i for i in range(PAGE_BYTES) if before[i] != after[i]]
    first, last = changed[0], changed[-1] + 1
    for cut in range(first, last + 1):
        for torn in (before[:first] + after[first:cut] + before[cut:], before[:cut] + after[cut:]):
            reading = read_page(bytes(torn))
            assert reading is not None
            assert reading.state in written[-2:]
    assert read_page(before[:first] + after[first:last] + before[last:]) == read_page(after)


def test_a_slot_torn_in_any_order_leaves_a_whole_state() -> None:
    """Memory may reach the page in any order: any mixture of old and new bytes is one of the two states."""
    written = states(4)
    before, after = page_of(*written[:-1]), page_of(*written)
    changed = [i for i in range(PAGE_BYTES) if before[i] != after[i]]
    shuffled = random.Random(4)
    for _ in range(300):
        torn = bytearray(before)
        for i in shuffled.sample(changed, shuffled.randrange(len(changed) + 1)):
            torn[i] = after[i]
        reading = read_page(torn)
        assert reading is not None
        assert reading.state in written[-2:]


@given(st.integers(0, PAGE_BYTES - 1), st.integers(1, 255))
@examples(500)
def test_a_flipped_byte_never_raises_and_never_lies(at: int, flip: int) -> None:
    """With any byte of the page wrong, what is read is one of the two states that were written, or nothing."""
    written = states(5)
    memory = page_of(*written)
    memory[at] ^= flip
    reading = read_page(memory)
    assert reading is None or reading.state in written[-2:]
    assert reading is not None or at < 64


@pytest.mark.parametrize("data", [b"", b"\0" * PAGE_BYTES, b"x" * PAGE_BYTES, bytes(page_of(*states(2)))[:-1]])
def test_what_is_no_page_is_nothing(data: bytes) -> None:
    """Empty, never written, not ours, cut short: no reading and no exception."""
    assert read_page(data) is None


@given(st.binary(min_size=PAGE_BYTES - 8, max_size=PAGE_BYTES - 8))
@examples(50)
def test_random_bytes_behind_the_magic_are_nothing(body: bytes) -> None:
    """A checksum stands before every state."""
    assert read_page(bytes(page_of()[:8]) + body) is None


def test_a_beat_moves_the_time_of_death() -> None:
    """A sign of life later than the last state is when the process was last alive."""
    written = states(2)
    memory = bytearray(PAGE_BYTES)
    page = Page(memoryview(memory), lambda: written[-1].since_ns + 250)
    page.write(written[-1])
    page.beat(written[-1])
    reading = read_page(memory)
    assert reading is not None
    assert reading.alive_ns == written[-1].since_ns + 250
    for at in range(64, 80):
        memory[at] ^= 0x10
        torn = read_page(memory)
        memory[at] ^= 0x10
        assert torn is not None
        assert torn.alive_ns == written[-1].since_ns


WORK = st.builds(Work, st.integers(0, 10**24), st.none() | st.integers(0, 10**24), st.none() | st.integers(0, 10**24))


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.booleans()), min_size=1, max_size=30),
    st.lists(WORK, min_size=3, max_size=3),
)
def test_flops_come_back_from_the_page_as_they_were_counted(batches: list[tuple[int, bool]], kinds: list[Work]) -> None:
    """Batches of three sizes, counted one by one or as the one before: after each the page has their exact sum."""
    memory = memoryview(bytearray(PAGE_BYTES))
    page = Page(memory, lambda: 0)
    counters, total = Counters(), None
    for number, (kind, quick) in enumerate(batches):
        work = kinds[kind]
        total = work if total is None else total + work
        if quick and number:
            counters = Batch(3, 0, 1, work).added_to(counters, number + 1)
        else:
            counters = count(counters, number + 1, 3, 0, 1, work)
        page.write(MeterState(0, number, 0, (number, *[0] * (len(Activity) - 1)), counters))
        reading = read_page(memory)
        assert reading is not None
        assert reading.state.counters == counters.settled()
        assert reading.state.counters.work == total
        assert Counters.from_json(json.loads(json.dumps(counters.to_json()))) == counters.settled()
