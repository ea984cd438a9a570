"""What runs in backward, in kernels of one's own and under autocast: counted once, or named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from counted import count
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def product(rows: int, inner: int, columns: int) -> int:
    """FLOPs of a product of matrices."""
    return 2 * rows * inner * columns


# -- activation checkpointing -----------------------------------------------------------------------------------------

ROWS = 5


def _mlps(how: bool | None, blocks: int = 2) -> Callable[[], Tensor]:
    """Blocks of 6 to 8 to 6 behind an embedding, then a head; `how` is `use_reentrant`, `None` checkpoints nothing."""
    tokens = nn.Embedding(9, 6)
    mlps = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)) for _ in range(blocks)]
    head = nn.Linear(6, 3)

    def step() -> Tensor:
        x = tokens(torch.arange(ROWS))
        for mlp in mlps:
            x = mlp(x) if how is None else checkpoint(mlp, x, use_reentrant=how)
        return head(x)

    return step


@pytest.mark.parametrize("how", [None, False, True])
def test_checkpointing_changes_what_is_executed_and_not_the_model(how: bool | None) -> None:
    """Reentrant recomputes each block whole; the other kind stops before the last product, which nothing needs."""
    counted = count(_mlps(how))
    model = 3 * (2 * (product(ROWS, 6, 8) + product(ROWS, 8, 6)) + product(ROWS, 6, 3))
    again = {None: 0, False: 2 * product(ROWS, 6, 8), True: 2 * (product(ROWS, 6, 8) + product(ROWS, 8, 6))}[how]
    assert counted.full == model
    assert counted.step.recomputed == again
    assert counted.step.work.hardware == model + again == counted.torch


@pytest.mark.parametrize("how", [False, True])
def test_checkpointed_blocks_in_checkpointed_blocks(how: bool) -> None:
    """Recomputation of a recomputation is recomputation; the model stays what it is."""
    inner, head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)), nn.Linear(6, 6)

    def step() -> Tensor:
        x = torch.randn(ROWS, 6, requires_grad=True)
        return checkpoint(lambda y: head(checkpoint(inner, y, use_reentrant=how)), x, use_reentrant=how)

    counted = count(step)
    assert counted.full == 3 * (product(ROWS, 6, 8) + product(ROWS, 8, 6) + product(ROWS, 6, 6))
    assert counted.step.work.hardware == counted.torch


def test_frozen_checkpointed_layers_cost_no_weight_gradients() -> None:
    """Which gradients flow is known only when the block is computed again."""
    mlp = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).requires_grad_(False)
    x = torch.randn(ROWS, 6, requires_grad=True)
    counted = count(lambda: checkpoint(mlp, x, use_reentrant=True))
    assert counted.full == 2 * (product(ROWS, 6, 8) + product(ROWS, 8, 6))
    assert counted.step.recomputed == product(ROWS, 6, 8) + product(ROWS, 8, 6)


@pytest.mark.parametrize("how", [False, True])
def test_only_some_blocks_are_checkpointed(how: bool) -> None:
    """Blocks of one shape, every second one checkpointed: each has its gradients once."""
    blocks = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)) for _ in range(4)]

    def step() -> Tensor:
        x = torch.randn(ROWS, 6, requires_grad=True)
        for at, block in enumerate(blocks):
            x = checkpoint(block, x, use_reentrant=how) if at % 2 else block(x)
        return x

    counted = count(step)
    assert counted.full == 3 * 4 * (product(ROWS, 6, 8) + product(ROWS, 8, 6))
    assert counted.step.recomputed == 2 * (product(ROWS, 6, 8) + how * product(ROWS, 8, 6))
    assert counted.step.work.hardware == counted.torch


@pytest.mark.parametrize("how", [False, True])
def test_an_autograd_function_in_a_checkpoint_is_forward_again(how: bool) -> None:
    """Its forward runs without gradients inside backward, and is recomputation all the same."""
    weight, last = nn.Parameter(torch.randn(10, 6)), nn.Linear(10, 3)

    def step() -> Tensor:
        x = torch.randn(ROWS, 6, requires_grad=True)
        return checkpoint(lambda y: last(OwnLinear.apply(y, weight).tanh()), x, use_reentrant=how)

    counted = count(step)
    assert counted.full == 3 * (product(ROWS, 6, 10) + product(ROWS, 10, 3))
    assert counted.step.recomputed == product(ROWS, 6, 10) + how * product(ROWS, 10, 3)
    assert counted.step.work.hardware == counted.torch


# -- somebody's own functions -----------------------------------------------------------------------------------------


class OwnLinear(torch.autograd.Function):
    """A linear layer whose backward is written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grads[0] @ weight, grads[0].T @ x


