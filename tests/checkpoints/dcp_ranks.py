"""One rank of a job that writes a sharded checkpoint with torch: `dcp_ranks.py FOLDER RANK RANKS`, run by nodes.py.

All ranks write to FOLDER/saved; which rank's shards go to which node is the tests' matter.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

ROWS = 24


def whole() -> torch.Tensor:
    """What all shards together are."""
    return torch.arange(ROWS * 8, dtype=torch.float32).reshape(ROWS, 8)


def main(folder: Path, rank: int, ranks: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    mesh = init_device_mesh("cpu", (ranks,))
    state = {"weight": distribute_tensor(whole(), mesh, [Shard(0)]), "step": torch.tensor(7)}
    dcp.save(state, checkpoint_id=str(folder / "saved"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
