"""Whether the newest checkpoint outlives the machine's disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

from builders import Attempt, Journal
from costguard.ledger.account import RunAccount
from costguard.watchdog.safety import nothing_copied, on_store, saved_paths, why_lost, why_unsafe

LOCAL = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"


def _mounted(kind: str, point: Path | str) -> str:
    return f"{LOCAL}23 22 0:9 / {point} rw - {kind} source rw\n"


def _saved(*paths: Path | str, attempt: Attempt | None = None, save: int | None = 1) -> RunAccount:
    journal = Journal()
    writer = (attempt or journal.attempt()).writer
    for number, path in enumerate(paths):
        writer.saved(save=save, path=str(path), step=number, bytes=1, blocked_ns=1, mark=None)
    return journal.account()


def _why(account: RunAccount, **options: Any) -> str | None:
    return why_unsafe(account, **{"mounts": LOCAL, "on_store": lambda url: True, **options})


def test_a_checkpoint_on_the_local_disk_is_not_safe(tmp_path: Path) -> None:
    """It is named, with the kind of file system that it lies on."""
    path = tmp_path / "last.ckpt"
    path.touch()
    assert _why(_saved(path)) == f"the newest checkpoint {path} is on this machine's disk only, ext4"
    assert _why(_saved(f"file://{path}")) is not None


def test_a_run_without_checkpoints_has_none_to_lose() -> None:
    """It crashed before its first save."""
    assert _why(Journal().account()) is None


def test_the_users_word_is_enough(tmp_path: Path) -> None:
    """The disk outlives the machine."""
    path = tmp_path / "last.ckpt"
    path.touch()
    assert _why(_saved(path), disk_survives=True) is None


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "ceph", "fuse.gcsfuse", "fuse.s3fs", "fuse.juicefs"])
def test_a_network_mount_is_safe(tmp_path: Path, kind: str) -> None:
    """What lies on it lies on another machine."""
    path = tmp_path / "last.ckpt"
    path.touch()
    assert _why(_saved(path), mounts=_mounted(kind, tmp_path)) is None


@pytest.mark.parametrize("kind", ["overlay", "tmpfs", "fuseblk", "fuse.fuse-overlayfs", "fuse", "fuse.gocryptfs"])
def test_mounts_that_may_be_of_this_disk_prove_nothing(tmp_path: Path, kind: str) -> None:
    """A container's layer, memory, and file systems in user space that nothing tells more of."""
    path = tmp_path / "last.ckpt"
    path.touch()
    assert kind in str(_why(_saved(path), mounts=_mounted(kind, tmp_path)))


def test_a_link_on_a_network_mount_is_followed(tmp_path: Path) -> None:
    """What counts is where the file lies."""
    away, here = tmp_path / "away", tmp_path / "here"
    away.mkdir()
    here.mkdir()
    (here / "real.ckpt").touch()
    (away / "last.ckpt").symlink_to(here / "real.ckpt")
    assert _why(_saved(away / "last.ckpt"), mounts=_mounted("nfs4", away)) is not None


def test_a_url_is_safe_where_its_store_has_it(tmp_path: Path) -> None:
    """The store is asked, and one that does not answer leaves it unknown: not safe."""

    def away(url: str) -> bool:
        raise OSError("no route")

    assert _why(_saved("s3://b/last.ckpt")) is None
    assert "not known" in str(_why(_saved("s3://b/last.ckpt"), on_store=away))
    local = tmp_path / "older.ckpt"
    local.touch()
    assert str(local) in str(_why(_saved(local, "s3://b/lost.ckpt"), on_store=lambda url: False))


def test_the_store_is_really_asked() -> None:
    """By fsspec, which knows what is there and what is not."""
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/costguard-safety/a.ckpt", b"x")
    try:
        assert on_store("memory://costguard-safety/a.ckpt")
        assert not on_store("memory://costguard-safety/b.ckpt")
    finally:
        fs.rm("/costguard-safety", recursive=True)


def test_the_newest_that_is_still_there_counts(tmp_path: Path) -> None:
    """Lightning removes what is no longer among the best; a removed one can be lost no more."""
    gone = tmp_path / "gone.ckpt"
    assert _why(_saved("s3://b/older.ckpt", gone)) is None
    gone.touch()
    assert _why(_saved("s3://b/older.ckpt", gone)) is not None
    assert _why(_saved(gone, "s3://b/newer.ckpt")) is None


def test_mere_weights_are_no_replacement(tmp_path: Path) -> None:
    """Training cannot go on from them, so the newest whole checkpoint counts; alone they count themselves."""
    journal, path = Journal(), tmp_path / "whole.ckpt"
    path.touch()
    writer = journal.attempt().writer
    common = {"bytes": 1, "blocked_ns": 1, "mark": None}
    writer.saved(save=1, path=str(path), step=1, **common)
    writer.saved(save=None, path="s3://b/weights.ckpt", step=2, **common)
    assert saved_paths(journal.account()) == [str(path)]
    assert _why(_saved(path, save=None)) is not None


def test_a_known_copy_is_safe(tmp_path: Path) -> None:
    """Whoever keeps copies elsewhere can say so of each path."""
    path = tmp_path / "last.ckpt"
    path.touch()
    assert _why(_saved(path), copied=lambda p: p == str(path)) is None
    assert not nothing_copied(str(path))


def test_places_are_judged_before_anything_lies_there() -> None:
    """At the start, to say what would be refused later."""
    assert why_lost("/not/there/yet", LOCAL) == "on this machine's disk only, ext4"
    assert why_lost("s3://b/x", LOCAL) is None
    assert "memory" in str(why_lost("memory://x", LOCAL))
