"""How large a training's checkpoints will be, and how often they are saved, as far as it can be told beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from costguard.lightning import private
from costguard.policies.retention import SavePlan

_STATES: Final[dict[str, Callable[[dict[str, Any]], int]]] = {
    "SGD": lambda group: int(bool(group.get("momentum"))),
    "Adam": lambda group: 2 + int(bool(group.get("amsgrad"))),
    "AdamW": lambda group: 2 + int(bool(group.get("amsgrad"))),
    "Adamax": lambda group: 2,
    "NAdam": lambda group: 2,
    "RAdam": lambda group: 2,
    "Adagrad": lambda group: 1,
    "Adadelta": lambda group: 2,
    "RMSprop": lambda group: 1 + int(bool(group.get("momentum"))) + int(bool(group.get("centered"))),
}
"""Tensors of a parameter's size and type that torch's optimizers keep for it. Source: torch.optim, their `state`."""


def predict_bytes(module: LightningModule, optimizers: Iterable[Any], *, weights_only: bool = False) -> int | None:
    """Bytes of one checkpoint before there is one: all parameters, buffers, and what the optimizers keep for each.

    Args:
        module: The model; of a sharded one the whole is counted.
        optimizers: Its optimizers.
        weights_only: Whether the optimizers' state is left out.

    Returns:
        Bytes within some kB of a file that holds nothing large of its own; `None` for an optimizer that is not known.
    """
    total = sum(_bytes(tensor) for tensor in module.state_dict().values() if isinstance(tensor, Tensor))
    for optimizer in () if weights_only else optimizers:
        kept = _optimizer_bytes(getattr(optimizer, "optimizer", optimizer))
        if kept is None:
            return None
        total += kept
    return total


def _optimizer_bytes(optimizer: Optimizer) -> int | None:
    states = _STATES.get(type(optimizer).__name__)
    if states is None or not type(optimizer).__module__.startswith("torch.optim"):
        return None
    groups = optimizer.param_groups
    return sum(states(group) * sum(_bytes(p) for p in group["params"] if p.requires_grad) for group in groups)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def planned_steps(trainer: Trainer) -> int | None:
    """Optimizer steps of the whole fit, once its batches are known; `None` if it has no end."""
    per_epoch = _steps_per_epoch(trainer)
    ends = [trainer.max_steps] if trainer.max_steps >= 0 else []
    if trainer.max_epochs is not None and trainer.max_epochs >= 0 and per_epoch is not None:
        ends.append(trainer.max_epochs * per_epoch)
    return min(ends, default=None)


def save_plans(trainer: Trainer) -> list[SavePlan]:
    """How often each `ModelCheckpoint` saves in steps; those that go by time or by an endless epoch are left out."""
    plans, per_epoch = [], _steps_per_epoch(trainer)
    for each in trainer.checkpoint_callbacks:
        steps, epochs = private.save_triggers(each)
        top_k = getattr(each, "save_top_k", 0)  # by its name: pytorch_lightning has a class of its own
        every = steps or (epochs * per_epoch if epochs and per_epoch else None)
        if every and top_k:
            plans.append(SavePlan(every_steps=every, keeps=None if top_k < 0 else top_k))
    return plans


def weights_only(trainer: Trainer) -> bool:
    """Whether every `ModelCheckpoint` leaves the optimizers out."""
    kinds = [getattr(each, "save_weights_only", False) for each in trainer.checkpoint_callbacks]
    return bool(kinds) and all(kinds)


def _steps_per_epoch(trainer: Trainer) -> int | None:
    batches = trainer.num_training_batches
    return max(1, math.ceil(batches / trainer.accumulate_grad_batches)) if math.isfinite(batches) else None
