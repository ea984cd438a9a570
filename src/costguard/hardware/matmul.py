"""The FLOP/s that a large matrix product reaches on this very device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from costguard.hardware.matmul_sweep import cpu_stopwatch, measure_shape


@dataclass(frozen=True, slots=True)
class MeasuredPeak:
    """A measured matmul rate.

    Args:
        flops_per_s: FLOP/s of the quickest product.
        source: How it was measured, for the receipt.
    """

    flops_per_s: float
    source: str


def measure_matmul(device: torch.device, dtype: torch.dtype, *, size: int = 1024, seconds: float = 0.4) -> MeasuredPeak:
    """Measure the rate of a square matrix product; the quickest of those that fit into the time counts.

    The quickest, since whatever else runs on the machine only ever slows a product down.

    Args:
        device: Where to measure; meant for the CPU, where nothing has to be synchronised.
        dtype: The dtype that training's products run in.
        size: Rows and columns of each factor, > 0.
        seconds: How long to go on, > 0.

    Returns:
        Twice size cubed FLOPs over the quickest time.
    """
    rate = measure_shape(device, dtype, (size, size, size), seconds, cpu_stopwatch)
    name = str(dtype).removeprefix("torch.")
    source = f"measured: {size}x{size} {name} matmul on this {device.type.upper()}, {torch.get_num_threads()} threads"
    return MeasuredPeak(rate.max_flops_per_s, source)
