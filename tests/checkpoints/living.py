"""A process that saves, demotes, restores and deletes checkpoints until it is killed; run by test_killed.py.

Usage: living.py ROOT SEED    tells each thing on its output when it is done: "saved ID SHA256", "expiring ID".
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from pathlib import Path

from costguard.checkpoints.demotion import demote, release
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.hot import HotFiles
from costguard.checkpoints.inventory import Inventory
from costguard.checkpoints.recovery import collect, recover
from costguard.checkpoints.restore import restore
from costguard.checkpoints.room import Room
from costguard.checkpoints.store import LocalStore


def room_at(root: Path) -> Room:
    files = HotFiles()
    inventory = Inventory(str(root / "hot" / "inventory"), files)
    return Room(inventory=inventory, files=files, store=LocalStore(str(root / "cold")), run="r", part_bytes=64 << 10)


def tell(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())


def save(room: Room, root: Path, rng: random.Random) -> None:
    step = rng.randrange(1000)
    path = root / "hot" / f"step={step}.ckpt"
    if len(room.inventory.records()) >= 8 or path.exists() or room.inventory.find(str(path)) is not None:
        return
    data = rng.randbytes(rng.randrange(1, 400_000))
    if rng.random() < 0.5:
        path.mkdir()
        (path / "__0_0.distcp").write_bytes(data)
        (path / ".metadata").write_bytes(b"m" * step)
    else:
        path.write_bytes(data)
    record = room.inventory.adopt(str(path), room.new_id(), step=step)
    tell("saved", record.id, hashlib.sha256(data).hexdigest())


def main(root: Path, seed: int) -> None:
    rng = random.Random(seed)
    room = room_at(root)
    (root / "hot").mkdir(parents=True, exist_ok=True)
    recover(room)
    tell("began", "now")
    while True:
        save(room, root, rng)
        records = room.inventory.records()
        record = rng.choice(records)
        if record.id == records[-1].id:
            continue
        if record.tier == "hot":
            demote(room, record.id)
        elif record.tier == "both":
            release(room, record.id)
        elif rng.random() < 0.5:
            restore(room, record.id)
        elif len(records) > 4:
            tell("expiring", record.id)
            expire(room, record.id)
        if rng.random() < 0.05:
            collect(room)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
