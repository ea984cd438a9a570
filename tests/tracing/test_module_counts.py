"""FLOPs of small modules of each kind, against a count by hand written out beside them, to the last FLOP.

A product of (rows, inner) with (inner, columns) is 2 x rows x inner x columns; each of its two gradients is as much
again. `product` is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from counted import count
from torch import Tensor, nn
from torch.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
STEP = Callable[[], Any]


def product(rows: int, inner: int, columns: int) -> int:
    """FLOPs of a product of matrices by the schoolbook."""
    return 2 * rows * inner * columns


@dataclass(frozen=True)
class Case:
    """A step and what it costs.

    Args:
        id: What it is.
        make: Makes the step.
        full: FLOPs by hand, attention in full.
        causal: FLOPs by hand, the half that a causal mask leaves; as `full` if not said.
        torch: What torch's own counter says: `None` where it is right in full, a number where it is not.
        why: Why torch's counter is not right.
    """

    id: str
    make: Callable[[], STEP]
    full: int
    causal: int | None = None
    torch: int | None = None
    why: str = ""


def _on(module: nn.Module, *shape: int, needs: bool = False, frozen: bool = False) -> Callable[[], STEP]:
    def make() -> STEP:
        module.requires_grad_(not frozen)
        x = torch.randn(shape, requires_grad=needs)
        return lambda: module(x)

    return make


def _call(function: Callable[..., Any], *shapes: tuple[int, ...], needs: str | None = None) -> Callable[[], STEP]:
    """A function of random tensors; `needs` has a `1` for each that requires a gradient (by default all)."""

    def make() -> STEP:
        flags = needs or "1" * len(shapes)
        tensors = [torch.randn(s, requires_grad=f == "1") for s, f in zip(shapes, flags, strict=True)]
        return lambda: function(*tensors)

    return make


def _swiglu() -> STEP:
    up, gate, down = nn.Linear(8, 28), nn.Linear(8, 28), nn.Linear(28, 8)
    return lambda: down(functional.silu(gate(x)) * up(x)) if (x := torch.randn(4, 5, 8)) is not None else None


# -- linear layers ----------------------------------------------------------------------------------------------------

LINEAR = [
    # The input of a first layer needs no gradient: forward and the weight's gradient.
    Case("first layer", _on(nn.Linear(6, 10), 4, 6), 2 * product(4, 6, 10)),
    Case("later layer", _on(nn.Linear(6, 10), 4, 6, needs=True), 3 * product(4, 6, 10)),
    Case("frozen later layer", _on(nn.Linear(6, 10), 4, 6, needs=True, frozen=True), 2 * product(4, 6, 10)),
    Case("frozen first layer", _on(nn.Linear(6, 10), 4, 6, frozen=True), product(4, 6, 10)),
    Case("without bias", _on(nn.Linear(6, 10, bias=False), 4, 6), 2 * product(4, 6, 10)),
    Case("batch of one", _on(nn.Linear(6, 10), 1, 6), 2 * product(1, 6, 10)),
    Case("vector", _on(nn.Linear(6, 10), 6), 2 * product(1, 6, 10)),
    Case("samples of tokens", _on(nn.Linear(6, 10), 4, 5, 6), 2 * product(20, 6, 10)),
    Case("empty batch", _on(nn.Linear(6, 10), 0, 6), 0),
    Case("lazy", lambda: (m := nn.LazyLinear(10)) and (lambda: m(torch.randn(4, 6))), 2 * product(4, 6, 10)),
    Case(
        "frozen layers below the first trained one cost only forward",
        lambda: (
            (m := nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 10), nn.Linear(10, 3)))
            and m[0].requires_grad_(False)
            and (lambda: m(torch.randn(4, 6)))
        ),
        product(4, 6, 8) + 2 * product(4, 8, 10) + 3 * product(4, 10, 3),
    ),
    Case(
        "bilinear",
        _call(functional.bilinear, (4, 5), (4, 6), (7, 5, 6)),
        4 * product(4 * 7 * 5, 6, 1),
        torch=-1,
        why="no formula",
    ),
    Case("SwiGLU of 3.5 widths", _swiglu, 2 * 2 * product(20, 8, 28) + 3 * product(20, 28, 8)),
]


# -- products by any name -------------------------------------------------------------------------------------------

PRODUCTS = [
    Case("matmul", _call(torch.matmul, (4, 6), (6, 5)), 3 * product(4, 6, 5)),
    Case("@", _call(lambda a, b: a @ b, (4, 6), (6, 5)), 3 * product(4, 6, 5)),
    Case("reflected", _call(lambda a, b: Tensor.__rmatmul__(b, a), (4, 6), (6, 5)), 3 * product(4, 6, 5)),
    Case(
        "matmul of one operand with a gradient", _call(torch.matmul, (4, 6), (6, 5), needs="01"), 2 * product(4, 6, 5)
    ),
    Case("matmul that broadcasts", _call(torch.matmul, (3, 4, 6), (6, 5)), 3 * product(12, 6, 5)),
    Case("matrix by vector", _call(torch.matmul, (4, 6), (6,)), 3 * product(4, 6, 1), torch=-1, why="mv"),
    Case("mm", _call(torch.mm, (4, 6), (6, 5)), 3 * product(4, 6, 5)),
    Case("Tensor.mm", _call(Tensor.mm, (4, 6), (6, 5)), 3 * product(4, 6, 5)),
    Case("bmm", _call(torch.bmm, (3, 4, 6), (3, 6, 5)), 3 * 3 * product(4, 6, 5)),
    Case("linalg.matmul", _call(torch.linalg.matmul, (4, 6), (6, 5)), 3 * product(4, 6, 5)),
    Case("addmm", _call(torch.addmm, (4, 5), (4, 6), (6, 5)), 3 * product(4, 6, 5)),
    Case("baddbmm", _call(torch.baddbmm, (3, 4, 5), (3, 4, 6), (3, 6, 5)), 3 * 3 * product(4, 6, 5)),
    Case("addbmm", _call(torch.addbmm, (4, 5), (3, 4, 6), (3, 6, 5)), 3 * 3 * product(4, 6, 5), torch=-1, why="addbmm"),
    Case("einsum", _call(lambda a, b: torch.einsum("ij,jk->ik", a, b), (4, 6), (6, 5)), 3 * product(4, 6, 5)),
    Case("einsum of a list", _call(lambda a, b: torch.einsum("ij,jk", [a, b]), (4, 6), (6, 5)), 3 * product(4, 6, 5)),
    Case(
        "einsum with an ellipsis",
        _call(lambda a, b: torch.einsum("...d,hd->...h", a, b), (2, 3, 4), (5, 4)),
        3 * product(6, 4, 5),
    ),
    Case(
        "einsum of experts",
        _call(lambda a, b: torch.einsum("ecd,edf->ecf", a, b), (3, 4, 6), (3, 6, 5)),
        3 * 3 * product(4, 6, 5),
    ),
    Case("tensordot", _call(lambda a, b: torch.tensordot(a, b, dims=2), (4, 2, 3), (2, 3, 5)), 3 * product(4, 6, 5)),
    Case(
        "tensordot over named dimensions",
        _call(lambda a, b: torch.tensordot(a, b, dims=([0], [1])), (6, 4), (5, 6)),
        3 * product(4, 6, 5),
    ),
]


# -- convolutions -----------------------------------------------------------------------------------------------------

CONVOLUTIONS = [
    # outputs x channels of a group x kernel
    Case("conv1d", _on(nn.Conv1d(3, 8, 5), 2, 3, 20), 2 * product(2 * 16, 3 * 5, 8)),
    Case("conv2d", _on(nn.Conv2d(3, 8, 3, padding=1), 2, 3, 6, 7), 2 * product(2 * 42, 3 * 9, 8)),
    Case("conv2d of a later layer", _on(nn.Conv2d(3, 8, 3), 2, 3, 6, 7, needs=True), 3 * product(2 * 20, 3 * 9, 8)),
    Case("conv2d frozen", _on(nn.Conv2d(3, 8, 3), 2, 3, 6, 7, needs=True, frozen=True), 2 * product(2 * 20, 27, 8)),
    Case("conv2d with stride", _on(nn.Conv2d(3, 8, 2, stride=2), 2, 3, 6, 8), 2 * product(2 * 12, 3 * 4, 8)),
    Case("conv2d dilated", _on(nn.Conv2d(3, 8, 3, dilation=2), 2, 3, 6, 8), 2 * product(2 * 2 * 4, 27, 8)),
    Case(
        "conv2d circular",
        _on(nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"), 2, 3, 6, 7),
        2 * product(84, 27, 8),
    ),
    Case("conv2d of one sample", _on(nn.Conv2d(3, 8, 3), 3, 6, 7), 2 * product(20, 27, 8)),
    Case("conv3d", _on(nn.Conv3d(2, 4, 2), 1, 2, 3, 4, 5), 2 * product(2 * 3 * 4, 2 * 8, 4)),
    Case(
        "grouped", _on(nn.Conv2d(4, 8, 3, groups=2), 2, 4, 6, 7), 2 * product(2 * 20, 2 * 9, 8), torch=-1, why="groups"
    ),
    Case("depthwise", _on(nn.Conv1d(4, 4, 3, groups=4), 2, 4, 10), 2 * product(2 * 8, 3, 4), torch=-1, why="groups"),
    # A transposed convolution spreads each input: inputs x channels of a group out x kernel.
    Case("transposed 1d", _on(nn.ConvTranspose1d(3, 8, 4, stride=2), 2, 3, 5), 2 * product(2 * 5, 3, 8 * 4)),
    Case("transposed 2d", _on(nn.ConvTranspose2d(3, 8, 2, stride=2), 2, 3, 4, 5), 2 * product(2 * 20, 3, 8 * 4)),
    Case("transposed 2d, later", _on(nn.ConvTranspose2d(3, 8, 3), 2, 3, 4, 5, needs=True), 3 * product(40, 3, 8 * 9)),
    Case("transposed 3d", _on(nn.ConvTranspose3d(2, 4, 2), 1, 2, 3, 3, 3), 2 * product(27, 2, 4 * 8)),
    Case(
        "transposed grouped",
        _on(nn.ConvTranspose2d(4, 8, 3, groups=2), 2, 4, 4, 5),
        2 * product(40, 4, 4 * 9),
        torch=-1,
        why="groups",
    ),
]


# -- embeddings -------------------------------------------------------------------------------------------------------


class Tower(nn.Module):
    """An embedding and a head, tied or not."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.tokens(ids))


