"""Watches this process's GPU while it trains: figures for the journal and the logger, sentences for the user."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch

from costguard.hardware.abilities import Device, find_abilities
from costguard.hardware.nvml import GpuEvent, GpuReading, GpuTotals, NvmlSampler
from costguard.hardware.torch_device import describe, is_slice
from costguard.policies.utilization import UtilizationSignals

_J_PER_KWH = 3_600_000
_UNKNOWN = GpuReading(at_ns=0, uuid="")


class Sampler(Protocol):
    """As much of `NvmlSampler` as is needed."""

    @property
    def problem(self) -> str | None:
        """Why figures are unknown."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End."""

    def totals(self) -> Mapping[str, GpuTotals]:
        """What each GPU did."""

    def events(self) -> tuple[GpuEvent, ...]:
        """What happened."""


def _allocator(index: int) -> tuple[int, int]:
    """Highest bytes that torch has reserved of a GPU, and of them allocated."""
    return torch.cuda.max_memory_reserved(index), torch.cuda.max_memory_allocated(index)


class GpuWatch:
    """The GPU that this process trains on.

    Args:
        device: What its driver says of it.
        index: Its number in this process, at least 0.
        sampler: What reads it.
        allocator: Gives the highest bytes that torch has reserved and allocated of a GPU, by its number.
    """

    def __init__(
        self,
        device: Device,
        index: int,
        sampler: Sampler,
        allocator: Callable[[int], tuple[int, int]] = _allocator,
    ) -> None:
        self.device = device
        self._index = index
        self._sampler = sampler
        self._allocator = allocator
        self._told: set[str] = set()

    @classmethod
    def for_device(
        cls,
        device: torch.device,
        pids: Collection[int] = (),
        *,
        every_s: float = 1.0,
        sampler: Sampler | None = None,
    ) -> GpuWatch | None:
        """Make the watch of a device; `None` unless it is an NVIDIA GPU.

        Args:
            device: The device that this process trains on.
            pids: Process ids of the run's other ranks on this machine.
            every_s: Seconds between two readings, > 0.
            sampler: What reads it, instead of NVML.
        """
        if device.type != "cuda" or getattr(torch.version, "hip", None) is not None:
            return None
        facts = describe(device)
        if sampler is None:
            named = _named(facts, os.environ)
            sampler = NvmlSampler(every_s, pids, uuids=None if named is None else [named])
        return cls(facts, device.index or 0, sampler)

    def start(self) -> None:
        """Begin to read; returns at once."""
        self._sampler.start()

    def stop(self) -> None:
        """End; what was read stays."""
        self._sampler.stop()

    def warnings(self) -> list[str]:
        """Sentences for the user that no call has given before; for the main thread."""
        said = [event.message for event in self._sampler.events()]
        if self._sampler.problem is not None:
            said.append(self._sampler.problem)
        new = [sentence for sentence in dict.fromkeys(said) if sentence not in self._told]
        self._told.update(new)
        return new

    def fact(self) -> dict[str, Any]:
        """What is written down of the GPU: plain data, `None` where unknown.

        Returns:
            Figures since `start`; `energy_estimated` tells whether any of `energy_j` was integrated from power.
        """
        totals = self._totals() or GpuTotals(uuid=self.device.uuid or "")
        last = totals.last or _UNKNOWN
        return {
            "uuid": totals.uuid or None,
            "name": self.device.name,
            "samples": totals.samples,
            "elapsed_s": totals.elapsed_s,
            "energy_j": totals.energy_j,
            "energy_estimated": totals.energy_estimated,
            "counter_resets": totals.counter_resets,
            "power_mean_w": totals.power_mean_w,
            "power_max_w": totals.power_max_w,
            "power_limit_w": last.power_limit_w,
            "sm_clock_mean_mhz": totals.sm_clock_mean_mhz,
            "sm_clock_limit_mhz": last.sm_clock_limit_mhz,
            "memory_max_bytes": totals.memory_max_bytes,
            "memory_total_bytes": last.memory_total_bytes,
            "utilization_mean_ratio": totals.utilization_mean_ratio,
            "throttled_ratio": None if totals.throttled_ratio is None else dict(totals.throttled_ratio),
            "idle_s": totals.idle_s,
            "lost": totals.lost,
            "errors": totals.errors,
            "problem": self._sampler.problem,
        }

    def metrics(self) -> dict[str, float]:
        """The last reading and the energy so far, for the logger; what is unknown is left out."""
        totals = self._totals()
        now = _UNKNOWN if totals is None or totals.lost else totals.last or _UNKNOWN
        energy_j = None if totals is None else totals.energy_j
        known: dict[str, float | None] = {
            "costguard/gpu_power_w": now.power_w,
            "costguard/gpu_sm_clock_mhz": now.sm_clock_mhz,
            "costguard/gpu_memory_used_bytes": now.memory_used_bytes,
            "costguard/gpu_utilization_ratio": now.utilization_ratio,
            "costguard/energy_kwh": None if energy_j is None else energy_j / _J_PER_KWH,
        }
        return {key: float(value) for key, value in known.items() if value is not None}

    def signals(self, known: UtilizationSignals | None = None) -> UtilizationSignals:
        """Add what NVML, torch's allocator and the card's table know to what training knows.

        Args:
            known: What training knows; its `matmul_dtype` decides what bf16 would gain.
        """
        base = known or UtilizationSignals()
        totals = self._totals()
        can = find_abilities(self._with_clock(totals), base.matmul_dtype)
        reserved_bytes, allocated_bytes = self._memory()
        return replace(
            base,
            **(_from_totals(totals) if totals is not None else {}),
            reserved_bytes=reserved_bytes,
            allocated_bytes=allocated_bytes,
            has_bf16=can.has_bf16,
            has_fp8=can.has_fp8,
            bf16_speedup=can.bf16_speedup,
            nvml_problem=self._sampler.problem,
        )

    def _totals(self) -> GpuTotals | None:
        """This device's own: the only one read, or where all visible ones are read that of its number."""
        found = list(self._sampler.totals().values())
        if len(found) == 1:
            return found[0]
        return found[self._index] if self._index < len(found) else None

    def _with_clock(self, totals: GpuTotals | None) -> Device:
        limit = totals.last.sm_clock_limit_mhz if totals is not None and totals.last is not None else None
        return replace(self.device, max_clock_mhz=limit)

    def _memory(self) -> tuple[int | None, int | None]:
        try:
            return self._allocator(self._index)
        except Exception:  # other allocators keep no such statistics
            return None, None


def _named(device: Device, environ: Mapping[str, str]) -> str | None:
    """The UUID to watch, `None` to watch what `CUDA_VISIBLE_DEVICES` shows."""
    # CUDA may give a slice its card's UUID; the variable that picked the slice is the better word.
    if is_slice(device.name) and environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        return None
    return device.uuid


def _from_totals(totals: GpuTotals) -> dict[str, Any]:
    last = totals.last or _UNKNOWN
    return {
        "sm_clock_mhz": totals.sm_clock_mean_mhz,
        "sm_clock_limit_mhz": last.sm_clock_limit_mhz,
        "throttled_ratio": totals.throttled_ratio,
        "utilization_ratio": totals.utilization_mean_ratio,
        "power_ratio": _ratio(totals.power_mean_w, last.power_limit_w),
        "memory_used_ratio": _ratio(totals.memory_max_bytes, last.memory_total_bytes),
        "memory_total_bytes": last.memory_total_bytes,
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
