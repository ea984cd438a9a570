"""Lists the NVIDIA GPUs of this machine as their driver describes them, without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from costguard.hardware.abilities import Device
from costguard.hardware.driver import OpenCard, find_cards, import_pynvml, text_of, why_closed
from costguard.hardware.visible import visible_devices

_SM_CLOCK = 1
_CORES_PER_SM = {
    **dict.fromkeys([(7, 0), (7, 2), (7, 5), (8, 0)], 64),
    **dict.fromkeys([(8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)], 128),
}
"""CUDA cores of a multiprocessor. Source: `_ConvertSMVer2Cores` in helper_cuda.h of NVIDIA's cuda-samples 13."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A card, or a slice of one; what its driver does not say is `None`.

    Args:
        device: What it is.
        memory_total_bytes: All its memory.
        power_limit_w: The limit in force; a slice has none of its own.
        slices: Its MIG slices, `None` if it is not in MIG mode.
    """

    device: Device
    memory_total_bytes: int | None = None
    power_limit_w: float | None = None
    slices: tuple[Gpu, ...] | None = None

    @property
    def parts(self) -> tuple[Gpu, ...]:
        """What CUDA computes on: the card, or its slices."""
        return (self,) if self.slices is None else self.slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The GPUs of a machine.

    Args:
        gpus: Cards that this process may open, in NVML's order.
        visible: UUIDs of those, or of their slices, that CUDA shows to this process; `None` if that is not known.
        driver: Version of the driver.
        cuda: Newest CUDA that the driver runs, such as 13.0.
        problems: Why something is not known, each with the remedy, without full stops.
    """

    gpus: tuple[Gpu, ...] = ()
    visible: tuple[str, ...] | None = ()
    driver: str | None = None
    cuda: str | None = None
    problems: tuple[str, ...] = ()


def read_inventory(nvml: Any = None, environ: Mapping[str, str] | None = None) -> Inventory:
    """Ask NVML once; whatever it does, this raises nothing.

    Args:
        nvml: The module `pynvml` of nvidia-ml-py, or what looks like it; imported if not given.
        environ: Environment variables; this process's if not given.
    """
    try:
        nvml = nvml or import_pynvml()
        nvml.nvmlInit()
    except Exception as error:  # a library of any age may raise anything
        return Inventory(visible=None, problems=(why_closed(error),))
    try:
        return _read(nvml, os.environ if environ is None else environ)
    except Exception as error:
        return Inventory(visible=None, problems=(why_closed(error),))
    finally:
        with suppress(Exception):
            nvml.nvmlShutdown()


def _read(nvml: Any, environ: Mapping[str, str]) -> Inventory:
    found = find_cards(nvml)
    chosen = visible_devices([each.card for each in found.cards], environ, complete=found.closed is None)
    # A card that cannot be opened may be one that CUDA shows.
    unclear = chosen.unknown or (found.closed if environ.get("CUDA_VISIBLE_DEVICES") is None else None)
    cuda = _ask(lambda: int(nvml.nvmlSystemGetCudaDriverVersion_v2()))
    return Inventory(
        gpus=tuple(_gpu(nvml, each) for each in found.cards),
        visible=None if unclear else chosen.uuids,
        driver=_ask(lambda: text_of(nvml.nvmlSystemGetDriverVersion())),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        problems=tuple(problem for problem in (chosen.unknown, found.closed) if problem is not None),
    )


def _gpu(nvml: Any, card: OpenCard) -> Gpu:
    handle = card.handle
    capability = _ask(lambda: _pair(nvml.nvmlDeviceGetCudaComputeCapability(handle)))
    whole = Device(
        name=card.card.name or "",
        uuid=card.card.uuid,
        sm_count=_sm_count(nvml, handle, capability),
        compute_capability=capability,
        max_clock_mhz=_ask(lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, _SM_CLOCK))),
    )
    slices = None
    if card.card.slices is not None:
        slices = tuple(_slice(nvml, whole, uuid, of) for uuid, of in card.slice_handles.items())
    return Gpu(
        device=whole,
        memory_total_bytes=_memory_bytes(nvml, handle),
        power_limit_w=_ask(lambda: float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000),
        slices=slices,
    )


def _slice(nvml: Any, card: Device, uuid: str, handle: Any) -> Gpu:
    attributes = _ask(lambda: nvml.nvmlDeviceGetAttributes_v2(handle))
    device = Device(
        name=_slice_name(card.name, _ask(lambda: text_of(nvml.nvmlDeviceGetName(handle))), attributes),
        uuid=uuid,
        sm_count=None if attributes is None else _ask(lambda: int(attributes.multiprocessorCount)),
        compute_capability=card.compute_capability,
        max_clock_mhz=card.max_clock_mhz,
    )
    return Gpu(device=device, memory_total_bytes=_memory_bytes(nvml, handle))


def _slice_name(card: str, name: str | None, attributes: Any) -> str:
    """Name a slice as CUDA does: the card's name, then MIG and the profile."""
    if name is not None and " MIG " in name:
        return name
    if name is not None and name.startswith("MIG "):
        return f"{card} {name}"
    profile = _ask(lambda: f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb")
    return f"{card} MIG {profile or 'of unknown profile'}"


def _sm_count(nvml: Any, handle: Any, capability: tuple[int, int] | None) -> int | None:
    per_sm = _CORES_PER_SM.get(capability or (0, 0))
    return None if per_sm is None else _ask(lambda: int(nvml.nvmlDeviceGetNumGpuCores(handle)) // per_sm)


def _pair(values: Any) -> tuple[int, int]:
    major, minor = values
    return int(major), int(minor)


def _memory_bytes(nvml: Any, handle: Any) -> int | None:
    return _ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total))


def _ask(question: Callable[[], _T]) -> _T | None:
    try:
        return question()
    except Exception:  # cards, drivers and bindings that know no such thing
        return None
