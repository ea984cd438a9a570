"""A script that Lightning starts twice, one process a rank: `stripped_ranks.py FOLDER sharded`.

It trains with checkpoints in two tiers, strips the cold ones, and leaves `rank-N.json` with what each rank then reads.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from tiering_ranks import RANK, Model, train

from costguard import CheckpointTiering
from costguard.checkpoints.cabinet import room_above
from costguard.checkpoints.stripping import strip
from helpers import loader, quiet_trainer


def main(folder: Path, kind: str) -> None:
    torch.manual_seed(0)
    _, first, _ = train(folder, kind, None)
    if RANK == 0:
        room = room_above(str(folder / "run"))
        for record in [r for r in room.inventory.records() if r.tier == "cold"]:
            strip(room, record.id)
    torch.distributed.barrier()
    cold = str(folder / "saves" / "step=2.ckpt")
    tested = Model(sharded=True)
    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
    trainer = quiet_trainer(folder / "run", CheckpointTiering(str(folder / "cold")), strategy=strategy, devices=2)
    trainer.test(tested, loader([torch.ones(2, 8)]), ckpt_path=cold, verbose=False)
    fails = ""
    try:
        train(folder, kind, cold, max_epochs=2)
    except Exception as error:
        fails = str(error)
    said = {"same": tested.seen[0] == first.seen[2], "changed": tested.seen[0] != first.seen[4], "fails": fails}
    (folder / f"rank-{RANK}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
