"""The products behind attention, however it is called: fused, as a module, or in a kernel of somebody else's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import torch
from torch import Tensor

from costguard.flops import operators
from costguard.flops.step import Call
from costguard.tracing.masks import EVERY, HALF, Pairs, below_diagonal, pairs_of_mask, window_pairs
from costguard.tracing.needs import needs_gradient


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Iterable[Call]:
    """`scaled_dot_product_attention`: (..., heads, tokens, head size), of a nested tensor each sequence by itself.

    With grouped queries the query's heads count: each of them attends by itself.
    """
    if query.is_nested:
        each = list(zip(query.unbind(), key.unbind(), strict=True))
        pairs = sum(attention_pairs(q.shape, k.shape, 1) for q, k in each)
        shares = HALF if causal else EVERY
    else:
        pairs = attention_pairs(query.shape, key.shape, 1)
        below = below_diagonal(query.shape[-2], key.shape[-2])
        shares = pairs_of_mask(mask) if mask is not None else below if causal else EVERY
    gradients = (needs_gradient(query), needs_gradient(key), needs_gradient(value))
    return attention_calls(pairs, query.shape[-1], value.shape[-1], gradients, shares)


def attention_pairs(query: Sequence[int], key: Sequence[int], heads: int) -> int:
    """Pairs of a query and a key, over all heads and samples, of shapes (..., tokens, size)."""
    return heads * prod(query[:-1]) * key[-2]


def attention_calls(
    pairs: int,
    key_size: int,
    value_size: int,
    gradients: tuple[bool, bool, bool],
    shares: Pairs = EVERY,
) -> Iterable[Call]:
    """The two products of attention.

    Args:
        pairs: Pairs of a query and a key over all heads.
        key_size: Head size of queries and keys.
        value_size: Head size of values.
        gradients: Whether gradients flow to queries, keys, values.
        shares: Which pairs a mask lets through.
    """
    query, key, value = gradients
    scores, values = operators.product(pairs, key_size), operators.product(pairs, value_size)
    yield Call("attention", scores, scores * (query + key), 3 * scores, shares.full, shares.causal)
    # The gradient of the weights is needed only to go on to the scores.
    yield Call("attention", values, values * ((query or key) + value), 3 * values, shares.full, shares.causal)


def module_attention(
    out: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed: int,
    heads: int,
    in_proj: Tensor | None,
    in_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj: Tensor,
    *_: Any,
    **options: Any,
) -> Iterable[Call]:
    """`multi_head_attention_forward`: (tokens, samples, size), or without samples."""
    if options.get("use_separate_proj_weight"):
        weights = [options[name] for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight")]
    else:
        assert in_proj is not None
        weights = [in_proj[i * embed : (i + 1) * embed] for i in range(3)]
    inside = []
    for operand, weight in zip((query, key, value), weights, strict=True):
        rows = operand.numel() // operand.shape[-1]
        forward = operators.product(rows, weight.numel())
        trained = needs_gradient(weight)
        yield Call("linear", forward, forward * (needs_gradient(operand) + trained), 3 * forward)
        inside.append(needs_gradient(operand) or trained)
    more = (bias_k is not None) + bool(add_zero_attn)
    queries, keys, samples = query.shape[0], key.shape[0] + more, prod(query.shape[1:-1])
    shares = _module_mask(options)
    sizes = embed // heads, embed // heads
    yield from attention_calls(heads * samples * queries * keys, *sizes, (inside[0], inside[1], inside[2]), shares)
    forward = operators.product(query.numel() // query.shape[-1], out_proj.numel())
    flows = any(inside)
    yield Call("linear", forward, forward * (flows + needs_gradient(out_proj)), 3 * forward)


def _module_mask(options: Mapping[str, Any]) -> Pairs:
    if options.get("attn_mask") is not None:
        mask = options["attn_mask"]
        return pairs_of_mask(~mask if mask.dtype is torch.bool else mask)  # here `True` is what must not be seen
    if options.get("key_padding_mask") is not None:
        padding = options["key_padding_mask"]
        seen = ~padding if padding.dtype is torch.bool else padding
        return pairs_of_mask(seen[..., None, :])
    return HALF if options.get("is_causal") else EVERY


# -- flash attention: (samples, tokens, heads, size), or all tokens in a row with the sequences' bounds --------------


def flash_attention(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Iterable[Call]:
    """A call of the kernels of the package `flash_attn`, forward or backward.

    Args:
        name: Of the operator, such as `_flash_attn_varlen_forward`.
        args: Its arguments.
        options: Its keywords.

    Source:
        `flash_attn/flash_attn_interface.py`, flash-attn 2.7: the arguments' names and order.
    """
    backward, varlen = name.endswith("backward"), "varlen" in name
    # Backward gets dout, q, k, v, out, lse and the gradients to fill, then goes on as forward does.
    query, key, value = args[1:4] if backward else args[:3]
    rest = list(args[9:] if backward else args[3:])
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k") if varlen else ()
    names = (*names, "dropout_p", "softmax_scale", "causal", "window_size_left", "window_size_right")
    said = {**dict(zip(names, rest, strict=False)), **options}
    heads, size, causal = query.shape[-2], query.shape[-1], bool(said.get("causal"))
    if varlen:
        # The kernel computes the pairs of each sequence and no others.
        queries, keys = (said[n].diff().tolist() for n in names[:2])
        left = said.get("window_size_left", -1)
        window = left + 1 if left is not None and left >= 0 else max([1, *queries])
        seen = [(q * k, window_pairs(q, window, causal=causal)) for q, k in zip(queries, keys, strict=True)]
        inside = sum((count * share.full for count, share in seen), Fraction(0))
        below = sum((count * (share.causal or 0) for count, share in seen), Fraction(0))
        pairs = heads * int(inside)
        shares = Pairs(Fraction(1), below / inside if inside else Fraction(1))
    else:
        tokens, left = query.shape[1], said.get("window_size_left", -1)
        pairs = heads * query.shape[0] * tokens * key.shape[1]
        window = left is not None and 0 <= left < tokens
        shares = window_pairs(tokens, left + 1, causal=causal) if window else HALF if causal else EVERY
    for call in attention_calls(pairs, size, value.shape[-1], (True, True, True), shares):
        done = call.backward if backward else call.forward
        yield call._replace(forward=done, backward=0, whole=done)
