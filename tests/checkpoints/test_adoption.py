"""Checkpoints that are on a disk and in no list are taken up, and what is not safe to take up is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rooms import path_of, room_of, saved

from costguard.checkpoints.adoption import take_up
from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.faults import RefusedError
from costguard.checkpoints.recovery import recover
from costguard.checkpoints.room import Room
from costguard.checkpoints.store import LocalStore

DAY_NS = 86_400 * 10**9
NOW = 1_800_000_000 * 10**9


def lies(room: Room, name: str, saved_ns: int = NOW) -> Path:
    """A file that no list knows."""
    path = path_of(room, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"weights")
    os.utime(path, ns=(saved_ns, saved_ns))
    return path


def test_it_takes_the_place_that_its_time_gives_it(room: Room) -> None:
    """What is taken up late is not the newest for it: that would let the real newest go."""
    first = saved(room, "a.ckpt", saved_ns=NOW, step=1)
    newest = saved(room, "b.ckpt", saved_ns=NOW + 2 * DAY_NS, step=2)
    middle = take_up(room, str(lies(room, "m-step=7.ckpt", NOW + DAY_NS))).record
    old = take_up(room, str(lies(room, "old.ckpt", NOW - DAY_NS))).record
    assert [r.id for r in room.inventory.records()] == [old.id, first, middle.id, newest]
    found = room.inventory.newest_complete()
    assert found is not None
    assert found.id == newest
    late = take_up(room, str(lies(room, "late.ckpt", NOW + 3 * DAY_NS))).record
    later = saved(room, "c.ckpt", saved_ns=NOW + 4 * DAY_NS)
    assert [r.id for r in room.inventory.records()][-3:] == [newest, late.id, later]


def test_the_step_is_what_is_said_or_what_the_name_says(room: Room) -> None:
    """And it is told where it is from; a second time it is the one of the list."""
    path = lies(room, "epoch=3-step=12.ckpt")
    taken = take_up(room, str(path))
    assert (taken.record.step, taken.known, taken.step_from) == (12, False, "name")
    again = take_up(room, str(path), step=99)
    assert (again.record.id, again.record.step, again.known, again.step_from) == (taken.record.id, 12, True, "list")
    assert take_up(room, str(lies(room, "x-step=3.ckpt")), step=99).record.step == 99
    unknown = take_up(room, str(lies(room, "weights.ckpt")))
    assert (unknown.record.step, unknown.step_from) == (0, "nothing")


def test_what_was_taken_up_moves_like_any_other(room: Room) -> None:
    """A sharded folder, by a link to it."""
    lies(room, "sharded/.metadata")
    lies(room, "sharded/__0_0.distcp")
    os.symlink("sharded", path_of(room, "last.ckpt"))
    taken = take_up(room, str(path_of(room, "last.ckpt"))).record
    saved(room, "newest.ckpt", saved_ns=NOW + DAY_NS)
    demote(room, taken.id)
    assert release(room, taken.id).state == "cold"
    assert not path_of(room, "sharded").exists()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nothing.ckpt", "there is no such checkpoint"),
        ("inventory", "part of what costguard keeps for itself"),
        (".", "name what lies in it"),
        ("listed/part", "is part of the checkpoint"),
        ("above", "holds .*above/listed.ckpt"),
        ("unfinished", "its save has not ended"),
        (".costguard-trash/id", "on its way in or out"),
        ("../cold/object", "part of what costguard keeps for itself"),
    ],
)
def test_what_is_not_apart_or_not_finished_is_refused(tmp_path: Path, path: str, why: str) -> None:
    """Letting it go later would take something else along."""
    (tmp_path / "hot").mkdir()
    room = room_of(tmp_path / "hot", LocalStore(str(tmp_path / "cold")))
    for name in (
        "listed/part",
        "above/listed.ckpt",
        "unfinished/__0_0.distcp",
        ".costguard-trash/id",
        "../cold/object",
    ):
        lies(room, name)
    for listed in ("listed", "above/listed.ckpt"):
        take_up(room, str(path_of(room, listed)))
    with pytest.raises(RefusedError, match=why):
        take_up(room, str(path_of(room, path)))
    assert len(room.inventory.records()) == 2


def test_ghosts_are_looked_for_without_a_note(room: Room) -> None:
    """A plan that changes nothing must know what is gone all the same."""
    gone = saved(room, "a.ckpt")
    saved(room, "b.ckpt")
    path_of(room, "a.ckpt").unlink()
    assert [ghost.id for ghost in room.inventory.ghosts()] == [gone]
    assert len(room.inventory.records()) == 2
    recover(room)
    assert room.inventory.ghosts() == []
    assert len(room.inventory.records()) == 1
