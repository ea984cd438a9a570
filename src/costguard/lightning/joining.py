"""Makes the run of a Trainer: who pays, where this rank stands, and what the environment says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import Trainer

from costguard.errors import config_error
from costguard.ledger.allocation import read_allocation
from costguard.ledger.devices import paid_devices
from costguard.lightning.run import Place, Run, RunConfig
from costguard.prices import PriceBook


def callbacks_of(trainer: Trainer) -> list[Any]:
    """The Trainer's own list of callbacks; what is added to it while hooks run is called too."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return callbacks


def agreed_book(callbacks: Iterable[Any]) -> PriceBook:
    """The prices that a Trainer's callbacks state: those of any, and of several only if they are the same.

    Args:
        callbacks: All callbacks; those of costguard that may state prices have `stated_prices`.

    Raises:
        ConfigError: If two state different prices.
    """
    stated = [(type(c).__name__, book) for c in callbacks if (book := getattr(c, "stated_prices", None)) is not None]
    given = [(name, book) for name, book in stated if book.prices]
    for name, book in given[1:]:
        if not book.same_as(given[0][1]):
            raise config_error(
                f"{given[0][0]} and {name} state different prices; give the price in one of them, or the same in both."
            )
    return given[0][1] if given else PriceBook()


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
