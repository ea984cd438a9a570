"""FLOPs of attention, however it is written, against a count by hand: two products over the pairs of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from counted import count
from torch import Tensor, nn
from torch.nn import functional

B, H, T, D = 2, 4, 8, 16
"""Samples, heads, tokens, head size."""
TRIL = torch.ones(T, T, dtype=torch.bool).tril()
LENGTHS = (3, 5)
BLOCKS = torch.block_diag(*(torch.ones(n, n) for n in LENGTHS)).bool()
WINDOW = TRIL & ~TRIL.tril(-3)
"""Each token sees itself and the two before it."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def scores_and_values(pairs: float, size: int = D) -> float:
    """Two products of so many pairs, each with the gradients of both of its operands."""
    return 3 * (2 * pairs * size + 2 * pairs * size)


def heads(tokens: int = T, number: int = H, size: int = D) -> Tensor:
    return torch.randn(B, number, tokens, size, requires_grad=True)


def additive(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, -math.inf)


# -- one function of torch --------------------------------------------------------------------------------------------

ALL = B * H * T * T
IN_BLOCKS = B * H * (3 * 3 + 5 * 5)
IN_WINDOWS = B * H * T * 3
"""A window is three tokens wide; it is cut off at the first two."""
BELOW_IN_WINDOWS = B * H * (1 + 2 + 6 * 3 - T / 2)
MASKS = {
    # what: (mask, is_causal, pairs in full, pairs that causality leaves)
    "full": (None, False, ALL, ALL),
    "causal": (None, True, ALL, ALL / 2),
    "causal mask": (TRIL, False, ALL, ALL / 2),
    "causal mask that is added": (additive(TRIL), False, ALL, ALL / 2),
    "least numbers instead of infinity": (
        torch.zeros(T, T).masked_fill(~TRIL, torch.finfo(torch.float16).min),
        False,
        ALL,
        ALL / 2,
    ),
    "causal mask of each sample": (TRIL.expand(B, 1, T, T), False, ALL, ALL / 2),
    "packed": (BLOCKS, False, IN_BLOCKS, IN_BLOCKS),
    "packed and causal": (BLOCKS & TRIL, False, IN_BLOCKS, IN_BLOCKS / 2),
    "packed and causal, added": (additive(BLOCKS & TRIL), False, IN_BLOCKS, IN_BLOCKS / 2),
    "sliding window": (WINDOW, False, IN_WINDOWS, BELOW_IN_WINDOWS),
    "padded keys": (torch.tensor([[1] * 8, [1] * 4 + [0] * 4]).bool()[:, None, None], False, ALL, ALL * 3 / 4),
    "mask that hides nothing": (torch.ones(T, T).bool(), False, ALL, ALL),
    "bias on positions": (torch.randn(H, T, T), False, ALL, ALL),
}


@pytest.mark.parametrize("name", MASKS)
def test_fused_attention_is_counted_by_its_mask(name: str) -> None:
    """Packed sequences by the sum of squared lengths, windows by their width; what is executed is all pairs."""
    mask, causal, full, below = MASKS[name]
    counted = count(lambda: functional.scaled_dot_product_attention(heads(), heads(), heads(), mask, is_causal=causal))
    assert counted.full == scores_and_values(full)
    assert counted.causal == scores_and_values(below)
    assert counted.step.work.hardware == scores_and_values(ALL)
    assert counted.step.attention.full == counted.full


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("how", ["matmul", "bmm", "einsum", "baddbmm"])
def test_attention_written_by_hand_is_counted_by_its_mask(name: str, how: str) -> None:
    """Softmax(QK)V has its mask in its scores, whichever function multiplies."""
    mask, causal, full, below = MASKS[name]
    mask = TRIL if causal else mask
    bias = None if mask is None else additive(mask) if mask.dtype is torch.bool else mask
    counted = count(lambda: _by_hand(how, bias, heads(), heads(), heads()))
    assert counted.full == scores_and_values(full)
    # A mask of each sample is folded into the samples; all of them are read.
    assert counted.causal == scores_and_values(below)
    assert counted.torch == scores_and_values(ALL)


