"""How large a batch is, as far as its FLOPs go: the shapes of its tensors, wherever they lie in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from costguard.flops.sizes import BatchSize

_DEPTH = 4
_LISTS = (list, tuple)


class BatchSizer:
    """Tells the sizes of batches; most look like the one before."""

    def __init__(self) -> None:
        self._shapes: Any = None
        self._size: BatchSize | None = None

    def size(self, batch: Any) -> BatchSize | None:
        """The size of a batch, `None` if no tensor is found in it; never raises."""
        if type(batch) is torch.Tensor:
            shapes: Any = batch.shape
        elif type(batch) in _LISTS and all(type(part) is torch.Tensor for part in batch):
            shapes = tuple([part.shape for part in batch])
        else:
            try:
                shapes = tuple(_shapes(batch, _DEPTH))
            except Exception:  # a batch of the user's own kind
                shapes = ()
        if shapes != self._shapes or self._size is None:
            self._shapes, self._size = shapes, _size_of(shapes)
        return self._size


def _size_of(shapes: Any) -> BatchSize | None:
    first = shapes if isinstance(shapes, torch.Size) else next((s for s in shapes if len(s)), None)
    if first is None:
        return None
    return BatchSize(shapes, first[0] if len(first) else 1, first.numel())


def _shapes(part: Any, depth: int) -> Iterator[torch.Size]:
    if isinstance(part, torch.Tensor):
        yield part.shape
    elif depth and isinstance(part, Mapping):
        for value in part.values():
            yield from _shapes(value, depth - 1)
    elif depth and isinstance(part, _LISTS):
        for value in part:
            yield from _shapes(value, depth - 1)
    elif depth and hasattr(part, "__dict__") and not isinstance(part, type):
        yield from _shapes(vars(part), depth - 1)
