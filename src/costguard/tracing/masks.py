"""Which pairs of tokens an attention mask lets through, in shares of all pairs."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

MOST_ELEMENTS = 1 << 26
"""Of a mask that is read whole; of a larger one the first part."""
MASKED_BELOW = -1e4
"""Scores below it are masked: minus infinity, or the least number of a 16-bit float."""


class Pairs(NamedTuple):
    """Shares of all pairs of a query with a key; `causal` is `None` where the mask could not be read.

    Args:
        full: Those of the same sequence or window.
        causal: Those of them that causality leaves: the ones below the diagonal and half of the diagonal, so that a
            plain causal mask leaves exactly half.
    """

    full: Fraction
    causal: Fraction | None


EVERY = Pairs(Fraction(1), Fraction(1))
HALF = Pairs(Fraction(1), Fraction(1, 2))
UNREAD = Pairs(Fraction(1), None)


def pairs_of_mask(mask: Tensor) -> Pairs:
    """Read a mask, once; this waits for the device.

    Args:
        mask: Shape (..., queries, keys) or (..., 1, keys): boolean, `True` where a key may be seen, or additive.

    Returns:
        A mask of the keys alone (padding) leaves all pairs in `full`. In a causal mask each query sees its window:
        `full` is as much as the widest query of its sequence sees, for every query. Of other masks both are what is
        allowed.
    """
    if _is_fake(mask):
        return UNREAD
    allowed = mask if mask.dtype is torch.bool else mask > MASKED_BELOW
    queries, keys = allowed.shape[-2:]
    allowed = allowed.reshape(-1, queries, keys)
    allowed = allowed[: max(1, MOST_ELEMENTS // max(1, queries * keys))]
    kept = int(allowed.sum())
    if queries == 1 or bool((allowed == allowed[:, :1]).all()):
        return Pairs(Fraction(1), Fraction(kept, max(1, allowed.numel())))
    if queries != keys or bool(allowed.triu(1).any()):
        share = Fraction(kept, max(1, allowed.numel()))
        return Pairs(share, share)
    return _causal_pairs(allowed, kept)


def _causal_pairs(allowed: Tensor, kept: int) -> Pairs:
    """Of a mask (masks, tokens, tokens) without anything above the diagonal."""
    masks, tokens, _ = allowed.shape
    diagonal = int(allowed.diagonal(dim1=-2, dim2=-1).sum())
    seen = allowed.sum(-1)
    # A sequence goes on as long as each token sees the one before it.
    begins = torch.ones(masks, tokens, dtype=torch.bool, device=allowed.device)
    begins[:, 1:] = ~allowed.diagonal(-1, dim1=-2, dim2=-1)
    sequence = begins.flatten().cumsum(0) - 1
    count = int(sequence[-1]) + 1
    lengths = torch.zeros(count, dtype=torch.int64, device=allowed.device)
    lengths = lengths.index_add(0, sequence, torch.ones_like(sequence))
    widest = torch.zeros(count, dtype=torch.int64, device=allowed.device)
    widest = widest.scatter_reduce(0, sequence, seen.flatten(), "amax")
    full = int((lengths * widest).sum())
    everything = masks * tokens * tokens
    return Pairs(Fraction(full, everything), Fraction(2 * kept - diagonal, 2 * everything))


def below_diagonal(queries: int, keys: int) -> Pairs:
    """Shares for a causal mask by which query `i` sees the keys up to `i`, of sequences of any two lengths."""
    if queries > keys:
        return Pairs(Fraction(1), 1 - Fraction(keys, 2 * queries))
    return Pairs(Fraction(1), Fraction(queries, 2 * max(1, keys)))


def window_pairs(tokens: int, window: int, *, causal: bool) -> Pairs:
    """Shares for a sliding window of so many tokens, each token's own included.

    Args:
        tokens: Of a sequence.
        window: Tokens that one sees at most.
        causal: Whether it sees only those before it.

    Example:
        >>> window_pairs(8192, 1024, causal=True).full
        Fraction(1, 8)
    """
    width = min(tokens, window)
    full = Fraction(width, max(1, tokens))
    below = Fraction(2 * tokens * width - width * (width - 1) - tokens, 2 * max(1, tokens) ** 2)
    return Pairs(full, below if causal else full)


def _is_fake(tensor: Tensor) -> bool:
    return tensor.is_meta or type(tensor).__name__ in {"FakeTensor", "FunctionalTensor"}
