"""FLOPs of training from a few counts, by published closed forms."""

from __future__ import annotations


def six_nd(parameters: int, tokens: int) -> int:
    """Estimate the model FLOPs of dense transformer training, forward and backward.

    Two per parameter and token forward, four backward. Attention's own products are left out, embeddings and
    frozen parameters are counted as if they were trained, so that it is too low for long sequences and too high
    for LoRA.

    Args:
        parameters: All parameters of the model, each counted once. Count, >= 0.
        tokens: Tokens that went through the model, repeats included. Count, >= 0.

    Returns:
        FLOPs (operations, not a rate), without recomputation.

    Source:
        Kaplan et al. 2020 (arXiv 2001.08361), section 2.1; Hoffmann et al. 2022 (arXiv 2203.15556), appendix F.

    Example:
        >>> six_nd(117_376, 128)
        90144768
    """
    return 6 * parameters * tokens
