"""Whether the newest checkpoint of a run outlives the disk of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from costguard.deadline import within
from costguard.ledger.account import RunAccount
from costguard.ledger.mounts import NETWORK, filesystem_of

STORE_PATIENCE_S = 60.0
REMOTE_FUSE = frozenset(
    f"fuse.{name}"
    for name in (
        *("sshfs", "s3fs", "gcsfuse", "rclone", "juicefs", "goofys", "mountpoint-s3", "blobfuse2", "seaweedfs"),
        *("glusterfs", "ceph-fuse", "ceph", "beegfs", "moosefs", "mfs", "lizardfs", "hdfs", "fuse_dfs"),
    )
)
"""Kinds of FUSE mounts whose files lie on another machine. Others may lie on this disk (a container's layer in
fuse-overlayfs, an encrypted folder, a local ntfs), and so prove nothing."""
_LOCAL_URLS = ("file://", "local://")
_LOST_URLS = ("memory://",)

IsThere = Callable[[str], bool]


def nothing_copied(path: str) -> bool:
    """No checkpoint is known to have a copy in cold storage."""
    return False


def on_store(url: str) -> bool:
    """Whether a checkpoint is on its store.

    Args:
        url: Its URL.

    Raises:
        Exception: Whatever the store raises, or a `TimeoutError`.
    """

    def ask() -> bool:
        import fsspec

        fs, path = fsspec.core.url_to_fs(url)
        return bool(fs.exists(path))

    return within(STORE_PATIENCE_S, ask)


def why_unsafe(
    account: RunAccount,
    *,
    disk_survives: bool = False,
    mounts: str | None = None,
    on_store: IsThere = on_store,
    copied: IsThere = nothing_copied,
) -> str | None:
    """Why the newest checkpoint would be lost with this machine's disk; `None` if it would not, or there is none.

    Args:
        account: The run.
        disk_survives: The user's word that the disk outlives the machine.
        mounts: Text of the mount table; read from the system if `None`.
        on_store: Whether a URL is on its store.
        copied: Whether a checkpoint is known to have a verified copy elsewhere, by its path.

    Returns:
        A clause for the user; what is not known is not safe.
    """
    if disk_survives:
        return None
    for path in saved_paths(account):
        if copied(path):
            return None
        there, why = _look(path, mounts, on_store)
        if there:
            return why
    return None


def saved_paths(account: RunAccount) -> list[str]:
    """Checkpoints of all attempts, newest first; those that can be trained on from come before mere weights."""
    events: list[Any] = [e for rank in account.ranks for e in rank.events if e["k"] == "saved"]
    whole = [e for e in events if e.get("save") is not None]
    paths = [str(e["path"]) for e in reversed(whole or events)]
    return list(dict.fromkeys(paths))


def why_lost(place: str, mounts: str | None = None) -> str | None:
    """Why what lies at a place would be lost with this machine's disk; `None` if it lies on another machine.

    Args:
        place: Path or URL of a file or folder, which need not be there yet.
        mounts: Text of the mount table; read from the system if `None`.
    """
    if place.startswith(_LOST_URLS):
        return "in the memory of the training only"
    if _is_remote(place):
        return None
    kind = filesystem_of(_local(place), mounts)
    if kind in NETWORK or kind in REMOTE_FUSE:
        return None
    return f"on this machine's disk only, {kind or 'an unknown file system'}"


def _look(path: str, mounts: str | None, on_store: IsThere) -> tuple[bool, str | None]:
    """Whether a checkpoint is there, and why it would be lost."""
    if _is_remote(path):
        try:
            return on_store(path), None
        except Exception as error:  # a store may raise anything
            return True, f"it is not known whether {path} is on its store ({type(error).__name__}: {error})"
    why = why_lost(path, mounts)
    there = path.startswith(_LOST_URLS) or os.path.exists(_local(path))
    return there, f"the newest checkpoint {path} is {why}" if why is not None else None


def _is_remote(path: str) -> bool:
    return "://" in path and not path.startswith((*_LOCAL_URLS, *_LOST_URLS))


def _local(path: str) -> str:
    return os.path.realpath(path.partition("://")[2] or path)