IDS = torch.arange(8).view(2, 4)
EMBEDDINGS = [
    Case("a lookup is no product", lambda: (m := nn.Embedding(11, 6)) and (lambda: m(IDS)), 0),
    Case("untied head", lambda: (m := Tower(tied=False)) and (lambda: m(IDS)), 3 * product(8, 6, 11)),
    Case("tied head", lambda: (m := Tower(tied=True)) and (lambda: m(IDS)), 3 * product(8, 6, 11)),
    Case("embedding bag", lambda: (m := nn.EmbeddingBag(11, 6)) and (lambda: m(IDS)), 0),
]


# -- recurrent layers -------------------------------------------------------------------------------------------------


def _rnn(
    gates: int, steps: int, first: int, wide: int, hidden: int, *, needs: bool = False, state: bool = False
) -> int:
    """One layer in one direction: forward and weights twice, the input's gradient, the state's but for the first."""
    both = product(steps, wide, gates * hidden) + product(steps, hidden, gates * hidden)
    backwards = steps if state else steps - first
    return 2 * both + needs * product(steps, wide, gates * hidden) + product(backwards, hidden, gates * hidden)


def _projected(steps: int, first: int, wide: int, hidden: int, proj: int) -> int:
    forward = product(steps, wide, 4 * hidden) + product(steps, proj, 4 * hidden) + product(steps, hidden, proj)
    return 2 * forward + product(steps - first, proj, 4 * hidden) + product(steps, hidden, proj)


