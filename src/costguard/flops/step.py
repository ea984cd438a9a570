"""The FLOPs of one training step as they add up from the calls that it made, and their gap to 6ND."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from costguard.flops.closed_form import six_nd

Kind = Literal["linear", "convolution", "attention", "recurrent"]


class Call(NamedTuple):
    """One product of matrices that a step made.

    Args:
        kind: What it belongs to; `attention` are products of activations with activations.
        forward: FLOPs forward.
        backward: FLOPs of those of its gradients that flow: towards activations, and towards weights that are trained.
        whole: Forward and backward, if each of its operands had a gradient.
        full: Share of it that belongs to pairs of tokens which may attend to each other, were it not for causality;
            below 1 for packed sequences and sliding windows.
        causal: Share of it that causality leaves too; `None` if its mask could not be read.
    """

    kind: Kind
    forward: int
    backward: int
    whole: int
    full: Fraction = Fraction(1)
    causal: Fraction | None = Fraction(1)


class Work(NamedTuple):
    """FLOPs of some training, by convention.

    Args:
        full: Model FLOPs, attention over all pairs of tokens that a sequence or window has.
        causal: Model FLOPs, attention over the pairs that a causal mask leaves; `None` if unknown.
        hardware: What was executed: all pairs, masked or not, and the recomputation of activations; `None` if unknown.
    """

    full: int
    causal: int | None
    hardware: int | None

    def __add__(self, other: Work) -> Work:  # type: ignore[override]
        """Add convention by convention; what is unknown in one is unknown in the sum."""
        full, causal, hardware = self
        more_full, more_causal, more_hardware = other
        causal = None if causal is None or more_causal is None else causal + more_causal
        hardware = None if hardware is None or more_hardware is None else hardware + more_hardware
        return tuple.__new__(Work, (full + more_full, causal, hardware))

    def __sub__(self, other: Work) -> Work:
        """Take away convention by convention."""
        negative = (None if value is None else -value for value in other)
        return self + Work(*negative)  # type: ignore[arg-type]


NO_WORK = Work(0, 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFlops:
    """What one rank computed for one micro-batch.

    Args:
        work: Its FLOPs.
        attention: The part of it that attention's own products are, as far as it grows with the square of a
            sequence's length; kernels that skip no masked pair execute the same whatever the lengths are.
        whole: Model FLOPs if every parameter were trained and every gradient flowed.
        recomputed: FLOPs of activations that were computed again in backward; `None` if unknown.
        lookup_parameters: Parameters that are only looked up, such as those of an embedding that is no head.
        dtype: What most of it was computed in, such as `bfloat16`; `None` if nothing was.
        unseen: Operators whose arithmetic was seen by nobody.
    """

    work: Work
    attention: Work = NO_WORK
    whole: int = 0
    recomputed: int | None = 0
    lookup_parameters: int = 0
    dtype: str | None = None
    unseen: tuple[str, ...] = ()


def step_flops(
    calls: Iterable[Call],
    *,
    recomputed: int | None = 0,
    lookup_parameters: int = 0,
    dtype: str | None = None,
    unseen: Iterable[str] = (),
) -> StepFlops:
    """Add up the calls of one step.

    Args:
        calls: Forward, each with its backward.
        recomputed: FLOPs that backward repeated.
        lookup_parameters: Parameters that are only looked up.
        dtype: What most of it was computed in.
        unseen: Operators whose arithmetic is in none of the calls.
    """
    work, attention, whole = NO_WORK, NO_WORK, 0
    for call in calls:
        done = call.forward + call.backward
        full, causal = int(done * call.full), None if call.causal is None else int(done * call.causal)
        work += Work(full, causal, done)
        whole += int(call.whole * call.full)
        if call.kind == "attention":
            attention += Work(full, causal, done if call.full == 1 else 0)
    return StepFlops(
        work=work + Work(0, 0, recomputed),
        attention=attention,
        whole=whole,
        recomputed=recomputed,
        lookup_parameters=lookup_parameters,
        dtype=dtype,
        unseen=tuple(sorted(set(unseen))),
    )


def gap_to_6nd(step: StepFlops, parameters: int, tokens: int, padding: int, *, frozen: bool) -> dict[str, float] | None:
    """Explain by what model FLOPs differ from 6 N D, in shares of 6 N D.

    Args:
        step: The FLOPs of a batch.
        parameters: Parameters of the model, each once.
        tokens: Tokens of the batch, padding left out.
        padding: Padding beside them.
        frozen: Whether some parameters are not trained.

    Returns:
        `total`, and its parts `embeddings` (6ND counts a lookup as a product), `attention`, `frozen` (gradients that
        need not be computed), `padding` and `other`, which add up to it; `recompute` is beside them, in no model
        FLOPs. `None` without tokens.
    """
    six = six_nd(parameters, tokens)
    if not six:
        return None
    missing = step.whole - step.work.full
    parts = {
        "embeddings": -six_nd(step.lookup_parameters, tokens + padding),
        "attention": step.attention.full,
        "frozen": -missing if frozen else 0,
        "padding": six_nd(parameters, padding),
    }
    total = step.work.full - six
    parts["other"] = total - sum(parts.values())
    shares = {"total": total, **parts}
    if step.recomputed is not None:
        shares["recompute"] = step.recomputed
    return {name: flops / six for name, flops in shares.items()}
