"""What a rule may know of a checkpoint, read from the Trainer at its save."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer

from costguard.lightning.checkpoint_figures import metered_run
from costguard.lightning.shield import metering


def _tokens(trainer: Trainer) -> int | None:
    run = metered_run(trainer)
    figures = run.figures() if run is not None else None
    return figures.tokens if figures is not None else None


def _tags(trainer: Trainer, stage: str | None) -> dict[str, str]:
    run = metered_run(trainer)
    return {**(run.config.tags if run is not None else {}), **({"stage": stage} if stage else {})}


def metrics_of(trainer: Trainer) -> dict[str, float | None]:
    """What is logged now, asked for on every rank: the first look at an epoch's end reduces it over all of them."""
    metrics: dict[str, float | None] = {}
    for name, value in trainer.callback_metrics.items():
        with metering():
            metrics[name] = float(value)
    return metrics


def facts_of(trainer: Trainer, stage: str | None) -> Mapping[str, Any]:
    """What else is told of it, on the rank that keeps the list.

    Args:
        trainer: At the save.
        stage: What `begin_stage` has named, `None` if nothing.
    """
    tokens: int | None = None
    tags: dict[str, str] = {}
    with metering():
        tokens = _tokens(trainer)
        tags = _tags(trainer, stage)
    return {
        "step": trainer.global_step,
        "saved_ns": time.time_ns(),
        "epochs": trainer.current_epoch,
        "tokens": tokens,
        "tags": tags,
    }