def _packed(module: nn.Module, lengths: list[int]) -> Callable[[], STEP]:
    def make() -> STEP:
        x = torch.randn(len(lengths), max(lengths), 3)
        rows = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        return lambda: module(rows)[0].data

    return make


def _with_state() -> STEP:
    module, x, h = nn.GRU(3, 5), torch.randn(7, 2, 3), torch.zeros(1, 2, 5, requires_grad=True)
    return lambda: module(x, h)


def _cells() -> STEP:
    cell, x = nn.LSTMCell(3, 5), torch.randn(4, 2, 3)

    def step() -> Tensor:
        state = None
        for frame in x:
            state = cell(frame, state)
        assert state is not None
        return state[0]

    return step


RECURRENT = [
    Case("RNN", _on(nn.RNN(3, 5), 7, 2, 3), _rnn(1, 14, 2, 3, 5)),
    Case("RNN of relu", _on(nn.RNN(3, 5, nonlinearity="relu"), 7, 2, 3), _rnn(1, 14, 2, 3, 5)),
    Case("GRU", _on(nn.GRU(3, 5), 7, 2, 3), _rnn(3, 14, 2, 3, 5)),
    Case("LSTM", _on(nn.LSTM(3, 5), 7, 2, 3), _rnn(4, 14, 2, 3, 5)),
    Case("LSTM without bias", _on(nn.LSTM(3, 5, bias=False), 7, 2, 3), _rnn(4, 14, 2, 3, 5)),
    Case("LSTM, samples first", _on(nn.LSTM(3, 5, batch_first=True), 2, 7, 3), _rnn(4, 14, 2, 3, 5)),
    Case("LSTM of one sequence", _on(nn.LSTM(3, 5), 7, 3), _rnn(4, 7, 1, 3, 5)),
    Case("LSTM of a later layer", _on(nn.LSTM(3, 5), 7, 2, 3, needs=True), _rnn(4, 14, 2, 3, 5, needs=True)),
    Case("GRU whose first state is trained", _with_state, _rnn(3, 14, 2, 3, 5, state=True)),
    Case("frozen first LSTM", _on(nn.LSTM(3, 5), 7, 2, 3, frozen=True), product(14, 3, 20) + product(14, 5, 20)),
    Case(
        "frozen later LSTM",
        _on(nn.LSTM(3, 5), 7, 2, 3, needs=True, frozen=True),
        2 * product(14, 3, 20) + product(14, 5, 20) + product(12, 5, 20),
    ),
    Case("two layers", _on(nn.LSTM(3, 5, 2), 7, 2, 3), _rnn(4, 14, 2, 3, 5) + _rnn(4, 14, 2, 5, 5, needs=True)),
    Case("both directions", _on(nn.GRU(3, 5, bidirectional=True), 7, 2, 3), 2 * _rnn(3, 14, 2, 3, 5)),
    Case(
        "two layers in both directions",
        _on(nn.LSTM(3, 5, 2, bidirectional=True), 7, 2, 3),
        2 * _rnn(4, 14, 2, 3, 5) + 2 * _rnn(4, 14, 2, 10, 5, needs=True),
    ),
    Case("projected", _on(nn.LSTM(3, 6, proj_size=4), 7, 2, 3), _projected(14, 2, 3, 6, 4)),
    Case("projected without bias", _on(nn.LSTM(3, 6, proj_size=4, bias=False), 7, 2, 3), _projected(14, 2, 3, 6, 4)),
    Case("packed LSTM", _packed(nn.LSTM(3, 5, batch_first=True), [7, 2, 4]), _rnn(4, 13, 3, 3, 5)),
    Case("packed GRU", _packed(nn.GRU(3, 5, batch_first=True), [7, 2, 4]), _rnn(3, 13, 3, 3, 5)),
    # The first state is a constant; four steps of a cell are four steps of a layer.
    Case("LSTM cells", _cells, _rnn(4, 8, 2, 3, 5)),
    Case("GRU cell", _on(nn.GRUCell(3, 5), 2, 3), 2 * (product(2, 3, 15) + product(2, 5, 15))),
    Case("RNN cell", _on(nn.RNNCell(3, 5), 2, 3), 2 * (product(2, 3, 5) + product(2, 5, 5))),
]
"""Torch's counter is held against none of these: which of its operators run on a CPU depends on the build."""


