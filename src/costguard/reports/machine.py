"""What costguard recognises of a machine and why, as plain data."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from costguard import __version__
from costguard.hardware.achievable import all_achievable, find_achievable
from costguard.hardware.peaks import DTYPES, find_peak
from costguard.ledger.allocation import read_allocation
from costguard.ledger.devices import paid_devices
from costguard.ledger.mounts import ephemeral_disk, filesystem_of, is_network

if TYPE_CHECKING:
    from costguard.hardware.abilities import Device
    from costguard.hardware.inventory import Gpu, Inventory

SCHEMA_VERSION = 1
_PACKAGES = ("torch", "lightning", "pytorch-lightning", "nvidia-ml-py")


def describe_machine(inventory: Inventory, environ: Mapping[str, str], folder: str) -> dict[str, Any]:
    """Gather what is recognised: versions, GPUs with their peaks, the allocation, and the folder's disk.

    Args:
        inventory: The GPUs, from `costguard.hardware.inventory.read_inventory`.
        environ: Usually `os.environ`.
        folder: The folder that a run would be in.

    Returns:
        Plain data; what is unknown is `None`, with its reason beside it or among `problems`.
    """
    versions = _versions(inventory)
    return {
        "schema_version": SCHEMA_VERSION,
        "versions": versions,
        "gpus": [_card(index, gpu, inventory) for index, gpu in enumerate(inventory.gpus)],
        "cuda_visible_devices": environ.get("CUDA_VISIBLE_DEVICES"),
        "visible": None if inventory.visible is None else list(inventory.visible),
        "problems": list(_problems(inventory, versions, environ)),
        "measured": [asdict(each) for each in all_achievable()],
        "allocation": _allocation(inventory, environ),
        "folder": _folder(os.path.abspath(folder), environ),
    }


def _versions(inventory: Inventory) -> dict[str, str | None]:
    found = {"costguard": __version__, "python": platform.python_version()}
    packages = {name: _version(name) for name in _PACKAGES}
    return {**found, **packages, "nvidia_driver": inventory.driver, "driver_cuda": inventory.cuda}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _card(index: int, gpu: Gpu, inventory: Inventory) -> dict[str, Any]:
    return {
        "index": index,
        **_part(gpu, inventory),
        "mig": gpu.slices is not None,
        "power_limit_w": gpu.power_limit_w,
        "slices": [_part(each, inventory) for each in gpu.slices or ()],
    }


def _part(gpu: Gpu, inventory: Inventory) -> dict[str, Any]:
    device = gpu.device
    capability = device.compute_capability
    computes = gpu.slices is None
    return {
        "name": device.name,
        "uuid": device.uuid,
        "visible": None if inventory.visible is None else any(p.device.uuid in inventory.visible for p in gpu.parts),
        "sm_count": device.sm_count,
        "compute_capability": None if capability is None else ".".join(map(str, capability)),
        "sm_clock_limit_mhz": device.max_clock_mhz,
        "memory_total_bytes": gpu.memory_total_bytes,
        "peaks": {dtype: _peak(device, dtype) for dtype in DTYPES} if computes else {},
    }


def _peak(device: Device, dtype: str) -> dict[str, Any]:
    peak = find_peak(
        device.name,
        dtype,
        sm_count=device.sm_count,
        compute_capability=device.compute_capability,
        max_clock_mhz=device.max_clock_mhz,
    )
    reached = find_achievable(device.name, device.uuid, dtype)
    return {
        "flops_per_s": peak.flops_per_s,
        "source": peak.source if peak.flops_per_s is not None else None,
        "estimated": peak.estimated,
        "reason": peak.reason,
        "achievable_flops_per_s": reached.flops_per_s if reached else None,
        "achievable_date": reached.date if reached else None,
    }


def _problems(inventory: Inventory, versions: Mapping[str, str | None], environ: Mapping[str, str]) -> Iterator[str]:
    yield from inventory.problems
    if not inventory.gpus:
        return
    if inventory.visible == ():
        asked = environ.get("CUDA_VISIBLE_DEVICES")
        yield f"CUDA_VISIBLE_DEVICES={asked!r} shows none of the GPUs to a training; unset it or name one"
    if (versions["torch"] or "").endswith("+cpu"):
        yield f"torch {versions['torch']} is built without CUDA and uses no GPU; install a CUDA build of it"


def _allocation(inventory: Inventory, environ: Mapping[str, str]) -> dict[str, Any]:
    found = read_allocation(environ)
    visible = None if inventory.visible is None else len(inventory.visible)
    here = found.gpus_on_node if found.gpus_on_node is not None else visible
    alone = None if here is None else paid_devices(gpus=None, on_nodes=[here], ranks_on_nodes=[1], node=0)
    return {
        "job": found.job,
        "restarted": found.restarted,
        "hold": found.tenure.allocation,
        "host": found.tenure.host,
        "boot": found.tenure.boot,
        "gpus_by_scheduler": found.gpus_on_node,
        "gpus_visible": visible,
        "paid_devices_of_one_rank": alone.total if alone else None,
    }


def _folder(path: str, environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        "path": path,
        "filesystem": filesystem_of(path),
        "network": is_network(path),
        "dies_with_machine": ephemeral_disk(path, environ),
    }
