"""Measures what a device reaches and sets it beside what its datasheet states."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

import torch

from costguard.errors import ConfigError
from costguard.hardware.abilities import Device
from costguard.hardware.achievable import MEASURED_DTYPES, Achievable
from costguard.hardware.matmul_sweep import Sweep, sweep
from costguard.hardware.peaks import Peak, canonical_dtype, find_peak
from costguard.hardware.torch_device import describe


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """A device and what it reached.

    Args:
        achievable: The figure to keep.
        swept: All shapes.
        peak: What the datasheet states, or why that is unknown.
    """

    achievable: Achievable
    swept: Sweep
    peak: Peak


def measure_peak(device: str | None, dtype: str | None, seconds: float) -> MeasuredDevice:
    """Measure a device; it is fully loaded and waited for.

    Args:
        device: Name as torch has it; `None` for the first GPU, else the CPU.
        dtype: What products are to run in; `None` for bf16 on a GPU that has it, fp16 on another, fp32 on a CPU.
        seconds: How long, > 0.

    Raises:
        ConfigError: If there is no such device, or it does not multiply in that dtype.
    """
    where = _device(device)
    what = describe(where)
    kind = _dtype(dtype, where, what)
    swept = sweep(where, kind, seconds)
    return MeasuredDevice(_achievable(swept, kind, what), swept, _peak(what, kind))


def _device(text: str | None) -> torch.device:
    if text is None:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        seen = torch.cuda.device_count()
        raise ConfigError(f"peak --device {text}: torch sees {seen} GPUs; `costguard doctor` says what is recognised.")
    if device.type not in ("cuda", "cpu"):
        raise ConfigError(f"peak --device {text}: expected cuda, cuda:1 or cpu.")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else torch.device("cpu")


def _dtype(text: str | None, device: torch.device, what: Device) -> str:
    if text is None:
        return "fp32" if device.type == "cpu" else "bf16" if (what.compute_capability or (0, 0)) >= (8, 0) else "fp16"
    dtype = canonical_dtype(text)
    if dtype not in MEASURED_DTYPES:
        raise ConfigError(f"peak --dtype {text}: expected {', '.join(MEASURED_DTYPES[:-1])} or {MEASURED_DTYPES[-1]}.")
    if dtype == "tf32" and (what.compute_capability or (0, 0)) < (8, 0):
        raise ConfigError(f"peak --dtype tf32: {what.name} has no TensorFloat-32; choose fp32.")
    return dtype


def _achievable(swept: Sweep, dtype: str, what: Device) -> Achievable:
    best = swept.best
    by = "x".join(map(str, best.shape))
    timed = "CUDA events" if what.compute_capability else "host clock"
    return Achievable(
        flops_per_s=best.flops_per_s,
        max_flops_per_s=max(rate.max_flops_per_s for rate in swept.rates),
        dtype=dtype,
        device_name=what.name,
        uuid=what.uuid,
        shape=best.shape,
        date=datetime.now(timezone.utc).date().isoformat(),
        how=f"measured: median of {best.products:,} {by} {dtype} matmuls, {timed}, torch {torch.__version__}",
    )


def _peak(what: Device, dtype: str) -> Peak:
    if what.compute_capability is None:
        return Peak(None, "unknown", False, "no datasheet states that of a CPU")
    return find_peak(what.name, dtype, sm_count=what.sm_count, compute_capability=what.compute_capability)
