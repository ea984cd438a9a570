"""Forward FLOPs of single operators from their sizes; a multiplication and an addition are two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod


def product(outputs: int, inner: int) -> int:
    """FLOPs of a matrix product in any number of dimensions.

    Args:
        outputs: Elements of the result.
        inner: Size of the dimension that is summed over.

    Example:
        >>> product(outputs=4 * 32 * 256, inner=64)  # a linear layer, 64 to 256, on 4 sequences of 32
        4194304
    """
    return 2 * outputs * inner


def convolution(outputs: int, weight: Sequence[int]) -> int:
    """FLOPs of a convolution in any number of dimensions.

    Args:
        outputs: Elements of the result; of the input for a transposed convolution, which spreads each of them.
        weight: Shape of the weight: (channels, channels of a group on the other side, *kernel).
    """
    return product(outputs, prod(weight[1:]))


def contraction(equation: str, shapes: Sequence[Sequence[int]]) -> int:
    """FLOPs of an einsum of two operands, 0 where nothing is summed.

    Args:
        equation: As for `torch.einsum`, with or without an arrow, with or without an ellipsis.
        shapes: Of its operands.

    Raises:
        ValueError: If there are not two operands.

    Example:
        >>> contraction("bhqd,bhkd->bhqk", [(2, 4, 8, 16), (2, 4, 8, 16)])
        16384
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or len(shapes) != 2:
        raise ValueError(f"einsum of {len(terms)} operands")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in _letters(term, shape):
            sizes[letter] = max(size, sizes.get(letter, 1))
    letters = "".join(terms).replace(".", "")
    if not arrow:
        output = "".join(letter for letter in set(letters) if letters.count(letter) == 1)
    summed = set(letters) - set(output)
    return 2 * prod(sizes.values()) if summed else 0


def _letters(term: str, shape: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Each index with its size; the dimensions of an ellipsis are numbered from the right."""
    before, dots, after = term.partition("...")
    wide = len(shape) - len(before) - len(after) if dots else 0
    yield from zip(before, shape, strict=False)
    yield from ((f"...{wide - i}", shape[len(before) + i]) for i in range(wide))
    yield from zip(after, shape[len(shape) - len(after) :], strict=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurrentLayer:
    """One layer in one direction.

    Args:
        from_input: Elements of the weight that meets the input.
        from_hidden: Elements of the weight that meets the hidden state.
        projection: Elements of the weight that projects the hidden state, 0 without one.
        trained: Which of these weights are trained, by the same names.
        input_needs: Whether a gradient flows to the layer's input.
        hidden_needs: Whether one flows to the first hidden state.
    """

    from_input: int
    from_hidden: int
    projection: int = 0
    trained: Mapping[str, bool]
    input_needs: bool
    hidden_needs: bool = False


def recurrent(layer: RecurrentLayer, steps: int, first: int) -> tuple[int, int]:
    """FLOPs forward and backward of one layer of an RNN, a GRU or an LSTM.

    Args:
        layer: The layer.
        steps: Steps of all sequences together.
        first: Sequences, for whose first step no gradient need flow to a hidden state before it.

    Returns:
        FLOPs forward, and FLOPs of those gradients that flow.
    """
    trained = layer.trained
    flows = layer.input_needs or layer.hidden_needs or any(trained.values())
    back_steps = steps if layer.hidden_needs else steps - first
    forward = backward = 0
    for name, needs_steps in (
        ("from_input", steps if layer.input_needs else 0),
        ("from_hidden", back_steps if flows else 0),
        ("projection", steps if flows else 0),
    ):
        elements = getattr(layer, name)
        forward += 2 * steps * elements
        backward += 2 * needs_steps * elements + (2 * steps * elements if trained.get(name) else 0)
    return forward, backward
