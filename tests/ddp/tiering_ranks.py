"""A script that Lightning starts twice, one process a rank: `tiering_ranks.py FOLDER ddp|sharded`.

It trains with checkpoints in two tiers, goes on from a cold one, and leaves `rank-N.json` with what each rank saw.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn

from costguard import CheckpointTiering
from helpers import loader, monitor, quiet_trainer

RANK = int(os.environ.get("LOCAL_RANK", "0"))
STEPS = 4
warnings.simplefilter("ignore")


class Model(LightningModule):
    def __init__(self, *, sharded: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)
        self.sharded = sharded
        self.seen: dict[int, list[float]] = {}

    def configure_model(self) -> None:
        if self.sharded:
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch).square().mean()

    def on_test_start(self) -> None:
        self.seen[0] = self.weight()

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        self.layer(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.1)

    def weight(self) -> list[float]:
        weight: Any = self.layer.weight
        local = weight.to_local() if hasattr(weight, "to_local") else weight
        values: list[float] = local.detach().flatten().tolist()
        return values

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen[self.trainer.global_step] = self.weight()


class Looks(Callback):
    """Notes step and weight where training begins."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.step, self.weight = trainer.global_step, pl_module.weight()


def train(folder: Path, kind: str, ckpt_path: str | None, **options: Any) -> tuple[Trainer, Model, Looks]:
    sharded = kind == "sharded"
    strategy: Any = "ddp"
    if sharded:
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
    looks = Looks()
    callbacks = [
        CheckpointTiering(str(folder / "cold"), keep="by_model_checkpoint()", bandwidth=1e12),
        monitor(run_id="r"),
        ModelCheckpoint(folder / "saves", "{step}", every_n_train_steps=1),
        looks,
    ]
    trainer = quiet_trainer(
        folder / "run",
        *callbacks,
        strategy=strategy,
        devices=2,
        enable_checkpointing=True,
        use_distributed_sampler=False,
        **options,
    )
    model = Model(sharded=sharded)
    torch.manual_seed(1 + RANK)
    trainer.fit(model, loader([torch.randn(2, 8) for _ in range(STEPS)]), ckpt_path=ckpt_path)
    return trainer, model, looks


def main(folder: Path, kind: str) -> None:
    torch.manual_seed(0)
    _, first, _ = train(folder, kind, None)
    cold = folder / "saves" / "step=2.ckpt"
    was_there = cold.exists()
    _, _, looks = train(folder, kind, str(cold), max_epochs=2)
    fails = ""
    if RANK == 0:
        for damaged in (folder / "cold").rglob("MANIFEST.json"):
            damaged.chmod(0o644)
            damaged.write_text("{}")
    try:
        train(folder, kind, str(folder / "saves" / "step=1.ckpt"), max_epochs=2)
    except Exception as error:
        fails = str(error)
    said = {
        "was_there": was_there,
        "step": looks.step,
        "same": looks.weight == first.seen[2],
        "changed": looks.weight != first.seen[4],
        "fails": fails,
    }
    (folder / f"rank-{RANK}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
