"""Real processes, killed with SIGKILL in the middle of whatever they do with checkpoints: nothing is lost."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from living import room_at

from costguard.checkpoints.recovery import collect, find_orphans, recover
from costguard.checkpoints.restore import restore

LIVING = Path(__file__).with_name("living.py")


def live_and_die(root: Path, seed: int, seconds: float) -> list[list[str]]:
    """What a process told before it was killed."""
    command = [sys.executable, "-W", "error", str(LIVING), str(root), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()  # it has begun
        time.sleep(seconds)
        process.kill()
        told = first + process.stdout.read()
        said = process.stderr.read().decode()
    assert process.returncode == -9, said
    return [line.split() for line in told.decode().splitlines() if line.count(" ")]


def lives(root: Path, number: int, patience_s: float) -> tuple[int, int]:
    rng = random.Random(number)
    saved: dict[str, str] = {}
    expiring: set[str] = set()
    interrupted = 0
    for seed in range(number):
        for what, id, *more in live_and_die(root, seed, rng.uniform(0.0, patience_s)):
            if what == "saved":
                saved[id] = more[0]
            elif what == "expiring":
                expiring.add(id)
        told = recover(room_at(root))
        interrupted += bool(told.done or told.interrupted)
        assert told.problems == []
    room = room_at(root)
    collect(room)
    orphans = find_orphans(room)
    assert (orphans.keys, orphans.uploads, orphans.tombstones) == ((), 0, ())
    known = {record.id: record for record in room.inventory.records()}
    for id, sha256 in saved.items():
        if id in expiring:
            continue
        path = Path(restore(room, id))
        data = path if path.is_file() else path / "__0_0.distcp"
        assert hashlib.sha256(data.read_bytes()).hexdigest() == sha256, known[id]
    assert not list((root / "hot").glob(".costguard-*"))
    return len(saved), interrupted


def test_a_process_killed_at_any_moment_loses_no_checkpoint(tmp_path: Path) -> None:
    """Every checkpoint that was told of is there in the end, byte by byte."""
    saved, interrupted = lives(tmp_path, 8, 0.4)
    assert saved > 8
    assert interrupted > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_minute_of_kills_loses_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for longer."""
    saved, interrupted = lives(tmp_path, 80, 0.8)
    with capsys.disabled():
        print(f"\n  80 kills, {saved} checkpoints, {interrupted} lives interrupted in a move")
    assert interrupted > 10
