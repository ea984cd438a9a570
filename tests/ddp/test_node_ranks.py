"""Two nodes of one gloo rank each, on disks of their own: what both have is moved as one, and comes back to both."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from costguard.checkpoints.cabinet import room_above
from costguard.checkpoints.restore import restore
from helpers import TESTS, start
from servers import free_ports

SCRIPT = Path(__file__).with_name("node_ranks.py")


def test_two_nodes_move_their_shards_together(tmp_path: Path) -> None:
    """The newest stays on both; the others go from both, whole in the store, and each brings back its own."""
    (port,) = free_ports(1)
    env = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "LOCAL_RANK": "0",
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(SCRIPT.parent), *filter(None, sys.path)]),
    }
    children = [start(SCRIPT, tmp_path, NODE_RANK=str(node), **env) for node in (0, 1)]
    for child in children:
        child.finish()
        assert child.code == 0, child.err[-3000:]
    own = [[".metadata", "__0_0.distcp", "meta.pt"], ["__1_0.distcp"]]
    rooms = [room_above(str(tmp_path / f"n{node}" / "run")) for node in (0, 1)]
    for node in (0, 1):
        said = json.loads((tmp_path / f"node-{node}.json").read_text())
        assert said == {"left": ["step=4.ckpt"], "found": own[node]}
        assert "CostguardWarning" not in children[node].err
    assert [room.owner for room in rooms] == [True, False]
    records = [r for r in rooms[0].inventory.records() if r.nodes]
    assert [(r.step, len(r.nodes)) for r in records] == [(1, 2), (2, 2), (3, 2)]
    assert [(r.step, r.part) for r in rooms[1].inventory.records()] == [(1, True), (2, True), (3, True), (4, True)]
    whole = Path(restore(rooms[1], records[0].id, str(tmp_path / "whole")))
    assert sorted(p.name for p in whole.iterdir()) == sorted(own[0] + own[1])
    assert [key for key in rooms[0].cold.listing("") if "GATHER" in key] == []
