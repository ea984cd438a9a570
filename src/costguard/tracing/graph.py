"""What of a graph backward comes to, without holding on to the graph."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from threading import get_ident
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

_OWN_BACKWARD = BackwardCFunction.apply.__code__
"""What torch calls the backward of an `autograd.Function` from."""
Node = tuple[int, int]
"""An operation: its thread and its number there, since each thread numbers by itself."""


def nodes_of(out: Any) -> frozenset[Node]:
    """The operations behind a result, just made by this thread; of a tuple each part's."""
    parts = out if isinstance(out, (list, tuple)) else [out]
    found = [part.grad_fn for part in parts if isinstance(part, Tensor) and part.grad_fn is not None]
    return frozenset((get_ident(), node._sequence_nr()) for node in found)


def reached_from(roots: Iterable[Tensor]) -> set[Node]:
    """All operations that get gradients when this thread asks for those of the roots."""
    waiting: list[Any] = [root.grad_fn for root in roots]
    seen = set()  # keeps the nodes alive, and with them what makes them equal
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return {(get_ident(), node._sequence_nr()) for node in seen}


def is_recomputing() -> bool:
    """Whether Python code that runs in backward is forward code, run again by a checkpoint.

    Gradients are off in the forward of an `autograd.Function` as they are in its backward; which of the two it is
    only its callers tell, the nearest of them first.
    """
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if "checkpoint" in file.rpartition("/")[2] and "costguard" not in file:
            return True
        if frame.f_code is _OWN_BACKWARD:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False
