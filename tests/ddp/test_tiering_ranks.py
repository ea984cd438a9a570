"""Checkpoints in two tiers on two gloo ranks: one file, and a sharded directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costguard.checkpoints.cabinet import room_above
from helpers import receipt_of, start

SCRIPT = Path(__file__).with_name("tiering_ranks.py")


@pytest.mark.parametrize("kind", ["ddp", "sharded"])
def test_two_ranks_resume_from_a_cold_checkpoint(tmp_path: Path, kind: str) -> None:
    """Both ranks go on with their very weights, and both hear of a cold copy that cannot be read."""
    child = start(SCRIPT, tmp_path, kind).finish()
    assert child.code == 0, child.err[-3000:]
    for rank in (0, 1):
        said = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert (said["step"], said["same"], said["changed"]) == (2, True, True)
        # The other rank does not wait for the moves of the first.
        assert rank == 1 or not said["was_there"]
        assert "manifest" in said["fails"], said
    records = room_above(str(tmp_path / "run")).inventory.records()
    assert len({r.id for r in records}) == len(records) >= 4 + 6
    folders = [r for r in records if any(fact.kind == "folder" for fact in r.fingerprint)]
    assert len(folders) == (len(records) if kind == "sharded" else 0)
    if kind == "sharded":
        shards = [fact.path for fact in folders[0].fingerprint if fact.path.endswith(".distcp")]
        assert len(shards) == 2
    receipt_of(tmp_path / "run")


def test_two_ranks_read_a_stripped_folder(tmp_path: Path) -> None:
    """Shards that real ranks have saved, without their optimizer's: both ranks test with their very weights."""
    child = start(SCRIPT.with_name("stripped_ranks.py"), tmp_path, "sharded").finish()
    assert child.code == 0, child.err[-3000:]
    for rank in (0, 1):
        said = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert (said["same"], said["changed"]) == (True, True)
        assert "its optimizer state was left away" in said["fails"]
    records = room_above(str(tmp_path / "run")).inventory.records()
    stripped = [r for r in records if r.stripped]
    assert [r.step for r in stripped] == [1, 2, 3]
    assert all(r.size_bytes < 0.7 * records[-1].size_bytes for r in stripped)
    assert {len([f for f in r.fingerprint if f.path.endswith(".distcp")]) for r in stripped} == {2}
