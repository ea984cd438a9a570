"""Which dtypes a card multiplies in, and what bf16 would gain on it."""

from __future__ import annotations

from dataclasses import dataclass

from costguard.hardware.peaks import FIRST_CAPABILITY, find_peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as its driver describes it; what it does not say is `None`.

    Args:
        name: Name, that of a MIG slice with its profile.
        uuid: As NVML writes it (`GPU-...`, `MIG-...`).
        sm_count: Streaming multiprocessors, those of the slice under MIG.
        compute_capability: Such as (9, 0).
        max_clock_mhz: Highest SM clock, MHz.
    """

    name: str
    uuid: str | None = None
    sm_count: int | None = None
    compute_capability: tuple[int, int] | None = None
    max_clock_mhz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a card can multiply in; `None` is unknown.

    Args:
        has_bf16: Whether it multiplies in bf16.
        has_fp8: Whether it multiplies in fp8.
        bf16_speedup: Its peak in bf16 over that in the present dtype.
    """

    has_bf16: bool | None = None
    has_fp8: bool | None = None
    bf16_speedup: float | None = None


def find_abilities(device: Device, matmul_dtype: str | None = None) -> Abilities:
    """Find what a card can multiply in.

    Args:
        device: The card.
        matmul_dtype: What products run in now, as `find_peak` reads it; `None` if unknown.
    """
    return Abilities(
        has_bf16=_has(device, "bf16"), has_fp8=_has(device, "fp8"), bf16_speedup=_bf16_speedup(device, matmul_dtype)
    )


def peak_of(device: Device, dtype: str) -> float | None:
    """The dense peak of a device in FLOP/s, `None` if unknown; see `find_peak`."""
    return find_peak(
        device.name,
        dtype,
        sm_count=device.sm_count,
        compute_capability=device.compute_capability,
        max_clock_mhz=device.max_clock_mhz,
    ).flops_per_s


def _has(device: Device, dtype: str) -> bool | None:
    if device.compute_capability is not None:
        return device.compute_capability >= FIRST_CAPABILITY[dtype]
    # A row of the table shows that it does; none shows nothing.
    return True if peak_of(device, dtype) else None


def _bf16_speedup(device: Device, matmul_dtype: str | None) -> float | None:
    if matmul_dtype is None or not _has(device, "bf16"):
        return None
    bf16, now = peak_of(device, "bf16"), peak_of(device, matmul_dtype)
    return bf16 / now if bf16 and now else None