# -- frozen and trained -----------------------------------------------------------------------------------------------


class LoRA(nn.Module):
    """A frozen layer and beside it a trained one of low rank."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(rank, inputs)), nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.a.T) @ self.b.T


def _tower_without_gradient() -> STEP:
    tower, head, x = nn.Linear(6, 8), nn.Linear(8, 3), torch.randn(4, 6)

    def step() -> Tensor:
        with torch.no_grad():
            seen = tower(x)
        return head(seen)

    return step


def _encoder(*, train: bool) -> STEP:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(train)
    x = torch.randn(3, 5, 8)

    def step() -> Any:
        with torch.set_grad_enabled(train):
            return encoder(x)

    return step


class Experts(nn.Module):
    """Sends each token to one of four experts; token `i` goes to expert `i % used`."""

    def __init__(self, used: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.used = used

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        goes = torch.arange(len(x)) % self.used
        for at, expert in enumerate(self.experts):
            rows = (goes == at).nonzero().flatten()
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]))
        return out


def _teacher_detached() -> STEP:
    teacher, student, x = nn.Linear(6, 8), nn.Linear(6, 8), torch.randn(4, 6)
    return lambda: functional.mse_loss(student(x), teacher(x).detach())


_LINEARS = product(15, 8, 24) + product(15, 8, 8) + product(15, 8, 16) + product(15, 16, 8)
_PAIRS = product(3 * 2 * 5, 4, 5)
FROZEN = [
    Case(
        "LoRA in a first layer",
        lambda: (m := LoRA(6, 8, 2)) and (lambda: m(torch.randn(4, 6))),
        product(4, 6, 8) + 2 * product(4, 6, 2) + 3 * product(4, 2, 8),
    ),
    Case(
        "LoRA in a later layer",
        lambda: (m := nn.Sequential(LoRA(6, 8, 2), LoRA(8, 8, 2))) and (lambda: m(torch.randn(4, 6))),
        product(4, 6, 8)
        + 2 * product(4, 6, 2)
        + 3 * product(4, 2, 8)
        + 2 * product(4, 8, 8)
        + 3 * product(4, 8, 2)
        + 3 * product(4, 2, 8),
    ),
    Case("tower under no_grad", _tower_without_gradient, product(4, 6, 8) + 2 * product(4, 8, 3)),
    Case("teacher whose result is detached", _teacher_detached, product(4, 6, 8) + 2 * product(4, 6, 8)),
    Case("two experts of four", lambda: (m := Experts(2)) and (lambda: m(torch.randn(10, 6))), 2 * product(10, 6, 6)),
    Case("all experts", lambda: (m := Experts(4)) and (lambda: m(torch.randn(10, 6))), 2 * product(10, 6, 6)),
    Case(
        "encoder that trains",
        lambda: _encoder(train=True),
        # The first layer's attention reads the input, which needs no gradient.
        2 * 3 * _LINEARS - product(15, 8, 24) + 2 * 3 * 2 * _PAIRS,
        torch=-1,
        why="scaled_dot_product_attention on a CPU",
    ),
    Case(
        "encoder in its fast path", lambda: _encoder(train=False), 2 * _LINEARS + 2 * 2 * _PAIRS, torch=-1, why="fused"
    ),
]

TABLE = [*LINEAR, *PRODUCTS, *CONVOLUTIONS, *EMBEDDINGS, *FROZEN]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in [*TABLE, *RECURRENT]])
def test_step_costs_what_it_does_by_hand(case: Case) -> None:
    """Forward, the activations' gradients where they flow, the weights' where they are trained: to the last FLOP."""
    counted = count(case.make())
    assert counted.full == case.full
    assert counted.causal == (case.full if case.causal is None else case.causal)
    assert counted.step.work.hardware == case.full
    assert counted.step.unseen == ()


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in TABLE if case.torch is None])
def test_torchs_own_counter_agrees_where_it_is_right(case: Case) -> None:
    """Two counts that know nothing of each other say the same."""
    assert count(case.make()).torch == case.full


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in TABLE if case.torch is not None])
def test_torchs_own_counter_is_known_to_be_wrong(case: Case) -> None:
    """Where it has no formula, or a wrong one, this says so: a fixed torch fails here and moves the case over."""
    assert count(case.make()).torch != case.full, case.why
