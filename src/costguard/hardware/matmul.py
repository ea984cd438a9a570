"""The FLOP/s that a large matrix product reaches on this very device."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch


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
    # A generator of its own: the user's random numbers stay as they are without the measurement.
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.rand(size, size, device=device, generator=generator).to(dtype) for _ in "ab")
    best_ns, end = None, time.perf_counter_ns() + int(seconds * 1e9)
    with torch.inference_mode():
        while best_ns is None or time.perf_counter_ns() < end:
            begin = time.perf_counter_ns()
            torch.mm(a, b)
            took = time.perf_counter_ns() - begin
            best_ns = took if best_ns is None else min(best_ns, took)
    name = str(dtype).removeprefix("torch.")
    source = f"measured: {size}x{size} {name} matmul on this {device.type.upper()}, {torch.get_num_threads()} threads"
    return MeasuredPeak(2 * size**3 / (max(1, best_ns) / 1e9), source)
