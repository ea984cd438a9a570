"""Which devices are paid for, and which of them no rank uses."""

from __future__ import annotations

from dataclasses import dataclass

from costguard.errors import config_error


@dataclass(frozen=True, slots=True)
class Paid:
    """Devices of a run.

    Args:
        total: Paid devices over all nodes.
        idle_here: Those of this node that no rank uses; carried by the node's first rank.
    """

    total: int
    idle_here: int


def check_gpus(owner: str, gpus: int | None) -> None:
    """Refuse a count that cannot be one.

    Raises:
        ConfigError: With the remedy.
    """
    if gpus is not None and (isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1):
        raise config_error(f"{owner}(gpus={gpus!r}): expected how many GPUs are paid for over all nodes, such as 8.")


def paid_devices(
    *, gpus: int | None, on_nodes: list[int], ranks_on_nodes: list[int], node: int, owner: str = "CostMonitor"
) -> Paid:
    """Count the devices that are paid for: the user's word, else what each node has, never less than the ranks.

    Args:
        gpus: The user's word for the whole allocation, `None` to take what the nodes have.
        on_nodes: GPUs allocated to or visible on each node, 0 on a node without any.
        ranks_on_nodes: Ranks on each node; each uses one device, a GPU or a CPU.
        node: This node's index.
        owner: Who asks, for the error.

    Raises:
        ConfigError: If fewer GPUs are said to be paid for than there are ranks.
    """
    world = sum(ranks_on_nodes)
    if gpus is None:
        idle = [max(0, have - used) for have, used in zip(on_nodes, ranks_on_nodes, strict=True)]
        return Paid(world + sum(idle), idle[node])
    if gpus < world:
        raise config_error(
            f"{owner}(gpus={gpus}): {world} ranks run, each on a device of its own; "
            f"give gpus={world} or more, or leave it out."
        )
    nodes, spare = len(ranks_on_nodes), gpus - world
    return Paid(gpus, spare // nodes + (1 if node < spare % nodes else 0))
