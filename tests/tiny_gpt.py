"""The small language model whose FLOPs are known by hand, for trainings in this process and on two ranks.

Vocabulary 128, width 64, 2 layers, 4 heads, 32 tokens, perceptrons of 256, no biases. One sample of a batch costs:
per layer and token 2 x (64 x 192 + 64 x 64 + 64 x 256 + 256 x 64) = 98,304 in linear layers, the head 2 x 64 x 128 =
16,384; attention per layer 2 products x 2 x 4 heads x 32 x 32 pairs x 16 = 262,144. Forward 7,340,032, training three
times as much.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCAB, WIDTH, HEADS, TOKENS = 128, 64, 4, 32
PARAMETERS = 128 * 64 + 32 * 64 + 2 * (49_152 + 4 * 64) + 2 * 64 + 64 * 128
FORWARD = 32 * (2 * 98_304 + 16_384) + 2 * 262_144
"""One sample."""
TRAINED = 3 * FORWARD
HALF_ATTENTION = 3 * 2 * 262_144 // 2
HEAD_ALONE = FORWARD + 32 * 16_384
"""With all else frozen: forward, and the head's weight."""


class Block(nn.Module):
    """Causal attention, then a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class TinyGPT(LightningModule):
    """A language model that learns to say what it reads.

    Args:
        checkpointed: Whether its blocks are computed again in backward.
        logs: Whether it logs its loss; Lightning 2.6 with torch 2.13 cannot in a compiled `training_step`.
    """

    def __init__(self, *, checkpointed: bool = False, logs: bool = True) -> None:
        super().__init__()
        self.checkpointed, self.logs = checkpointed, logs
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))

    def training_step(self, ids: Tensor, batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self(ids).flatten(0, 1), ids.flatten())
        if self.logs:
            self.log("loss", loss)
        return loss

    def validation_step(self, ids: Tensor, batch_idx: int) -> None:
        self(ids)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def ids(samples: int, tokens: int = TOKENS) -> Tensor:
    """A batch; the same each time."""
    return torch.arange(samples * tokens).view(samples, tokens) % VOCAB


def trained(samples: int, tokens: int = TOKENS) -> int:
    """FLOPs of training on so many samples of so many tokens."""
    return 3 * samples * (tokens * (2 * 98_304 + 16_384) + 2 * 256 * tokens * tokens)


def flops_of(receipt: dict[str, Any]) -> tuple[int, int, int]:
    """Model FLOPs in full and causal, and what was executed."""
    model = receipt["flops"]["model"]
    assert model is not None, receipt["flops"]["reason"]
    return model["full_attention"], model["causal"], receipt["flops"]["hardware"]
