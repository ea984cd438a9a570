"""A line of the journal, and how lines are read back whatever happened to the file."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import examples, tick_lines
from costguard.ledger.lines import SCHEMA, decode, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.dictionaries(st.text().filter(lambda k: k not in {"v", "n", "k", "crc"}), PLAIN, max_size=4)
LINES = tick_lines(5)
DATA = b"".join(LINES)


def numbers(data: bytes) -> list[int]:
    return [line["n"] for line in decode(data, "s").lines]


def newer(number: int) -> bytes:
    """A line of the next schema, as the next costguard would write it."""
    head = json.dumps({"v": SCHEMA + 1, "n": number, "k": "unheard-of"}, separators=(",", ":"))[:-1].encode()
    return head + b',"crc":"%08x"}\n' % zlib.crc32(head)


@given(st.lists(FIELDS, max_size=3))
@examples(50)
def test_what_is_written_is_read_back(fields: list[dict[str, object]]) -> None:
    """Any plain data comes back equal, in order, without a problem, one line each."""
    data = b"".join(encode(n, "kind", f) for n, f in enumerate(fields))
    reading = decode(data, "s")
    assert data.count(b"\n") == len(fields)
    assert reading.lines == [{"v": SCHEMA, "n": n, "k": "kind", **f} for n, f in enumerate(fields)]
    assert [p for p in reading.problems if fields] == []


def test_a_line_is_json() -> None:
    """Each line can be read by any JSON reader, checksum included."""
    assert [json.loads(line)["n"] for line in LINES] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("left", range(1, len(LINES[-1]) - 1))
def test_a_torn_last_line_is_left_out_and_named(left: int) -> None:
    """Wherever the last line is torn, all others are read and one problem says so."""
    torn = DATA[: -len(LINES[-1])] + LINES[-1][:left]
    reading = decode(torn, "s")
    assert [line["n"] for line in reading.lines] == [0, 1, 2, 3]
    assert len(reading.problems) == 1
    assert "torn" in reading.problems[0]


def test_a_last_line_without_its_newline_is_whole() -> None:
    """A line that lacks only its newline has its checksum, so it counts."""
    reading = decode(DATA[:-1], "s")
    assert (len(reading.lines), reading.problems) == (5, [])


@pytest.mark.parametrize("twice", range(5))
def test_a_line_that_stands_twice_counts_once(twice: int) -> None:
    """A duplicated line, next to itself or at the end, changes nothing and is no problem."""
    beside = b"".join([*LINES[: twice + 1], LINES[twice], *LINES[twice + 1 :]])
    for data in (beside, DATA + LINES[twice]):
        assert decode(data, "s") == decode(DATA, "s")


@given(st.integers(0, len(DATA) - 1).filter(lambda at: DATA[at] != ord("\n")), st.integers(1, 255))
@examples(400)
def test_a_flipped_byte_costs_its_line_alone(at: int, flip: int) -> None:
    """A line with a wrong byte fails its checksum and is named; all other lines are read."""
    data = bytearray(DATA)
    data[at] ^= flip
    reading = decode(bytes(data), "s")
    hit = DATA[:at].count(b"\n")
    assert [line["n"] for line in reading.lines] == [n for n in range(5) if n != hit]
    assert reading.problems


@pytest.mark.parametrize("line", range(5))
def test_a_flipped_newline_costs_its_line_alone(line: int) -> None:
    """A newline that is no newline any more joins two lines; the second is whole and is still read."""
    at = sum(map(len, LINES[: line + 1])) - 1
    for flip in range(1, 256):
        data = bytearray(DATA)
        data[at] ^= flip
        lost = {0, 1, 2, 3, 4} - set(numbers(bytes(data)))
        assert lost <= {line}


def test_an_empty_segment_has_no_lines_and_says_so() -> None:
    """An attempt that ended before its first line leaves an empty file: one problem, no line."""
    reading = decode(b"", "attempt-0001.rank-00000.jsonl")
    assert reading.lines == []
    assert len(reading.problems) == 1
    assert "attempt-0001.rank-00000.jsonl is empty" in reading.problems[0]


@pytest.mark.parametrize("at", range(6))
def test_a_line_of_a_newer_schema_is_left_out_and_says_upgrade(at: int) -> None:
    """What a newer costguard wrote is not guessed at; the lines that are understood count."""
    data = b"".join([*LINES[:at], newer(99), *LINES[at:]])
    reading = decode(data, "s")
    assert [line["n"] for line in reading.lines] == [0, 1, 2, 3, 4]
    assert len(reading.problems) == 1
    assert "upgrade" in reading.problems[0]


@pytest.mark.parametrize("missing", range(5))
def test_a_missing_line_takes_no_other_with_it(missing: int) -> None:
    """Lines stand alone: without any one of them, the first included, the others are read."""
    data = b"".join(line for n, line in enumerate(LINES) if n != missing)
    assert numbers(data) == [n for n in range(5) if n != missing]


@given(st.binary(max_size=300), st.integers(0, len(DATA)))
@examples(300)
def test_garbage_never_raises(garbage: bytes, at: int) -> None:
    """Any bytes at any place are a problem at most, never an exception."""
    reading = decode(DATA[:at] + b"\n" + garbage + b"\n" + DATA[at:], "s")
    assert len(reading.lines) >= 4


def test_a_number_that_json_cannot_carry_is_refused() -> None:
    """NaN is no JSON, so it is refused where it is written and not where it is read years later."""
    with pytest.raises(ValueError):
        encode(0, "fact", {"value": float("nan")})
