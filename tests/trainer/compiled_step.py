"""A module whose file holds a compiled function, as many a training script does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from helpers import Tiny

squared = torch.compile(lambda x: x * x, backend="eager")


class UsesCompiled(Tiny):
    """A layer, then a compiled function."""

    def __init__(self) -> None:
        super().__init__(logs=False)
        self.layer = nn.Linear(8, 4)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return squared(self.layer(batch.float())).mean()
