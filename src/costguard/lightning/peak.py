"""The peak FLOP/s that a Trainer's device has for its matrix products: given, from the table, or measured on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Trainer

from costguard.hardware.achievable import Achievable, find_achievable
from costguard.hardware.matmul import measure_matmul
from costguard.hardware.peaks import Peak, find_peak
from costguard.hardware.torch_device import describe

_CPU_DTYPES = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64, "32": torch.float32}
_SEEN = {
    "bfloat16": "bf16",
    "float16": "16",
    "float64": "64",
    "float32": "32",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}
"""Torch's names of dtypes, as a Trainer's precision would call them."""
_SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64", torch.float32: "fp32"}
_GPU_DTYPES = {"bf16": "bf16", "16": "fp16", "64": "fp64", "fp8": "fp8", "transformer": "fp8"}
"""Transformer Engine runs its linear layers in fp8."""


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """The peak of one device, and what its matrix products run in.

    Args:
        peak: The peak, or the reason why it is unknown.
        dtype: `bf16`, `fp16`, `tf32`, `fp32`, `fp64`, `fp8`; `None` if unknown.
        achievable: What `costguard peak` has measured on this very device, `None` if it was not asked.
    """

    peak: Peak
    dtype: str | None
    achievable: Achievable | None = None

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
            "achievable_flops_per_s": self.achievable.flops_per_s if self.achievable else None,
            "achievable_how": self.achievable.how if self.achievable else None,
        }


def device_peak(trainer: Trainer, given: float | None, seen: str | None = None) -> DevicePeak:
    """Find the peak of one device.

    Args:
        trainer: The Trainer, its device known.
        given: The user's own word, FLOP/s.
        seen: Torch's name of the dtype that most products were seen to run in; until then the precision's.

    Returns:
        The peak, or the reason why it is unknown.
    """
    device = trainer.strategy.root_device
    if given is not None:
        return DevicePeak(Peak(given, "given: peak_flops_per_s", False, None), None)
    if device.type == "cpu":
        dtype = _CPU_DTYPES.get(_precision(trainer, seen), torch.float32)
        measured = measure_matmul(device, dtype)
        return DevicePeak(Peak(measured.flops_per_s, measured.source, False, None), _SHORT[dtype])
    if device.type != "cuda":
        why = f"no peaks are known of {device.type} devices; pass peak_flops_per_s="
        return DevicePeak(Peak(None, "unknown", False, why), None)
    return _gpu_peak(trainer, device, seen)


def _gpu_peak(trainer: Trainer, device: torch.device, seen: str | None) -> DevicePeak:
    facts = torch.cuda.get_device_properties(device)
    name, capability = torch.cuda.get_device_name(device), (facts.major, facts.minor)
    dtype = _gpu_dtype(_precision(trainer, seen), capability)
    if dtype is None:
        why = f"precision {trainer.precision!r} has no row; pass peak_flops_per_s="
        return DevicePeak(Peak(None, "unknown", False, why), None)
    sms, uuid = facts.multi_processor_count, describe(device).uuid
    peak = find_peak(name, dtype, sm_count=sms, compute_capability=capability)
    return DevicePeak(peak, dtype, find_achievable(name, uuid, dtype))


def same_dtype(dtype: str, seen: str) -> bool:
    """Whether a peak's dtype is what torch calls `seen`; TF32 is how some cards multiply float32."""
    names = {"bf16": "bf16", "fp16": "16", "fp64": "64", "fp32": "32", "tf32": "32", "fp8": "fp8"}
    return seen not in _SEEN or names[dtype] == _SEEN[seen]


def _precision(trainer: Trainer, seen: str | None) -> str:
    said = str(trainer.precision).partition("-")[0]
    return _SEEN.get(seen, said) if seen is not None else said


def _gpu_dtype(precision: str, capability: tuple[int, int]) -> str | None:
    if precision != "32":
        return _GPU_DTYPES.get(precision)
    # fp32 products run in TF32 where that is allowed and the card has it.
    allowed = torch.get_float32_matmul_precision() != "highest" or torch.backends.cuda.matmul.allow_tf32
    return "tf32" if allowed and capability >= (8, 0) else "fp32"
