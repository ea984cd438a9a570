"""A script that Lightning starts twice, one process a rank: `flops_ranks.py FOLDER`.

It trains the same global batches by data in parallel, sharded (FSDP2), and with a pair of layers split (tensor
parallel).
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from costguard import CostMonitor
from helpers import loader, quiet_trainer
from tiny_gpt import TinyGPT, ids

RANK = int(os.environ.get("LOCAL_RANK", "0"))
STEPS = 3
SAMPLES = (2, 6)
"""Samples in a batch of rank 0 and of rank 1."""


class Sharded(LightningModule):
    """The small GPT, each block and the rest in shards."""

    def __init__(self, *, checkpointed: bool = False, **options: Any) -> None:
        super().__init__()
        self.gpt, self.options = TinyGPT(checkpointed=checkpointed, logs=False), options

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for block in self.gpt.blocks:
            fully_shard(block, mesh=mesh, **self.options)
        fully_shard(self.gpt, mesh=mesh, **self.options)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.gpt(batch).flatten(0, 1), batch.flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Compiled(Sharded):
    """With its blocks compiled, and computing in bfloat16 where the Trainer's precision says nothing of it."""

    def configure_model(self) -> None:
        for block in self.gpt.blocks:
            block.compile(backend="eager")
        super().configure_model()

    def on_train_end(self) -> None:
        # Nothing of the copy is left on the model: it is still in shards.
        assert all(hasattr(p, "device_mesh") for p in self.gpt.parameters())


class Split(LightningModule):
    """Two layers, the first split by its outputs and the second by its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(128, 64)
        self.pair = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def configure_model(self) -> None:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(self.pair, self.device_mesh["tensor_parallel"], plan)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.pair(self.tokens(batch)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.pair.parameters(), lr=1e-3)


def train(folder: Path, module: LightningModule, strategy: Any, samples: int, *more: Any) -> None:
    trainer = quiet_trainer(
        folder, CostMonitor(usd_per_gpu_hour=1), *more, strategy=strategy, devices=2, use_distributed_sampler=False
    )
    trainer.fit(module, loader([ids(samples)] * STEPS))


def parallel(data: int, tensor: int) -> ModelParallelStrategy:
    return ModelParallelStrategy(data, tensor, process_group_backend="gloo")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    where = Path(sys.argv[1])
    train(where / "ddp", TinyGPT(logs=False), "ddp", SAMPLES[RANK])
    train(where / "fsdp2", Sharded(), parallel(2, 1), SAMPLES[RANK])
    train(where / "fsdp2-checkpointed", Sharded(checkpointed=True), parallel(2, 1), SAMPLES[RANK])
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    train(where / "fsdp2-bf16", Sharded(mp_policy=bf16), parallel(2, 1), SAMPLES[RANK])
    train(where / "fsdp2-compiled", Compiled(mp_policy=bf16), parallel(2, 1), SAMPLES[RANK])
    train(where / "tp", Split(), parallel(1, 2), 4)
