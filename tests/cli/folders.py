"""A folder as a training leaves it, what a command prints, and what a folder looks like before and after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costguard.checkpoints.cabinet import Cold, open_room
from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.record import Record
from costguard.checkpoints.room import Room, new_id
from costguard.cli.main import main

SIZE = 3000
CHANGED = 10**18
"""When the checkpoints were saved, ns since the epoch: years ago, one second after the other."""


def trained(folder: Path, steps: int = 3, **cold: Any) -> Room:
    """A folder with one checkpoint a step, all hot, and a cold folder beside it."""
    room = open_room(
        str(folder / "run"), Cold(**{"url": str(folder / "cold"), "storage_class": "s3:GLACIER_IR", **cold})
    )
    for step in range(1, steps + 1):
        saved(room, step)
    return room


def saved(room: Room, step: int, name: str = "", data: bytes = b"", **facts: Any) -> Record:
    """One more checkpoint."""
    path = Path(room.inventory.folder).parent / "saves" / (name or f"step={step}.ckpt")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data or bytes([step]) * SIZE)
    facts = {"step": step, "saved_ns": CHANGED + step * 10**9, **facts}
    return room.inventory.adopt(str(path), new_id(), **facts)


def in_three_tiers(folder: Path) -> Room:
    """Three checkpoints, of which step 1 is cold, step 2 in both tiers and step 3 hot."""
    room = trained(folder)
    first, second, _ = room.inventory.records()
    for record in (first, second):
        demote(room, record.id)
    release(room, first.id)
    return room


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """What a command prints as JSON, after its exit code was looked at."""
    capsys.readouterr()
    found = main([*arguments, "--json"])
    told = capsys.readouterr()
    assert found == code, told.err
    data: dict[str, Any] = json.loads(told.out)
    assert data["schema_version"] == 1
    return data


def run_text(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints for a person, after its exit code was looked at."""
    capsys.readouterr()
    found = main([*arguments])
    told = capsys.readouterr()
    assert found == code, told.err
    return told.out


def looks(folder: Path) -> dict[str, tuple[bytes | None, int]]:
    """Every path below a folder with its bytes and its time."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else None, path.lstat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }
