"""How much arithmetic a training step is."""

from costguard.flops.closed_form import (
    Convention,
    FlopsPerToken,
    flops_per_token,
    mfu,
    six_nd,
    train_flops,
    utilization,
)

__all__ = ["Convention", "FlopsPerToken", "flops_per_token", "mfu", "six_nd", "train_flops", "utilization"]
