"""Which operations backward comes to, by their numbers in the graph, so that nothing of the graph is held."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def nodes_of(out: Any) -> frozenset[int]:
    """The numbers of the operations behind a result, of a tuple each part's; none where that cannot be told."""
    parts = out if isinstance(out, (list, tuple)) else [out]
    nodes = [part.grad_fn for part in parts if isinstance(part, Tensor) and part.grad_fn is not None]
    return frozenset(node._sequence_nr() for node in nodes)


def reached_from(roots: Iterable[Tensor]) -> set[int]:
    """The numbers of all operations from which gradients of the roots are asked."""
    waiting: list[Any] = [root.grad_fn for root in roots]
    seen = set()  # keeps the nodes alive, and with them what makes them equal
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return {node._sequence_nr() for node in seen}
