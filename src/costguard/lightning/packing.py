"""The lengths of sequences that are packed into one batch, which attention's work depends on and shapes do not show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from costguard.lightning.batches import DeviceSum

BOUNDS = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seq_lens", "cu_seqlens")
"""What bounds of packed sequences are called: 0, and the running sum of their lengths."""


class PackedLengths:
    """Sums up squared lengths of packed sequences, without waiting for the device."""

    def __init__(self) -> None:
        self._sum = DeviceSum()

    def squares(self, batch: Any) -> torch.Tensor | None:
        """Sum of the squared lengths of a batch's sequences, where the batch says them; `None` where it does not.

        It says them by their bounds, or by `position_ids` that begin anew with each sequence: the odd numbers up to
        2 L - 1 add up to L squared.
        """
        if not isinstance(batch, Mapping):
            return None
        for name in BOUNDS:
            bounds = batch.get(name)
            if isinstance(bounds, torch.Tensor) and bounds.dim() == 1:
                return bounds.diff().to(torch.int64).square().sum()
        positions, ids = batch.get("position_ids"), batch.get("input_ids")
        if isinstance(positions, torch.Tensor) and isinstance(ids, torch.Tensor) and positions.shape == ids.shape:
            return (2 * positions.to(torch.int64) + 1).sum()
        return None

    def add(self, batch: Any) -> int:
        """Sum of one batch; on a GPU 0, and `late` has it when it has arrived."""
        squares = self.squares(batch)
        if squares is None or squares.device.type not in {"cpu", "cuda"}:
            return 0
        if squares.device.type == "cpu":
            return int(squares)
        self._sum.add(squares)
        return 0

    def late(self, *, wait: bool = False) -> int:
        """What has arrived from the device since the last call.

        Args:
            wait: Wait for the device; only for the end of training.
        """
        return self._sum.take(wait=wait)
