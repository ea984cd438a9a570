"""Opens NVIDIA's driver library: the cards it lists, and what its errors mean to a person."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from costguard.hardware.visible import Card

_NO_PERMISSION = 4
_REMEDIES: Mapping[int, str] = {
    9: "the NVIDIA driver is not loaded; `nvidia-smi` must work first",
    12: "libnvidia-ml.so.1 cannot be loaded; it comes with the NVIDIA driver, into a container with the driver "
    "capability `utility`",
    18: "the NVIDIA driver was updated under the running kernel; reboot, or load the new one",
}
"""What to do about an nvmlReturn_t. Source: nvidia-ml-py 13.615."""


@dataclass(frozen=True, slots=True)
class OpenCard:
    """A card that could be opened.

    Args:
        card: What it is.
        handle: NVML's handle of it.
        slice_handles: Those of its MIG slices, by UUID.
    """

    card: Card
    handle: Any
    slice_handles: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundCards:
    """The cards of a machine.

    Args:
        cards: Those that this process may open, in NVML's order.
        closed: Why one could not be opened, `None` if none failed.
    """

    cards: tuple[OpenCard, ...]
    closed: str | None = None


def import_pynvml() -> Any:
    """Import the module `pynvml` of nvidia-ml-py."""
    import pynvml

    return pynvml


def code_of(error: BaseException) -> int | None:
    """The nvmlReturn_t of an NVMLError, `None` of any other error."""
    return getattr(error, "value", None)


def why_closed(error: Exception) -> str:
    """Say why the library gives no figures, with the remedy where there is one; without a full stop."""
    if isinstance(error, ImportError):
        return "nvidia-ml-py cannot be imported; pip install nvidia-ml-py"
    return _REMEDIES.get(code_of(error) or 0, f"NVML fails with {type(error).__name__}: {error}").rstrip(".")


def text_of(value: str | bytes) -> str:
    """A text of NVML's, which old versions of nvidia-ml-py give as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def find_cards(nvml: Any) -> FoundCards:
    """List the cards of a library that has been begun with `nvmlInit`."""
    cards: list[OpenCard] = []
    closed: str | None = None
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            cards.append(_open(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
        except Exception as error:
            # One that is not permitted is another job's, and CUDA does not count it either.
            if code_of(error) != _NO_PERMISSION:
                closed = f"NVML cannot open GPU {index} ({error})"
    return FoundCards(tuple(cards), closed)


def _open(nvml: Any, handle: Any) -> OpenCard:
    uuid = text_of(nvml.nvmlDeviceGetUUID(handle))
    name = bus = None
    with suppress(Exception):
        name = text_of(nvml.nvmlDeviceGetName(handle))
    with suppress(Exception):
        bus = text_of(nvml.nvmlDeviceGetPciInfo(handle).busId)
    slices = _slices(nvml, handle)
    return OpenCard(Card(uuid, name, bus, None if slices is None else tuple(slices)), handle, slices or {})


def _slices(nvml: Any, handle: Any) -> dict[str, Any] | None:
    """The MIG devices of a card, `None` if it is not in MIG mode."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] == 0:
            return None
        places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except Exception:  # cards and drivers without MIG
        return None
    found: dict[str, Any] = {}
    for place in places:
        with suppress(Exception):  # a place without a slice
            slice_handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            found[text_of(nvml.nvmlDeviceGetUUID(slice_handle))] = slice_handle
    return found
