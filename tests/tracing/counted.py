"""Counts one step both ways, for the tests of single modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from costguard.flops.step import StepFlops
from costguard.tracing.counter import TorchCounter
from costguard.tracing.trace import FlopTrace


class Counted(NamedTuple):
    """What both counts say of one step."""

    step: StepFlops
    torch: int
    missed: tuple[str, ...]

    @property
    def full(self) -> int:
        return self.step.work.full

    @property
    def causal(self) -> int | None:
        return self.step.work.causal


def first_tensor(out: Any) -> Tensor:
    """The tensor in whatever a module returns."""
    while not isinstance(out, Tensor):
        out = out[0]
    return out


def count(step: Callable[[], Any]) -> Counted:
    """Run a step forward, and backward from the sum of its result if that has a gradient."""
    counter, trace = TorchCounter(), FlopTrace()
    with counter, trace:
        out = first_tensor(step())
        if out.requires_grad:
            (out.values() if out.is_nested else out).sum().backward()
    return Counted(trace.result(), counter.flops, counter.missed)
