"""Which pairs of tokens a mask lets through, against counts by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from costguard.tracing.masks import (
    EVERY,
    HALF,
    UNREAD,
    Pairs,
    below_diagonal,
    pairs_of_mask,
    window_pairs,
)

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=5)
# Of the smallest masks one kind looks like another, so that packed ones here have a sequence of two tokens.
PACKED = LENGTHS.map(lambda lengths: [*lengths, 2])


def blocks(lengths: list[int]) -> Tensor:
    return torch.block_diag(*(torch.ones(n, n) for n in lengths)).bool()


def below(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


def share(pairs: float, tokens: int) -> Fraction:
    return Fraction(pairs) / tokens**2


@given(PACKED)
def test_packed_sequences_are_the_sum_of_squared_lengths(lengths: list[int]) -> None:
    """With a causal mask exactly half of it is left."""
    tokens, squares = sum(lengths), sum(n * n for n in lengths)
    both = pairs_of_mask(blocks(lengths) & below(tokens))
    assert both == (share(squares, tokens), share(squares / 2, tokens))
    if len(lengths) > 1:
        assert pairs_of_mask(blocks(lengths)) == (share(squares, tokens),) * 2


@given(st.integers(2, 24), st.integers(1, 30))
def test_a_causal_window_is_as_wide_as_its_widest_query(tokens: int, window: int) -> None:
    """Query `i` sees `min(i + 1, window)` keys, its own a half; in full each sees a whole window."""
    mask = below(tokens) & ~below(tokens).tril(-window)
    seen = sum(min(i + 1, window) for i in range(tokens))
    expected = Pairs(share(tokens * min(window, tokens), tokens), share(seen - tokens / 2, tokens))
    assert window_pairs(tokens, window, causal=True) == expected
    assert pairs_of_mask(mask) == expected


@given(PACKED, st.integers(2, 6))
def test_a_window_within_packed_sequences_is_no_wider_than_each(lengths: list[int], window: int) -> None:
    """T_eff = min(T, w), of each sequence by itself."""
    tokens = sum(lengths)
    mask = blocks(lengths) & below(tokens) & ~below(tokens).tril(-window)
    assert pairs_of_mask(mask).full == share(sum(n * min(n, window) for n in lengths), tokens)


def masks() -> st.SearchStrategy[Tensor]:
    shape = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6))
    return shape.flatmap(
        lambda s: st.lists(st.booleans(), min_size=math.prod(s), max_size=math.prod(s)).map(
            lambda bits: torch.tensor(bits).view(s)
        )
    )


@given(masks())
def test_causal_is_at_most_full_and_full_at_most_all(mask: Tensor) -> None:
    """Whatever the mask is, and the same if it is added to scores instead."""
    pairs = pairs_of_mask(mask)
    assert pairs.causal is not None
    assert 0 <= pairs.causal <= pairs.full <= 1
    assert pairs_of_mask(torch.zeros(mask.shape).masked_fill(~mask, -math.inf)) == pairs


@given(st.integers(1, 12), st.integers(1, 12))
def test_causal_attention_of_any_two_lengths_by_counting(queries: int, keys: int) -> None:
    """Query `i` sees keys before `i`, and half of key `i`."""
    seen = sum(min(i, keys) + (0.5 if i < keys else 0) for i in range(queries))
    assert below_diagonal(queries, keys) == (1, Fraction(seen) / (queries * keys))
    assert below_diagonal(queries, queries) == HALF


def test_padding_hides_keys_of_the_strict_count_alone() -> None:
    """A mask of keys is the same for all queries; of eight keys three are padding in one sample of two."""
    keys = torch.tensor([[1] * 8, [1] * 5 + [0] * 3]).bool()
    assert pairs_of_mask(keys[:, None, None]) == (1, Fraction(13, 16))
    assert pairs_of_mask(keys[:, None, None].expand(2, 4, 8, 8)) == (1, Fraction(13, 16))


def test_masks_of_several_samples_add_up() -> None:
    """One sample of one sequence, one of two."""
    both = torch.stack([below(4), below(4) & blocks([2, 2])])
    assert pairs_of_mask(both) == (Fraction(16 + 8, 32), Fraction(8 + 4, 32))


def test_a_mask_that_hides_nothing_leaves_all() -> None:
    """Boolean or a bias."""
    assert pairs_of_mask(torch.ones(4, 4).bool()) == EVERY
    assert pairs_of_mask(torch.randn(4, 4)) == EVERY


@pytest.mark.parametrize("lowest", [-math.inf, -1e9, torch.finfo(torch.float16).min, torch.finfo(torch.float32).min])
def test_low_scores_are_hidden_ones(lowest: float) -> None:
    """Minus infinity by any of its usual stand-ins; a bias such as ALiBi's is none."""
    assert pairs_of_mask(torch.zeros(4, 4).masked_fill(~below(4), lowest)) == HALF
    assert pairs_of_mask(-100.0 * torch.arange(16.0).view(4, 4)) == EVERY


def test_a_mask_without_contents_is_unread() -> None:
    """In full it is all pairs, and causal unknown."""
    assert pairs_of_mask(torch.empty(4, 4, device="meta")) == UNREAD


def test_only_the_first_part_of_a_huge_mask_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole masks of the first samples."""
    monkeypatch.setattr("costguard.tracing.masks.MOST_ELEMENTS", 40)
    assert pairs_of_mask(torch.stack([below(4), below(4), torch.ones(4, 4).bool()])) == HALF
