"""On what kind of file system a path lies, as far as the mount table tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "ceph", "glusterfs", "beegfs", "gpfs"})
"""Kinds whose mapped memory may end the process by a signal when the server is away; FUSE mounts count too."""
_EPHEMERAL = {"tmpfs": "memory", "ramfs": "memory"}
_CONTAINERS = ("KUBERNETES_SERVICE_HOST", "RUNPOD_POD_ID", "VAST_CONTAINERLABEL")


def mount_table() -> str:
    """Text of /proc/self/mountinfo, empty where there is none."""
    try:
        return Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""


def filesystem_of(path: str, mounts: str | None = None) -> str | None:
    """Kind of the file system that an absolute path lies on, `None` if unknown.

    Args:
        path: Absolute path; it need not exist.
        mounts: Text of the mount table; read from the system if `None`.

    Source:
        proc(5), /proc/[pid]/mountinfo: field 5 is the mount point, the first field behind " - " the type.
    """
    best, kind = "", None
    for row in (mount_table() if mounts is None else mounts).splitlines():
        left, _, right = row.partition(" - ")
        fields, types = left.split(), right.split()
        if len(fields) < 5 or not types:
            continue
        point = fields[4].rstrip("/")
        if len(point) >= len(best) and (path == point or path.startswith(point + "/")):
            best, kind = point, types[0]
    return kind


def is_network(path: str) -> bool:
    """Whether a path lies on a file system of another machine."""
    kind = filesystem_of(path) or ""
    return kind in NETWORK or kind.startswith("fuse")


def ephemeral_disk(path: str, env: Mapping[str, str], mounts: str | None = None) -> str | None:
    """Name the reason why a folder dies with the node, where that can be known.

    Args:
        path: Absolute path of the folder.
        env: Usually `os.environ`.
        mounts: Text of the mount table; read from the system if `None`.

    Returns:
        A short reason, or `None` if the disk stays or nothing is known.
    """
    kind = filesystem_of(path, mounts)
    if kind in _EPHEMERAL:
        return f"it lies in {_EPHEMERAL[kind]} ({kind})"
    if kind == "overlay" and any(v in env for v in _CONTAINERS):
        return "it lies in the container's own layer (overlay)"
    return None
