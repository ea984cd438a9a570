"""For each torch function that multiplies matrices: the products behind one call of it, from its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from costguard.flops import operators
from costguard.flops.step import Call, Kind
from costguard.tracing.attention import attend, attention_calls, attention_pairs, module_attention
from costguard.tracing.needs import needs_gradient, parameter_of

Rule = Callable[..., Iterable[Call]]
"""Gets the result of a call and its arguments."""


def _product(forward: int, a: Any, b: Any, kind: Kind | None = None) -> Call:
    backward = forward * (needs_gradient(a) + needs_gradient(b))
    return Call(kind or _kind(a, b), forward, backward, 3 * forward)


def _kind(a: Any, b: Any) -> Kind:
    """Batches of activations times batches of activations is what attention does, whatever it is called."""
    batches = isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() >= 3 and b.dim() >= 3
    return "attention" if batches and parameter_of(a) is None and parameter_of(b) is None else "linear"


def _linear(out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Iterable[Call]:
    yield _product(operators.product(out.numel(), weight.shape[-1]), input, weight, "linear")


def _matmul(out: Tensor, a: Tensor, b: Tensor, **_: Any) -> Iterable[Call]:
    yield _product(operators.product(out.numel(), a.shape[-1]), a, b)


def _reflected(out: Tensor, b: Tensor, a: Tensor) -> Iterable[Call]:
    yield from _matmul(out, a, b)


def _added(out: Tensor, _input: Tensor, a: Tensor, b: Tensor, **_: Any) -> Iterable[Call]:
    batch = a.shape[0] if a.dim() > out.dim() else 1  # addbmm sums over its batch
    yield _product(operators.product(out.numel() * batch, a.shape[-1]), a, b)


def _einsum(out: Tensor, equation: Any, *operands: Any) -> Iterable[Call]:
    tensors = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    if not isinstance(equation, str):
        raise ValueError("einsum with lists of indices")
    if len(tensors) == 1:
        return
    forward = operators.contraction(equation, [t.shape for t in tensors])
    if forward:
        yield _product(forward, *tensors)


def _tensordot(out: Tensor, a: Tensor, b: Tensor, dims: Any = 2, **_: Any) -> Iterable[Call]:
    if isinstance(dims, int):
        inner = prod(a.shape[a.dim() - dims :])
    else:
        over = dims[0] if isinstance(dims[0], Sequence) else dims[:1]
        inner = prod(a.shape[d] for d in over)
    yield _product(operators.product(out.numel(), inner), a, b)


def _bilinear(out: Tensor, a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None = None) -> Iterable[Call]:
    rows = out.numel() // max(1, out.shape[-1])
    forward = operators.product(rows * weight.shape[0] * weight.shape[1], weight.shape[2])
    backward = forward * (needs_gradient(a) + needs_gradient(b) + needs_gradient(weight))
    yield Call("linear", forward, backward, 4 * forward)


def _conv(out: Tensor, input: Tensor, weight: Tensor, *_: Any, **__: Any) -> Iterable[Call]:
    yield _product(operators.convolution(out.numel(), weight.shape), input, weight, "convolution")


def _conv_transpose(out: Tensor, input: Tensor, weight: Tensor, *_: Any, **__: Any) -> Iterable[Call]:
    yield _product(operators.convolution(input.numel(), weight.shape), input, weight, "convolution")


def _recurrent(out: Any, *args: Any) -> Iterable[Call]:
    """`lstm(input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first)`, or packed."""
    packed = isinstance(args[3], (list, tuple))
    if packed:
        input, sizes, hidden, weights, biases, layers, _, _, both = args[:9]
        first = int(sizes[0])
    else:
        input, hidden, weights, biases, layers, _, _, both, batch_first = args[:9]
        first = 1 if input.dim() == 2 else input.shape[0 if batch_first else 1]
    states = hidden if isinstance(hidden, (list, tuple)) else [hidden]
    each = len(weights) // (layers * (2 if both else 1))
    steps, needs = input.numel() // max(1, input.shape[-1]), needs_gradient(input)
    for layer in range(layers):
        directions = range(2 if both else 1)
        groups = [weights[at * each :][:each] for at in (layer * len(directions) + d for d in directions)]
        yield from (_recurrent_call(g, biases, steps, first, needs, needs_gradient(*states)) for g in groups)
        needs = needs or needs_gradient(*states) or any(needs_gradient(w) for g in groups for w in g)


def _recurrent_call(
    weights: Sequence[Tensor], biases: bool, steps: int, first: int, input_needs: bool, hidden_needs: bool
) -> Call:
    kept = [weights[0], weights[1], *(weights[4:5] if biases else weights[2:3])]
    names = ("from_input", "from_hidden", "projection")
    layer = operators.RecurrentLayer(
        **{name: weight.numel() for name, weight in zip(names, kept, strict=False)},
        trained={name: needs_gradient(weight) for name, weight in zip(names, kept, strict=False)},
        input_needs=input_needs,
        hidden_needs=hidden_needs,
    )
    forward, backward = operators.recurrent(layer, steps, first)
    return Call("recurrent", forward, backward, 3 * forward)


def _cell(out: Any, input: Tensor, hidden: Any, w_ih: Tensor, w_hh: Tensor, *_: Any) -> Iterable[Call]:
    rows = input.numel() // max(1, input.shape[-1])
    state = hidden[0] if isinstance(hidden, (list, tuple)) else hidden
    for operand, weight in ((input, w_ih), (state, w_hh)):
        yield _product(operators.product(rows, weight.numel()), operand, weight, "recurrent")


def _scaled_mm(out: Any, a: Tensor, b: Tensor, *_: Any, **__: Any) -> Iterable[Call]:
    result = out[0] if isinstance(out, tuple) else out
    yield _product(operators.product(result.numel(), a.shape[-1]), a, b, "linear")


def _sdpa(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> Iterable[Call]:
    return attend(query, key, value, attn_mask, is_causal)


def _encoder_layer(out: Tensor, src: Tensor, *args: Any, **_: Any) -> Iterable[Call]:
    """`_transformer_encoder_layer_fwd`, which only runs where no gradient is needed."""
    embed, heads, qkv, _, proj = args[:5]
    linear1, linear2 = args[13], args[15]
    rows = src.numel() // embed
    products = sum(operators.product(rows, weight.numel()) for weight in (qkv, proj, linear1, linear2))
    yield Call("linear", products, 0, 3 * products)
    yield from _inference_attention(src, src, embed // heads, heads)


def _native_attention(
    out: Any, query: Tensor, key: Tensor, value: Tensor, embed: int, heads: int, *args: Any, **_: Any
) -> Iterable[Call]:
    rows = query.numel() // embed
    products = sum(operators.product(rows, weight.numel()) for weight in (args[0], args[2]))
    yield Call("linear", products, 0, 3 * products)
    yield from _inference_attention(query, key, embed // heads, heads)


def _inference_attention(query: Tensor, key: Tensor, head_dim: int, heads: int) -> Iterable[Call]:
    if query.is_nested:
        pairs = heads * sum(part.shape[0] ** 2 for part in query.unbind())
    else:
        pairs = attention_pairs(query.shape, key.shape, heads)
    return attention_calls(pairs, head_dim, head_dim, (False, False, False))


def _names(*where: tuple[Any, str]) -> list[Any]:
    return [found for room, name in where if (found := getattr(room, name, None)) is not None]


def _table() -> Mapping[Any, Rule]:
    vf: Any = torch._C._VariableFunctions
    rules: list[tuple[Rule, list[Any]]] = [
        (_linear, [functional.linear]),
        (
            _matmul,
            _names(
                *((room, name) for room in (torch, Tensor) for name in ("matmul", "mm", "bmm", "mv", "dot", "inner")),
                (Tensor, "__matmul__"),
                (torch.linalg, "matmul"),
            ),
        ),
        (_reflected, _names((Tensor, "__rmatmul__"))),
        (
            _added,
            _names(
                *(
                    (room, name)
                    for room in (torch, Tensor)
                    for name in ("addmm", "baddbmm", "addbmm", "addmv", "addmm_", "baddbmm_", "addbmm_", "addmv_")
                )
            ),
        ),
        (_einsum, [torch.einsum, torch.functional.einsum]),
        (_tensordot, [torch.tensordot]),
        (_bilinear, [functional.bilinear]),
        (_conv, [functional.conv1d, functional.conv2d, functional.conv3d]),
        (_conv_transpose, [functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d]),
        (_recurrent, _names(*((vf, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")))),
        (_cell, _names(*((vf, name) for name in ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")))),
        (_scaled_mm, _names((torch, "_scaled_mm"), (torch, "_grouped_mm"), (torch, "_scaled_grouped_mm"))),
        (_sdpa, [functional.scaled_dot_product_attention]),
        (module_attention, [functional.multi_head_attention_forward]),
        (_encoder_layer, _names((torch, "_transformer_encoder_layer_fwd"))),
        (_native_attention, _names((torch, "_native_multi_head_attention"))),
    ]
    return {function: rule for rule, functions in rules for function in functions}


RULES: Mapping[Any, Rule] = _table()
"""By the function that torch names when it is called."""
