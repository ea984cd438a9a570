"""Makes the run of a Trainer: who pays, where this rank stands, and what the environment says."""

from __future__ import annotations

import os
from typing import Any

import torch
from lightning.pytorch import Trainer

from costguard.ledger.allocation import read_allocation
from costguard.ledger.devices import paid_devices
from costguard.lightning.run import Place, Run, RunConfig


def make_run(trainer: Trainer, config: RunConfig) -> Run:
    """Begin a run for this process.

    Args:
        trainer: The Trainer, its process group set up.
        config: What the user said.
    """
    allocation = read_allocation(os.environ)
    here = allocation.gpus_on_node
    if here is None:
        here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    nodes = max(1, trainer.num_nodes)
    paid = paid_devices(
        gpus=config.gpus,
        on_nodes=_on_nodes(trainer, nodes, here),
        ranks_on_nodes=[trainer.world_size // nodes] * nodes,
        node=trainer.node_rank if nodes > 1 else 0,
    )
    place = Place(
        rank=trainer.global_rank,
        local_rank=trainer.local_rank,
        world_size=trainer.world_size,
        device=_device_name(trainer),
    )
    return Run(config, place, allocation, paid)


def _on_nodes(trainer: Trainer, nodes: int, here: int) -> list[int]:
    if nodes == 1 or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [here] * nodes
    # Once, at the start: what a node has, only its own ranks can see.
    told: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(told, (trainer.node_rank, here))
    have = dict(told)
    return [have.get(node, 0) for node in range(nodes)]


def _device_name(trainer: Trainer) -> str:
    device = trainer.strategy.root_device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()
