"""Packed sequences: attention costs the sum of squared lengths of each batch, not the square of the sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.data import DataLoader

from costguard.lightning.packing import PackedLengths
from helpers import LIGHTNING_WARNINGS, monitor, quiet_trainer, receipt_of

WIDTH, VOCABULARY, TOKENS = 16, 32, 24
LENGTHS = [(24,), (12, 12), (8, 8, 8), (20, 4), (1, 23), (6, 6, 6, 6)]


class Packed(LightningModule):
    """One head of causal attention in which a token sees its own sequence only."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        sequence = (batch["position_ids"] == 0).cumsum(-1)
        mask = (sequence[:, :, None] == sequence[:, None, :]).tril()
        query, key, value = self.qkv(self.table(batch["input_ids"])).chunk(3, -1)
        out = self.head(scaled_dot_product_attention(query, key, value, mask))
        return nn.functional.cross_entropy(out.flatten(0, 1), batch["input_ids"].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def _batch(lengths: tuple[int, ...]) -> dict[str, Tensor]:
    positions = torch.cat([torch.arange(length) for length in lengths])
    return {"input_ids": torch.randint(VOCABULARY, (1, sum(lengths))), "position_ids": positions[None]}


@pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)
def test_packed_batches_cost_the_sum_of_squared_lengths(tmp_path: Path) -> None:
    """Batches of one shape whose sequences differ: each counts its own attention, to the last FLOP."""
    batches: Any = [_batch(lengths) for lengths in LENGTHS]
    trainer = quiet_trainer(tmp_path, monitor())
    trainer.fit(Packed(), DataLoader(batches, batch_size=None))
    squares = sum(length**2 for lengths in LENGTHS for length in lengths)
    linear = 6 * len(LENGTHS) * TOKENS * WIDTH * (3 * WIDTH + VOCABULARY)
    # Two products of 2 x width for each pair, three times with the two gradients of each.
    attention = 3 * 2 * 2 * WIDTH * squares
    assert receipt_of(tmp_path)["flops"]["model"] == {
        "full_attention": linear + attention,
        "causal": linear + attention // 2,
    }


def test_lengths_are_read_from_bounds_or_positions() -> None:
    """Both say the same; a batch without them says nothing."""
    bounds = torch.tensor([0, 3, 8], dtype=torch.int32)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    assert PackedLengths().add({"cu_seq_lens_q": bounds}) == 9 + 25
    assert PackedLengths().add({"input_ids": torch.zeros(1, 8), "position_ids": positions}) == 9 + 25
    assert PackedLengths().squares({"input_ids": torch.zeros(1, 8)}) is None
    assert PackedLengths().squares(torch.zeros(1, 8)) is None
