"""The FLOPs of batches by their sizes: exact where a law holds, unknown where none does."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from costguard.flops.sizes import MOST_COUNTED, MOST_KEPT, BatchSize, WorkBySize
from costguard.flops.step import Work

SHAPES = st.tuples(st.integers(1, 64), st.integers(1, 512))
"""Samples and tokens of each."""


def size(samples: int, tokens: int) -> BatchSize:
    return BatchSize((samples, tokens), samples, samples * tokens)


def transformer(samples: int, tokens: int, linear: int = 98_304, pairs: int = 512, causal: bool = True) -> Work:
    """Linear layers by tokens, attention by the squares of lengths."""
    tokens_, squares = samples * tokens, samples * tokens**2
    half = linear * tokens_ + pairs * squares // 2 if causal else None
    return Work(linear * tokens_ + pairs * squares, half, linear * tokens_ + 2 * pairs * squares)


@given(st.lists(SHAPES, min_size=12, max_size=20, unique=True), st.integers(1, 10**12), st.integers(0, 10**9))
def test_a_law_predicts_unseen_sizes_of_a_transformer_exactly(
    shapes: list[tuple[int, int]], linear: int, pairs: int
) -> None:
    """Each convention to the last FLOP, whichever sizes came first."""
    works = WorkBySize()
    for shape in shapes:
        if works.wants(size(*shape)):
            works.counted(size(*shape), transformer(*shape, linear, 2 * pairs))
        assert works.work(size(*shape)) == transformer(*shape, linear, 2 * pairs)


@given(st.lists(SHAPES, min_size=9, max_size=9, unique=True), st.integers(0, 8))
def test_a_counted_size_costs_what_was_counted(shapes: list[tuple[int, int]], at: int) -> None:
    """No law goes before what was seen."""
    works = WorkBySize()
    for n, shape in enumerate(shapes[:MOST_COUNTED]):
        works.counted(size(*shape), Work(n + 1, n, n + 2))
    if at < MOST_COUNTED:
        assert works.work(size(*shapes[at])) == Work(at + 1, at, at + 2)


def test_a_size_that_is_new_is_unknown_until_it_is_counted() -> None:
    """The first ones are wanted, once each."""
    works = WorkBySize()
    assert works.wants(size(2, 8))
    works.counted(size(2, 8), Work(1, 1, 1))
    assert not works.wants(size(2, 8))
    assert works.wants(size(2, 9))
    assert works.work(size(2, 9)) is None


def test_sizes_that_obey_no_law_are_unknown() -> None:
    """Work that grows as the cube of the length: a new length has no figure, a counted one has."""
    works = WorkBySize()
    for tokens in range(10, 10 + MOST_COUNTED * 10, 10):
        works.counted(size(1, tokens), Work(tokens**3, tokens**3, tokens**3))
    assert works.work(size(1, 95)) is None
    assert works.work(size(1, 10)) == Work(1000, 1000, 1000)


def test_what_counted_sizes_do_not_determine_is_counted_still() -> None:
    """Eight sizes of batches of one length say nothing of another length."""
    works = WorkBySize()
    for samples in range(1, 1 + MOST_COUNTED):
        works.counted(size(samples, 32), transformer(samples, 32))
    assert works.work(size(20, 32)) == transformer(20, 32)
    assert not works.wants(size(21, 32))
    assert works.wants(size(4, 64))
    assert works.work(size(5, 128)) is None
    works.counted(size(4, 64), transformer(4, 64))
    works.counted(size(2, 100), transformer(2, 100))
    assert works.work(size(7, 200)) == transformer(7, 200)


@given(st.lists(SHAPES, min_size=40, max_size=60, unique=True))
def test_few_sizes_are_counted(shapes: list[tuple[int, int]]) -> None:
    """At most eight, and as many more as there are things to determine."""
    works, counted = WorkBySize(), 0
    for shape in shapes:
        if works.wants(size(*shape)):
            counted += 1
            works.counted(size(*shape), transformer(*shape))
        works.work(size(*shape))
    assert counted <= MOST_COUNTED + 4


def test_one_size_that_could_not_be_counted_makes_no_law() -> None:
    """Nor does a convention that is unknown for one of them; the others have theirs."""
    unknown, partly = WorkBySize(), WorkBySize()
    for at in range(MOST_COUNTED):
        shape = (1 + at % 3, 10 * (at + 1))
        unknown.counted(size(*shape), None if at == 3 else transformer(*shape))
        partly.counted(size(*shape), transformer(*shape, causal=at != 3))
    assert unknown.work(size(2, 33)) is None
    full, _, hardware = transformer(2, 33)
    assert partly.work(size(2, 33)) == Work(full, None, hardware)


@given(st.integers(1, 64), st.integers(0, 10**6))
def test_powers_are_what_work_grows_by(samples: int, elements: int) -> None:
    """Nothing, samples, tokens, and pairs of tokens within a sample."""
    assume(elements % samples == 0)
    one, by_sample, by_token, by_pair = BatchSize(None, samples, elements).powers
    assert (one, by_sample, by_token) == (1, samples, elements)
    assert by_pair == samples * (elements // samples) ** 2


def test_thousands_of_sizes_that_never_come_again_are_forgotten() -> None:
    """The counted ones are not."""
    works = WorkBySize()
    for at in range(MOST_COUNTED):
        works.counted(size(1 + at % 3, 10 * (at + 1)), transformer(1 + at % 3, 10 * (at + 1)))
    for tokens in range(1000, 6000):
        assert works.work(size(1, tokens)) is not None
    assert len(works._known) <= MOST_KEPT
    assert works.work(size(1, 10)) == transformer(1, 10)
