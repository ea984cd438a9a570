"""One of two nodes with a disk of its own, as a process: `node_ranks.py FOLDER`, with NODE_RANK 0 or 1.

Both train one sharded model; what is one path to Lightning is a folder of its own to each, as on two machines. Leaves
`node-N.json` with what the node has on its disk when a cold checkpoint is loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from tiering_ranks import STEPS, Model

from costguard import CheckpointTiering
from helpers import loader, quiet_trainer

NODE = int(os.environ.get("NODE_RANK", "0"))
warnings.simplefilter("ignore")
warnings.filterwarnings("always", message="costguard: checkpoints")


class StopError(Exception):
    """Lightning loads nothing here: torch reads shards only where all of them are."""


class OwnDisks(ModelParallelStrategy):
    """Paths that rank 0 tells the others are the same on each machine, on another disk."""

    root = Path(sys.argv[1])
    found: list[str] | None = None

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        told = super().broadcast(obj, src)
        if not isinstance(told, (str, Path)):
            return told
        return type(told)(str(told).replace(f"{self.root}/n0", f"{self.root}/n{NODE}"))

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        path = Path(str(checkpoint_path).replace(f"{self.root}/n0", f"{self.root}/n{NODE}"))
        type(self).found = sorted(p.name for p in path.iterdir())
        raise StopError


def train(root: Path, ckpt_path: str | None) -> None:
    here = root / f"n{NODE}"
    trainer = quiet_trainer(
        here / "run",
        CheckpointTiering(str(root / "cold"), keep="last(1)", bandwidth="1GB"),
        ModelCheckpoint(here / "run" / "saves", "{step}", every_n_train_steps=1, save_top_k=-1),
        strategy=OwnDisks(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo"),
        devices=1,
        num_nodes=2,
        enable_checkpointing=True,
        use_distributed_sampler=False,
    )
    torch.manual_seed(1 + NODE)
    batches = loader([torch.randn(2, 8) for _ in range(STEPS)])
    trainer.fit(Model(sharded=True), batches, ckpt_path=ckpt_path)


def main(root: Path) -> None:
    torch.manual_seed(0)
    train(root, None)
    left = sorted(p.name for p in (root / f"n{NODE}" / "run" / "saves").iterdir())
    cold = str(root / f"n{NODE}" / "run" / "saves" / "step=2.ckpt")
    with contextlib.suppress(StopError):
        train(root, cold)
    said = {"left": left, "found": OwnDisks.found}
    (root / f"node-{NODE}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
