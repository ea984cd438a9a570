"""A small GPT whose FLOPs are counted by hand, trained eager, compiled or with activation checkpointing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Size:
    """The size of a GPT, and of a batch of it."""

    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int
    batch: int

    @property
    def tokens(self) -> int:
        """Tokens of a batch."""
        return self.batch * self.length

    def flops(self, convention: str) -> int:
        """FLOPs of a step, by hand.

        Forward 2 and backward 4 for each weight of a matrix and each token: 3 + 1 of the attention and 4 + 4 of the
        feed-forward layer, in units of width squared, and the head, which shares its weights with the embedding. Both
        attention products: 2 forward and 4 backward for each pair of tokens and each channel, or half of them if the
        causal mask is counted.
        """
        matrices = 12 * self.width**2 * self.layers + self.vocabulary * self.width
        attention = 2 * self.length * self.width * self.layers
        return self.tokens * 6 * (matrices + attention // (2 if convention == "causal" else 1))

    def recomputed(self) -> int:
        """FLOPs that checkpointing each block adds to a step: its forward pass but for the last product, by hand.

        That one needs not be done again: its factors are known when it is reached, and its result is not asked for.
        """
        return self.tokens * 2 * (8 * self.width**2 + 2 * self.length * self.width) * self.layers


TINY = Size(layers=2, width=64, heads=4, length=64, vocabulary=256, batch=4)


def size_for(memory_bytes: int) -> Size:
    """A GPT of 420 M parameters, with as large a batch as fits easily."""
    batch = next((count for at_least, count in ((64e9, 8), (32e9, 4), (20e9, 2)) if memory_bytes >= at_least), 1)
    return Size(layers=12, width=1536, heads=12, length=2048, vocabulary=50304, batch=batch)


class Block(nn.Module):
    """Attention and feed-forward layer, without biases."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norms = nn.ModuleList(nn.LayerNorm(size.width) for _ in range(2))
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.down = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, length, width)."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Net(nn.Module):
    """A GPT whose head shares its weights with the embedding."""

    def __init__(self, size: Size, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))


class GPT(LightningModule):
    """The GPT as it is trained, in one of three ways."""

    def __init__(self, size: Size, way: str) -> None:
        super().__init__()
        net = Net(size, way == "checkpointed")
        self.net: Any = torch.compile(net) if way == "compiled" else net

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Cross entropy of the next token."""
        logits = self.net(batch[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)
