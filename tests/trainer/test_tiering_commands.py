"""What a training leaves undone is done by `costguard ckpt`, as the training would have done it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiering import records, saves, tiering, tiers, train

from costguard.checkpoints.cabinet import room_above
from costguard.checkpoints.manifest import Level
from costguard.cli.main import main
from helpers import LIGHTNING_WARNINGS

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:costguard. checkpoints stay on the hot disk for now"),
]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


@pytest.mark.parametrize("save_last", [False, True])
def test_apply_ends_what_the_store_hindered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], save_last: bool
) -> None:
    """By the rules, the class and the verification of the training; the moved one is resumed from as ever."""
    (tmp_path / "cold").write_text("a file where the folder should be")
    asked = {"keep": "last(2)", "storage_class": "s3:GLACIER_IR", "hot_class": "ebs:gp3", "verify": "content"}
    _, module = train(tmp_path, saves(tmp_path, save_top_k=-1, save_last=save_last), tiering(tmp_path, **asked))
    run = str(tmp_path / "run")
    assert set(tiers(tmp_path).values()) == {"hot"}
    (tmp_path / "cold").unlink()
    plan = told(capsys, "ckpt", "plan", run)
    # With save_last the copy last.ckpt takes no place of its own.
    assert (plan["keep"], plan["totals"]["demote"]) == ("last(2)", 3)
    assert plan["totals"]["usd_saved_per_month"] is not None
    assert room_above(run).required is Level.CONTENT
    done = told(capsys, "ckpt", "apply", run, "--yes")
    assert [c for c in done["checkpoints"] if c.get("stays")] == []
    first = records(tmp_path)[0]
    assert (first.tier, first.level, first.storage_class) == ("cold", Level.CONTENT, "GLACIER_IR")
    assert told(capsys, "ckpt", "plan", run)["totals"]["demote"] == 0
    trainer, again = train(tmp_path, saves(tmp_path, save_top_k=-1), tiering(tmp_path, **asked), ckpt_path=first.path)
    assert trainer.global_step == 5
    assert torch.equal(again.weights[5], module.weights[5])
