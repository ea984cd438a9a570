"""The peak FLOP/s that a Trainer's device has for its matrix products: given, from the table, or measured on a CPU."""

from __future__ import annotations

import torch
from lightning.pytorch import Trainer

from costguard.hardware.matmul import measure_matmul
from costguard.hardware.peaks import Peak, find_peak

_CPU_DTYPES = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64, "32": torch.float32}
_GPU_DTYPES = {"bf16": "bf16", "16": "fp16", "64": "fp64"}


def device_peak(trainer: Trainer, given: float | None) -> Peak:
    """Find the peak of one device.

    Args:
        trainer: The Trainer, its device known.
        given: The user's own word, FLOP/s.

    Returns:
        The peak, or the reason why it is unknown.
    """
    device = trainer.strategy.root_device
    if given is not None:
        return Peak(given, "given: peak_flops_per_s", False, None)
    if device.type == "cpu":
        measured = measure_matmul(device, _CPU_DTYPES.get(_precision(trainer), torch.float32))
        return Peak(measured.flops_per_s, measured.source, False, None)
    if device.type != "cuda":
        return Peak(None, "unknown", False, f"no peaks are known of {device.type} devices; pass peak_flops_per_s=")
    facts = torch.cuda.get_device_properties(device)
    name, capability = torch.cuda.get_device_name(device), (facts.major, facts.minor)
    dtype = _gpu_dtype(trainer, capability)
    if dtype is None:
        return Peak(None, "unknown", False, f"precision {trainer.precision!r} has no row; pass peak_flops_per_s=")
    return find_peak(name, dtype, sm_count=facts.multi_processor_count, compute_capability=capability)


def _precision(trainer: Trainer) -> str:
    return str(trainer.precision).partition("-")[0]


def _gpu_dtype(trainer: Trainer, capability: tuple[int, int]) -> str | None:
    precision = _precision(trainer)
    if precision != "32":
        return _GPU_DTYPES.get(precision)
    # fp32 products run in TF32 where that is allowed and the card has it.
    allowed = torch.get_float32_matmul_precision() != "highest" or torch.backends.cuda.matmul.allow_tf32
    return "tf32" if allowed and capability >= (8, 0) else "fp32"