def test_an_autograd_function_of_torch_operators_is_seen_both_ways() -> None:
    """Its products forward, and those that its own backward makes."""
    x, weight = torch.randn(4, 6, requires_grad=True), nn.Parameter(torch.randn(10, 6))
    counted = count(lambda: OwnLinear.apply(x, weight))
    assert counted.full == 3 * product(4, 6, 10) == counted.torch
    assert counted.step.recomputed == 0


@pytest.fixture(scope="module")
def triple() -> Iterator[Any]:
    """An operator of a library that nobody knows."""
    library = torch.library.Library("costguard_test", "DEF")
    library.define("triple(Tensor x) -> Tensor")
    library.impl("triple", lambda x: x * 3, "CPU")
    yield torch.ops.costguard_test.triple
    library._destroy()


def test_a_kernel_of_somebodys_own_is_named_by_both_counts(triple: Any) -> None:
    """pytorch#131041: what cannot be counted is not 0 without a word."""
    layer = nn.Linear(6, 10)
    counted = count(lambda: layer(triple(torch.randn(4, 6))))
    assert counted.full == 2 * product(4, 6, 10)
    assert counted.step.unseen == ("costguard_test::triple",)
    assert counted.missed == ("costguard_test::triple",)


def test_gradients_of_gradients_are_named() -> None:
    """`torch.autograd.grad` is no part of the count, and the count says so."""
    x, layer = torch.randn(4, 6, requires_grad=True), nn.Linear(6, 3)

    def step() -> Tensor:
        (slope,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
        return slope.square()

    counted = count(step)
    assert "torch.autograd.grad" in counted.step.unseen


def test_what_has_no_loss_costs_only_forward() -> None:
    """A branch whose result is thrown away gets no gradient."""
    used, spare, x = nn.Linear(6, 10), nn.Linear(6, 20), torch.randn(4, 6)
    counted = count(lambda: (used(x), spare(x))[0])
    assert counted.full == 2 * product(4, 6, 10) + product(4, 6, 20) == counted.torch


def test_the_last_state_alone_lets_gradients_through_a_recurrent_layer() -> None:
    """A result of several parts is in the loss when one of them is."""
    layer, x = nn.LSTM(3, 5), torch.randn(7, 2, 3)
    assert count(lambda: layer(x)[1][0]).full == count(lambda: layer(x)[0]).full


def test_two_losses_are_two_backwards() -> None:
    """As with two optimizers: what either of them reaches counts once."""
    one, two, x = nn.Linear(6, 10), nn.Linear(6, 20), torch.randn(4, 6)

    def step() -> Tensor:
        one(x).sum().backward()
        return two(x)

    assert count(step).full == 2 * product(4, 6, 10) + 2 * product(4, 6, 20)


def test_a_result_given_by_keyword_is_no_operand() -> None:
    """`out=` does not confuse the rules."""
    a, b, out = torch.randn(4, 6), torch.randn(6, 5), torch.empty(4, 5)
    counted = count(lambda: torch.mm(a, b, out=out))
    assert (counted.full, counted.step.unseen) == (product(4, 6, 5), ())


def test_tied_embeddings_are_no_lookups_of_their_own() -> None:
    """torchtitan#452, trl#5698: a tied head is a product once, an untied embedding a lookup; both cost the same."""
    ids, bag = torch.arange(4), nn.EmbeddingBag(11, 6)
    costs = []
    for tied, lookups in ((True, 0), (False, 66)):
        tokens, head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        if tied:
            head.weight = tokens.weight
        counted = count(lambda tokens=tokens, head=head: head(tokens(ids)))  # type: ignore[misc]
        assert counted.step.lookup_parameters == lookups
        costs.append(counted.full)
    assert costs == [3 * product(4, 6, 11)] * 2
    assert count(lambda: bag(ids.view(2, 2))).step.lookup_parameters == 66


# -- what products run in ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_says_what_products_run_in(dtype: torch.dtype) -> None:
    """The parameters are float32, their products are not."""
    layer = nn.Linear(6, 10)

    def step() -> Tensor:
        with torch.autocast("cpu", dtype):
            return layer(torch.randn(4, 6)).float()

    counted = count(step)
    assert counted.step.dtype == str(dtype).removeprefix("torch.")
    assert counted.full == 2 * product(4, 6, 10) == counted.torch


def test_the_dtype_is_that_of_most_flops() -> None:
    """A small part in float64 does not decide."""
    large, small = nn.Linear(60, 60), nn.Linear(60, 2).double()
    assert count(lambda: small(large(torch.randn(4, 60)).double())).step.dtype == "float32"


# -- flash attention --------------------------------------------------------------------------------------------------

_OPTIONS = "float dropout_p, float softmax_scale, bool causal, SymInt window_size_left, SymInt window_size_right"
_BOUNDS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
_GRADS = "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor? dq, Tensor? dk, Tensor? dv"


@pytest.fixture(scope="module")
def flash() -> Iterator[Any]:
    """Operators with the names and the arguments of flash-attn 2.7, which compute nothing."""
    library = torch.library.Library("flash_attn", "DEF")
    for name, bounds in (("_flash_attn", ""), ("_flash_attn_varlen", f"{_BOUNDS}, ")):
        library.define(f"{name}_forward(Tensor q, Tensor k, Tensor v, {bounds}{_OPTIONS}) -> Tensor")
        library.define(f"{name}_backward({_GRADS}, {bounds}{_OPTIONS}) -> Tensor")
        library.impl(f"{name}_forward", lambda q, *_: q.clone(), "CPU")
        library.impl(f"{name}_backward", lambda dout, *_: dout.clone(), "CPU")
    yield torch.ops.flash_attn
    library._destroy()


def _flash(ops: Any, name: str, bounds: tuple[Any, ...], causal: bool, window: int) -> Any:
    class Flash(torch.autograd.Function):
        """As `FlashAttnFunc` is written: forward and backward each one operator."""

        @staticmethod
        def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = getattr(ops, f"{name}_forward")(q, k, v, *bounds, 0.0, 1.0, causal, window, window)
            ctx.save_for_backward(q, k, v, out)
            return out

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            q, k, v, out = ctx.saved_tensors
            backward = getattr(ops, f"{name}_backward")
            dq = backward(grads[0], q, k, v, out, out, None, None, None, *bounds, 0.0, 1.0, causal, window, window)
            return dq, torch.zeros_like(k), torch.zeros_like(v)

    return Flash.apply


B, T, H, D = 2, 8, 4, 16
EACH = 3 * 2 * 2 * D
"""FLOPs of a pair of tokens: two products and two gradients of each."""


@pytest.mark.parametrize(
    ("causal", "window", "full", "below"),
    [
        (False, -1, T * T, T * T),
        (True, -1, T * T, T * T / 2),
        (True, 2, T * 3, 1 + 2 + 6 * 3 - T / 2),
    ],
)
@pytest.mark.parametrize("key_heads", [H, 1])
def test_flash_attention_is_samples_tokens_heads(
    flash: Any, causal: bool, window: int, full: float, below: float, key_heads: int
) -> None:
    """pytorch#178064: its layout has tokens before heads; queries' heads count, and torch's counter sees nothing."""
    q = torch.randn(B, T, H, D, requires_grad=True)
    k, v = (torch.randn(B, T, key_heads, D, requires_grad=True) for _ in range(2))
    counted = count(lambda: _flash(flash, "_flash_attn", (), causal, window)(q, k, v))
    assert counted.full == B * H * full * EACH
    assert counted.causal == B * H * below * EACH
    assert counted.step.unseen == ()
    assert counted.torch == 0
    assert counted.missed == ("flash_attn::_flash_attn_backward", "flash_attn::_flash_attn_forward")


@pytest.mark.parametrize("causal", [False, True])
def test_packed_flash_attention_is_the_sum_of_squared_lengths(flash: Any, causal: bool) -> None:
    """`cu_seqlens` says where sequences end: 3 x 3 + 5 x 5 pairs, not 8 x 8."""
    bounds = torch.tensor([0, 3, 8], dtype=torch.int32)
    q = torch.randn(8, H, D, requires_grad=True)
    counted = count(lambda: _flash(flash, "_flash_attn_varlen", (bounds, bounds, 5, 5), causal, -1)(q, q, q))
    assert counted.full == H * (9 + 25) * EACH
    assert counted.causal == H * (9 + 25) * EACH / (2 if causal else 1)


def test_grouped_products_of_experts_count_the_rows_that_ran() -> None:
    """`torch._grouped_mm`: each row meets the weights of its own expert only."""
    x = torch.randn(16, 32, dtype=torch.bfloat16)
    weights = torch.randn(4, 32, 48, dtype=torch.bfloat16)
    ends = torch.tensor([4, 4, 12, 16], dtype=torch.int32)
    assert count(lambda: functional.grouped_mm(x, weights, offs=ends)).full == product(16, 32, 48)
    assert count(lambda: torch._grouped_mm(x, weights, offs=ends)).full == product(16, 32, 48)
