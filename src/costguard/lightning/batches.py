"""Counts tokens, padding and samples of a batch from its shapes, without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer

from costguard.errors import warn

CountTokens = Callable[[Any], int | tuple[int, int]]
"""A user's own count: tokens of a batch, or tokens and padding."""

_MOST = 1 << 48
"""More tokens than any batch has."""
_PAIRS = (list, tuple)
_TOKEN_DTYPES = frozenset({torch.int64, torch.int32})


class BatchCount(NamedTuple):
    """What one micro-batch holds; a part that cannot be told is `None`."""

    tokens: int | None = None
    padding: int | None = None
    samples: int | None = None


_NOTHING = BatchCount()
COUNTED_ELSEWHERE = BatchCount(0, 0, 0)
"""For a rank that reads the same batch as the one that counts it."""


def reads_own_batches(trainer: Trainer) -> bool:
    """Whether this rank counts its batches: of ranks that split one model and read the same ones, the first does."""
    said = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {}
    replicas = said.get("num_replicas") or trainer.world_size
    return trainer.global_rank % max(1, trainer.world_size // replicas) == 0


class BatchCounter:
    """Counts batches by their shapes.

    Tokens are the elements of `input_ids` (else of `labels`) in a mapping, or of a two-dimensional int64 or int32
    tensor that is the batch or its first part; where an `attention_mask` of the same shape says so, padding is
    counted apart. Everything else has samples only.

    Args:
        count_tokens: The user's own function for tokens; if it raises, tokens are unknown from then on.
    """

    def __init__(self, count_tokens: CountTokens | None = None) -> None:
        self._count_tokens = count_tokens
        self._masks = DeviceSum()
        self.failed = False
        self._plain = count_tokens is None
        self._shape: torch.Size | None = None
        self._dtype: torch.dtype | None = None
        self._count = _NOTHING

    def count(self, batch: Any) -> BatchCount:
        """Count one micro-batch; never raises."""
        first = batch[0] if type(batch) in _PAIRS and batch else batch
        if type(first) is torch.Tensor and self._plain:
            # Most batches look like the one before, and are counted alike.
            shape, dtype = first.shape, first.dtype
            if shape != self._shape or dtype is not self._dtype:
                self._shape, self._dtype, self._count = shape, dtype, _tensor_count(first)
            return self._count
        return self._carefully(batch)

    def _carefully(self, batch: Any) -> BatchCount:
        if self.failed:
            return BatchCount(samples=_samples(batch))
        try:
            return self._shape_count(batch) if self._count_tokens is None else self._users_count(batch)
        except Exception as error:  # the batch and the function are the user's and may do anything
            self.failed, self._plain = True, False
            what = "count_tokens" if self._count_tokens else "the batch's shapes"
            warn(f"cannot count tokens ({what} raised {type(error).__name__}: {error}); they are unknown from now on.")
            return BatchCount(samples=_samples(batch))

    def late(self, *, wait: bool = False) -> int:
        """Padding that the device has summed up since the last call and that was counted as tokens before.

        Args:
            wait: Wait for the device; only for the end of training.
        """
        return self._masks.take(wait=wait)

    def _users_count(self, batch: Any) -> BatchCount:
        assert self._count_tokens is not None
        counted = self._count_tokens(batch)
        tokens, padding = counted if isinstance(counted, tuple) else (counted, None)
        return BatchCount(_whole(tokens), None if padding is None else _whole(padding), _samples(batch))

    def _shape_count(self, batch: Any) -> BatchCount:
        if isinstance(batch, (list, tuple)):
            return self._shape_count(batch[0]) if batch else _NOTHING
        if isinstance(batch, torch.Tensor):
            return _tensor_count(batch)
        if isinstance(batch, Mapping):
            return self._mapping_count(batch)
        return _NOTHING

    def _mapping_count(self, batch: Mapping[Any, Any]) -> BatchCount:
        ids = batch.get("input_ids")
        if not isinstance(ids, torch.Tensor):
            ids = batch.get("labels")
            if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.dtype not in _TOKEN_DTYPES:
                return BatchCount(samples=_samples(batch))
        tokens, samples = ids.numel(), ids.shape[0] if ids.dim() > 1 else 1
        mask = batch.get("attention_mask")
        if not isinstance(mask, torch.Tensor) or mask.shape != ids.shape:
            return BatchCount(tokens, 0, samples)
        if mask.device.type == "cpu":
            kept = int(torch.count_nonzero(mask))
            return BatchCount(kept, tokens - kept, samples)
        if mask.device.type != "cuda":
            # Other accelerators would have to be waited for.
            return BatchCount(tokens, None, samples)
        self._masks.add(tokens - torch.count_nonzero(mask))
        return BatchCount(tokens, 0, samples)


def _tensor_count(tensor: torch.Tensor) -> BatchCount:
    shape = tensor.shape
    if not shape:
        return _NOTHING
    if len(shape) == 2 and tensor.dtype in _TOKEN_DTYPES:
        return BatchCount(shape[0] * shape[1], 0, shape[0])
    return BatchCount(samples=shape[0])


def _whole(number: Any) -> int:
    if not 0 <= number < _MOST:
        raise ValueError(f"{number!r} is no count of tokens of one batch")
    return int(number)


def _samples(batch: Any) -> int | None:
    """First dimension of the batch or of its first tensor; whatever the batch is, `None` rather than an exception."""
    try:
        if isinstance(batch, torch.Tensor):
            return batch.shape[0] if batch.dim() else None
        parts = list(batch.values()) if isinstance(batch, Mapping) else batch
        if isinstance(parts, (list, tuple)):
            return next((p.shape[0] for p in parts if isinstance(p, torch.Tensor) and p.dim()), None)
    except Exception:  # a batch of the user's own kind
        return None
    return None


class DeviceSum:
    """Adds up device scalars without a synchronisation: the sum is copied to pinned memory and read a while later."""

    def __init__(self) -> None:
        self._sum: torch.Tensor | None = None
        self._taken = 0
        self._on_its_way: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def add(self, scalar: torch.Tensor) -> None:
        """Queue an addition on the scalar's device."""
        self._sum = scalar.detach() if self._sum is None else self._sum + scalar.detach()

    def take(self, *, wait: bool = False) -> int:
        """What has arrived on the host since the last call."""
        if self._sum is None:
            return 0
        if wait:
            return self._arrived(int(self._sum))
        if self._on_its_way is None:
            host = torch.empty((), dtype=self._sum.dtype, pin_memory=True)
            host.copy_(self._sum, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._on_its_way = (host, event)
            return 0
        host, event = self._on_its_way
        if not event.query():  # type: ignore[no-untyped-call]
            return 0
        self._on_its_way = None
        return self._arrived(int(host))

    def _arrived(self, total: int) -> int:
        new, self._taken = total - self._taken, total
        return new
