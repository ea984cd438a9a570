"""The peak FLOP/s that a Trainer's device has for its matrix products: given, from the table, or measured on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Trainer

from costguard.hardware.matmul import measure_matmul
from costguard.hardware.peaks import Peak, find_peak

_CPU_DTYPES = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64, "32": torch.float32}
_SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64", torch.float32: "fp32"}
_GPU_DTYPES = {"bf16": "bf16", "16": "fp16", "64": "fp64"}


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """The peak of one device, and what its matrix products run in.

    Args:
        peak: The peak, or the reason why it is unknown.
        dtype: `bf16`, `fp16`, `tf32`, `fp32`, `fp64`; `None` if unknown.
    """

    peak: Peak
    dtype: str | None

    @property
    def flops_per_s(self) -> float | None:
        """Peak FLOP/s, `None` if unknown."""
        return self.peak.flops_per_s

    def fact(self) -> dict[str, Any]:
        """Plain data for the journal."""
        peak = self.peak
        return {
            "flops_per_s": peak.flops_per_s,
            "source": peak.source,
            "estimated": peak.estimated,
            "dtype": self.dtype,
            "reason": peak.reason,
        }


def device_peak(trainer: Trainer, given: float | None) -> DevicePeak:
    """Find the peak of one device.

    Args:
        trainer: The Trainer, its device known.
        given: The user's own word, FLOP/s.

    Returns:
        The peak, or the reason why it is unknown.
    """
    device = trainer.strategy.root_device
    if given is not None:
        return DevicePeak(Peak(given, "given: peak_flops_per_s", False, None), None)
    if device.type == "cpu":
        dtype = _CPU_DTYPES.get(_precision(trainer), torch.float32)
        measured = measure_matmul(device, dtype)
        return DevicePeak(Peak(measured.flops_per_s, measured.source, False, None), _SHORT[dtype])
    if device.type != "cuda":
        why = f"no peaks are known of {device.type} devices; pass peak_flops_per_s="
        return DevicePeak(Peak(None, "unknown", False, why), None)
    return _gpu_peak(trainer, device)


def _gpu_peak(trainer: Trainer, device: torch.device) -> DevicePeak:
    facts = torch.cuda.get_device_properties(device)
    name, capability = torch.cuda.get_device_name(device), (facts.major, facts.minor)
    dtype = _gpu_dtype(trainer, capability)
    if dtype is None:
        why = f"precision {trainer.precision!r} has no row; pass peak_flops_per_s="
        return DevicePeak(Peak(None, "unknown", False, why), None)
    sms = facts.multi_processor_count
    return DevicePeak(find_peak(name, dtype, sm_count=sms, compute_capability=capability), dtype)


def _precision(trainer: Trainer) -> str:
    return str(trainer.precision).partition("-")[0]


def _gpu_dtype(trainer: Trainer, capability: tuple[int, int]) -> str | None:
    precision = _precision(trainer)
    if precision != "32":
        return _GPU_DTYPES.get(precision)
    # fp32 products run in TF32 where that is allowed and the card has it.
    allowed = torch.get_float32_matmul_precision() != "highest" or torch.backends.cuda.matmul.allow_tf32
    return "tf32" if allowed and capability >= (8, 0) else "fp32"