def _by_hand(how: str, bias: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    if how == "matmul":
        scores = q @ k.mT / math.sqrt(D)
    elif how == "einsum":
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
    elif how == "bmm":
        scores = torch.bmm(flat[0], flat[1].mT).view(B, H, T, T)
    else:
        scores = torch.baddbmm(torch.zeros(B * H, T, T), flat[0], flat[1].mT).view(B, H, T, T)
    weights = (scores if bias is None else scores + bias).softmax(-1)
    if how == "matmul":
        return weights @ v
    if how == "einsum":
        return torch.einsum("bhqk,bhkd->bhqd", weights, v)
    return torch.bmm(weights.flatten(0, 1), flat[2])


@pytest.mark.parametrize(
    "softmax", [lambda s: functional.softmax(s, -1), lambda s: torch.softmax(s, -1), nn.Softmax(-1)]
)
@pytest.mark.parametrize("size", [T, D])
def test_softmax_by_any_name_and_heads_as_wide_as_tokens(softmax: Any, size: int) -> None:
    """Two layers in a row, where scores may have the shape of queries: neither takes the other's mask."""

    def layers() -> Tensor:
        x = heads(size=size)
        for mask in (additive(TRIL), torch.zeros(T, T)):
            x = softmax(x @ x.mT + mask) @ x
        return x

    counted = count(layers)
    assert counted.full == 2 * scores_and_values(ALL, size)
    assert counted.causal == 1.5 * scores_and_values(ALL, size)


def test_cross_attention_is_over_queries_and_keys() -> None:
    """Three queries of eight keys."""
    counted = count(lambda: functional.scaled_dot_product_attention(heads(3), heads(8), heads(8)))
    assert counted.full == scores_and_values(B * H * 3 * 8)


def test_causal_attention_of_fewer_queries_than_keys_leaves_the_pairs_below_the_diagonal() -> None:
    """Query `i` sees keys up to `i`, the diagonal half: of 4 x 8 pairs 4 x 4 / 2, of 8 x 4 pairs 4 x 4 / 2 + 4 x 4."""
    fewer = count(lambda: functional.scaled_dot_product_attention(heads(4), heads(8), heads(8), is_causal=True))
    assert fewer.causal == scores_and_values(B * H * 8)
    more = count(lambda: functional.scaled_dot_product_attention(heads(8), heads(4), heads(4), is_causal=True))
    assert more.causal == scores_and_values(B * H * 24)


def test_values_may_have_another_size() -> None:
    """Scores are of the keys' size, results of the values' (multi-head latent attention)."""
    counted = count(lambda: functional.scaled_dot_product_attention(heads(), heads(), heads(size=24)))
    assert counted.full == 3 * 2 * ALL * 16 + 3 * 2 * ALL * 24


def test_grouped_queries_count_by_the_querys_heads() -> None:
    """pytorch#177188: 32 heads of queries on 8 of keys cost as 32 of both; torch's own formula asserts equality."""
    q, k, v = heads(number=32), heads(number=8), heads(number=8)
    counted = count(lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    assert counted.full == scores_and_values(B * 32 * T * T)
    repeated = [x.repeat_interleave(4, 1) for x in (k, v)]
    assert count(lambda: functional.scaled_dot_product_attention(q, *repeated)).full == counted.full


@pytest.mark.parametrize(
    ("needs", "products"), [((1, 1, 1), 6), ((0, 0, 1), 3), ((1, 0, 0), 4), ((0, 1, 1), 5), ((0, 0, 0), 2)]
)
def test_attention_costs_the_gradients_that_flow(needs: tuple[int, ...], products: int) -> None:
    """The values' and the weights' gradient are one product each, then the queries' and the keys'."""
    q, k, v = (heads().detach().requires_grad_(bool(flag)) for flag in needs)
    assert count(lambda: functional.scaled_dot_product_attention(q, k, v)).full == products * 2 * ALL * D
    assert count(lambda: (q @ k.mT).softmax(-1) @ v).full == products * 2 * ALL * D


def test_fused_attention_is_counted_once() -> None:
    """pytorch#134804: a fused operator and what it is made of are not both counted; b 2, h 5, s 9, d 4."""
    q = torch.randn(2, 5, 9, 4)
    assert count(lambda: functional.scaled_dot_product_attention(q, q, q)).full == 2 * 2 * (2 * 5 * 9 * 9) * 4


def test_torchs_counter_does_not_see_fused_attention_on_a_cpu() -> None:
    """It has no formula for the CPU's kernel; the cross-check can name it."""
    counted = count(lambda: functional.scaled_dot_product_attention(heads(), heads(), heads()))
    assert counted.torch == 0
    assert any("scaled_dot_product" in name for name in counted.missed)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_nested_sequences_count_each_by_itself() -> None:
    """Packed by jagged tensors: 3 x 3 + 5 x 5 pairs, and linear layers by the tokens that there are."""
    values = [torch.randn(n, 64) for n in LENGTHS]
    layer = nn.Linear(64, 64)

    def step() -> Tensor:
        x = layer(torch.nested.nested_tensor(values, layout=torch.jagged))
        q = x.unflatten(-1, [H, D]).transpose(1, 2)
        return functional.scaled_dot_product_attention(q, q, q)  # causal ones run on GPUs only

    counted = count(step)
    assert counted.full - counted.step.attention.full == 2 * 2 * 8 * 64 * 64
    assert counted.step.attention.full == scores_and_values(H * (9 + 25))
    assert counted.causal == counted.full


def test_a_window_of_1024_in_8192_tokens_is_an_eighth() -> None:
    """Megatron-LM#1475 and others: a sliding window costs its width, not the sequence."""
    window = torch.ones(8192, 8192, dtype=torch.bool).tril_().triu_(-1023)
    q = torch.randn(1, 1, 8192, 1, device="meta")
    counted = count(lambda: (q @ q.mT, None)[0])
    assert counted.full == 2 * 8192 * 8192
    from costguard.tracing.masks import pairs_of_mask

    assert pairs_of_mask(window).full * 8192 * 8192 == 8192 * 1024


def test_eight_sequences_of_1024_packed_into_8192_are_an_eighth() -> None:
    """NeMo-RL#2790: the sum of squared lengths, not the square of their sum."""
    from costguard.tracing.masks import pairs_of_mask

    mask = torch.block_diag(*[torch.ones(128, 128, dtype=torch.bool)] * 8)
    assert pairs_of_mask(mask).full * 1024**2 == 8 * 128**2


# -- nn.MultiheadAttention --------------------------------------------------------------------------------------------

E = H * D
ONE = 2 * B * T * E * E
"""One projection forward."""
PAIRS = scores_and_values(ALL)


def _module(**options: Any) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(E, H, batch_first=True, **options)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_the_module_is_four_projections_and_attention(weights: bool, masked: bool) -> None:
    """As a first layer: no gradient of the input; by a mask half of its pairs, with weights returned or not."""
    module, x = _module(), torch.randn(B, T, E)
    mask = ~TRIL if masked else None  # `True` is hidden here
    counted = count(lambda: module(x, x, x, attn_mask=mask, need_weights=weights))
    assert counted.full == 2 * 3 * ONE + 3 * ONE + PAIRS
    assert counted.causal == counted.full - (PAIRS / 2 if masked else 0)
    assert counted.torch == (counted.full if weights else counted.full - PAIRS)


@pytest.mark.parametrize(
    ("module", "keys"),
    [(_module(bias=False), T), (_module(add_bias_kv=True), T + 1), (_module(add_zero_attn=True), T + 1)],
)
def test_the_module_counts_keys_of_its_own(module: nn.MultiheadAttention, keys: int) -> None:
    """A bias or a zero beside the keys is one key more; projections' biases are no products."""
    x = torch.randn(B, T, E)
    assert count(lambda: module(x, x, x)).full == 9 * ONE + scores_and_values(B * H * T * keys)


def test_the_module_projects_other_sizes() -> None:
    """Keys and values of their own size have weights of their own shape."""
    module, q, k, v = _module(kdim=24, vdim=40), torch.randn(B, T, E), torch.randn(B, 5, 24), torch.randn(B, 5, 40)
    projections = 2 * (B * T * E * E + B * 5 * 24 * E + B * 5 * 40 * E)
    assert count(lambda: module(q, k, v)).full == 2 * projections + 3 * ONE + scores_and_values(B * H * T * 5)


def test_the_module_of_one_sequence() -> None:
    """Without samples."""
    module, x = nn.MultiheadAttention(E, H), torch.randn(T, E)
    assert count(lambda: module(x, x, x)).full == (9 * ONE + PAIRS) / B


def test_a_frozen_module_passes_gradients_through() -> None:
    """Activation gradients of the projections, none of weights; nothing at all below the first trained layer."""
    module = _module().requires_grad_(False)
    x = torch.randn(B, T, E)
    assert count(lambda: module(x, x, x)).full == 4 * ONE + PAIRS / 3
    x.requires_grad_()
    assert count(lambda: module(x, x, x)).full == 2 * 4 * ONE + PAIRS


def test_padding_in_the_module_hides_keys() -> None:
    """`key_padding_mask`: the half sample that is padding is left out of the strict count alone."""
    module, x = _module(), torch.randn(B, T, E)
    padding = torch.tensor([[0] * 8, [0] * 4 + [1] * 4]).bool()
    counted = count(lambda: module(x, x, x, key_padding_mask=padding))
    assert counted.full == 9 * ONE + PAIRS
    assert counted.causal == 9 * ONE + PAIRS * 3 / 4


def test_a_boolean_mask_of_the_function_hides_where_it_is_true() -> None:
    """`multi_head_attention_forward` called by itself takes masks the other way round than fused attention."""
    module, x = nn.MultiheadAttention(E, H), torch.randn(T, B, E)
    blocks = ~BLOCKS
    counted = count(
        lambda: functional.multi_head_attention_forward(
            x, x, x, E, H, module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0,
            module.out_proj.weight, module.out_proj.bias, attn_mask=blocks,
        )
    )  # fmt: skip
    assert counted.step.attention.full == scores_and_values(IN_BLOCKS)


@pytest.mark.parametrize("grad", [True, False])
def test_a_causal_encoder_counts_half(grad: bool) -> None:
    """`nn.TransformerEncoder` with torch's own causal mask, trained and in eval."""
    layer = nn.TransformerEncoderLayer(E, H, 4 * E, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(grad)
    x, mask = torch.randn(B, T, E), nn.Transformer.generate_square_subsequent_mask(T)

    def step() -> Tensor:
        with torch.set_grad_enabled(grad):
            return encoder(x, mask=mask, is_causal=True)

    counted = count(step)
    assert counted.step.attention.full == 2 * (PAIRS if grad else PAIRS / 3)
    assert counted.causal == counted.full - counted.step.attention.full / 2
