"""Describes a device of torch's by the names that tables, drivers and saved measurements know it by."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path

import torch

from costguard.hardware.abilities import Device


def describe(device: torch.device) -> Device:
    """Ask torch what an NVIDIA GPU is, or name the CPU.

    Args:
        device: A device of type `cuda` or `cpu`.

    Returns:
        Its description; a CPU is called by its model and the threads that torch uses, since its rate depends on them.
    """
    if device.type == "cpu":
        threads = torch.get_num_threads()
        return Device(name=f"{_cpu_model()}, {threads} thread{'s' if threads != 1 else ''}")
    facts = torch.cuda.get_device_properties(device)
    name = torch.cuda.get_device_name(device)
    bare = getattr(facts, "uuid", None)  # not before torch 2.4
    # Torch leaves out the prefix by which NVML tells a card from its slice; the name of a slice has its profile.
    uuid = None if bare is None else f"{'MIG' if is_slice(name) else 'GPU'}-{str(bare).lower()}"
    return Device(
        name=name, uuid=uuid, sm_count=facts.multi_processor_count, compute_capability=(facts.major, facts.minor)
    )


def is_slice(device_name: str) -> bool:
    """Whether a driver's name is that of a MIG slice."""
    return " MIG " in device_name


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()
