"""Keeps the matmul rates that were measured on devices of this machine, to be read back without torch."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MEASURED_DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp64")
"""What can be measured, by the names of the peak table."""
_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Achievable:
    """The matmul rate that one device was seen to reach.

    Args:
        flops_per_s: FLOP/s of the best shape, the median of its products.
        max_flops_per_s: FLOP/s of the quickest product of all.
        dtype: What the products ran in, one of `costguard.hardware.peaks.DTYPES`.
        device_name: Name as the driver reports it; for a CPU its model and the threads used.
        uuid: The device's UUID as NVML writes it; `None` for a CPU, or where torch does not say.
        shape: Rows, columns and inner size of the best shape.
        date: Day of the measurement, UTC, as 2026-11-30.
        how: How it was measured, for the receipt.
    """

    flops_per_s: float
    max_flops_per_s: float
    dtype: str
    device_name: str
    uuid: str | None
    shape: tuple[int, int, int]
    date: str
    how: str


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where measurements lie.

    Args:
        environ: Environment variables; this process's if not given.

    Source:
        XDG base directory specification 0.8: `$XDG_CACHE_HOME`, by default ~/.cache; a relative path is ignored.
    """
    asked = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    return (Path(asked) if os.path.isabs(asked) else Path.home() / ".cache") / "costguard"


def save_achievable(measured: Achievable, folder: Path | None = None) -> Path:
    """Keep a measurement, in place of an earlier one of the same device and dtype.

    Args:
        measured: What was measured.
        folder: Where; `cache_folder()` if not given.

    Returns:
        The file.

    Raises:
        OSError: If it cannot be written.
    """
    path = _path(measured.device_name, measured.uuid, measured.dtype, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: ranks and other runs may read it now.
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"schema_version": _SCHEMA_VERSION, **asdict(measured)}, file, indent=2)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
    return path


def find_achievable(device_name: str, uuid: str | None, dtype: str, *, folder: Path | None = None) -> Achievable | None:
    """Find what was measured on this very device; another card of the same name is another device.

    Args:
        device_name: Name as the driver reports it.
        uuid: Its UUID as NVML writes it; `None` for a CPU.
        dtype: What products run in, one of `costguard.hardware.peaks.DTYPES`.
        folder: Where measurements lie; `cache_folder()` if not given.

    Returns:
        The measurement; `None` if there is none, or none that can be read.
    """
    found = _load(_path(device_name, uuid, dtype, folder))
    same = found is not None and (found.device_name, found.uuid, found.dtype) == (device_name, uuid, dtype)
    return found if same else None


def all_achievable(folder: Path | None = None) -> list[Achievable]:
    """Every measurement that was kept, by device and dtype.

    Args:
        folder: Where measurements lie; `cache_folder()` if not given.
    """
    found = (_load(path) for path in (folder or cache_folder()).glob("achievable-*.json"))
    return sorted((each for each in found if each is not None), key=lambda each: (each.device_name, each.dtype))


def _load(path: Path) -> Achievable | None:
    try:
        return _read(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path(device_name: str, uuid: str | None, dtype: str, folder: Path | None) -> Path:
    words = re.sub(r"[^a-z0-9]+", "-", f"{uuid or device_name} {dtype}".lower()).strip("-")
    return (folder or cache_folder()) / f"achievable-{words[:150]}.json"


def _read(data: Mapping[str, Any]) -> Achievable:
    rates = float(data["flops_per_s"]), float(data["max_flops_per_s"])
    if data["schema_version"] != _SCHEMA_VERSION or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise ValueError("not a measurement")
    rows, columns, inner = (int(size) for size in data["shape"])
    uuid = data["uuid"]
    return Achievable(
        flops_per_s=rates[0],
        max_flops_per_s=rates[1],
        dtype=str(data["dtype"]),
        device_name=str(data["device_name"]),
        uuid=None if uuid is None else str(uuid),
        shape=(rows, columns, inner),
        date=str(data["date"]),
        how=str(data["how"]),
    )
