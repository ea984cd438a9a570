"""Measures how fast a device multiplies large matrices, over a few shapes, for some seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from costguard.errors import config_error

_TORCH_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "tf32": torch.float32,
    "fp32": torch.float32,
    "fp64": torch.float64,
}

Shape = tuple[int, int, int]
GPU_SHAPES: tuple[Shape, ...] = (
    *((size, size, size) for size in (2048, 4096, 8192, 16384)),
    (4096, 14336, 4096),
    (8192, 28672, 8192),
)
"""Rows, columns, inner size: cubes, and the feed-forward layers of Llama 3 8B and 70B (arXiv:2407.21783, table 3)."""
CPU_SHAPES: tuple[Shape, ...] = tuple((size, size, size) for size in (512, 1024, 2048))

_WARM_UP = 0.2
_BURST = 10
_Seconds = list[float]
Stopwatch = Callable[[Callable[[], object], int], _Seconds]
"""Calls something so many times and gives the seconds of each."""


@dataclass(frozen=True, slots=True)
class ShapeRate:
    """What one shape reached.

    Args:
        shape: Rows, columns, inner size.
        flops_per_s: FLOP/s, the median of its products.
        max_flops_per_s: FLOP/s of the quickest.
        products: How many were timed.
    """

    shape: Shape
    flops_per_s: float
    max_flops_per_s: float
    products: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a device reached.

    Args:
        rates: Of each shape that was measured.
        skipped: The other shapes, each with the reason.
    """

    rates: tuple[ShapeRate, ...]
    skipped: dict[Shape, str] = field(default_factory=dict)

    @property
    def best(self) -> ShapeRate:
        """The shape with the highest median."""
        return max(self.rates, key=lambda rate: rate.flops_per_s)


def sweep(
    device: torch.device,
    dtype: str,
    seconds: float,
    *,
    shapes: Sequence[Shape] | None = None,
    stopwatch: Stopwatch | None = None,
) -> Sweep:
    """Measure matrix products of several shapes. It waits for the device: not for use while training.

    Args:
        device: Where.
        dtype: One of `costguard.hardware.achievable.MEASURED_DTYPES`.
        seconds: How long in all, > 0; a slow product may make it longer.
        shapes: Rows, columns, inner size of each; small ones first.
        stopwatch: What times the products; CUDA events on a GPU.

    Raises:
        ConfigError: If no shape can be multiplied in that dtype on that device.
    """
    chosen = shapes or (GPU_SHAPES if device.type == "cuda" else CPU_SHAPES)
    timer = stopwatch or _stopwatch_of(device)
    rates: list[ShapeRate] = []
    skipped: dict[Shape, str] = {}
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        for shape in chosen:
            share = seconds / len(chosen)
            if rates and _flops(shape) / rates[-1].flops_per_s > share:
                skipped[shape] = "one product would take longer than its share of the time"
                continue
            try:
                rates.append(measure_shape(device, _TORCH_DTYPES[dtype], shape, share, timer))
            except RuntimeError as error:  # out of memory among them
                skipped[shape] = str(error).splitlines()[0]
    finally:
        torch.set_float32_matmul_precision(before)
    if not rates:
        reason = next(iter(skipped.values()))
        raise config_error(f"peak --dtype {dtype}: {device} cannot multiply in it ({reason}); choose another one.")
    return Sweep(tuple(rates), skipped)


def measure_shape(
    device: torch.device, dtype: torch.dtype, shape: Shape, seconds: float, stopwatch: Stopwatch
) -> ShapeRate:
    """Measure the products of one shape, after a warm-up.

    Args:
        device: Where.
        dtype: Of both factors and the product.
        shape: Rows, columns, inner size.
        seconds: How long, warm-up included; at least one product runs.
        stopwatch: What times them.
    """
    rows, columns, inner = shape
    # A generator of its own: the user's random numbers stay as they are without the measurement.
    generator = torch.Generator(device).manual_seed(0)
    with torch.inference_mode():
        a = torch.randn(rows, inner, device=device, generator=generator).to(dtype)
        b = torch.randn(inner, columns, device=device, generator=generator).to(dtype)
        out = torch.empty(rows, columns, device=device, dtype=dtype)
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            took = _times(lambda: torch.mm(a, b, out=out), seconds, stopwatch)
    return ShapeRate(shape, _flops(shape) / statistics.median(took), _flops(shape) / min(took), len(took))


def cpu_stopwatch(multiply: Callable[[], object], count: int) -> _Seconds:
    """Time calls that return when they are done."""
    stamps = [time.perf_counter_ns()]
    for _ in range(count):
        multiply()
        stamps.append(time.perf_counter_ns())
    return _gaps(stamps, 1e-9)


def cuda_stopwatch(make_event: Callable[[], Any], wait: Callable[[], None]) -> Stopwatch:
    """Time calls that only queue work, by events between them; all but the first start without a gap.

    Args:
        make_event: Makes a timed event.
        wait: Waits until the device has done all that is queued.
    """

    def burst(multiply: Callable[[], object], count: int) -> _Seconds:
        events = [make_event() for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            multiply()
            event.record()
        wait()
        return [first.elapsed_time(second) * 1e-3 for first, second in zip(events, events[1:], strict=False)]

    return burst


def _stopwatch_of(device: torch.device) -> Stopwatch:
    if device.type != "cuda":
        return cpu_stopwatch
    make_event: Any = torch.cuda.Event
    return cuda_stopwatch(lambda: make_event(enable_timing=True), lambda: torch.cuda.synchronize(device))


def _gaps(stamps: Sequence[int], unit_s: float) -> _Seconds:
    return [max(1, later - earlier) * unit_s for earlier, later in zip(stamps, stamps[1:], strict=False)]


def _flops(shape: Shape) -> int:
    rows, columns, inner = shape
    return 2 * rows * columns * inner


def _times(multiply: Callable[[], object], seconds: float, stopwatch: Stopwatch) -> _Seconds:
    """Warm up, so that kernels are chosen and clocks are up, then time products until the time is over."""
    begin = time.monotonic()
    latest = stopwatch(multiply, 1)
    if time.monotonic() - begin >= seconds:
        return latest  # what is as slow as this needs no warm-up
    while time.monotonic() - begin < seconds * _WARM_UP:
        latest = stopwatch(multiply, 1)
    took: _Seconds = []
    while not took or time.monotonic() - begin < seconds:
        left = seconds - (time.monotonic() - begin)
        took += stopwatch(multiply, max(1, min(_BURST, int(left / latest[-1]))))
    return took
