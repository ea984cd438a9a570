"""Budgets of two gloo processes: one decision, at one optimizer step, under the limit, and it stays stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from budgeted import checked
from helpers import TESTS, receipt_of, start

SCRIPT = Path(__file__).with_name("budget_ranks.py")


def _told(folder: Path, attempt: int = 0) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank-{rank}-{attempt}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("what", ["ddp", "accumulate", "fsdp2"])
def test_ranks_stop_at_one_step_under_the_limit(tmp_path: Path, what: str) -> None:
    """One rank is three times slower; both stop at the same step, and one checkpoint of all ranks is left."""
    child = start(SCRIPT, tmp_path, what).finish()
    assert child.code == 0, child.err[-3000:]
    first, second = _told(tmp_path)
    assert first["step"] == second["step"] > 0
    receipt = checked(receipt_of(tmp_path), 36, dollars_a_second=2)
    (attempt,) = receipt["run"]["attempts"]
    assert (attempt["ranks"], attempt["ended"], attempt["last_step"]) == (2, "closed", first["step"])
    (stop,) = receipt["budget"]["stops"]
    assert stop["step"] == first["step"] or stop["step"] < first["step"], "the decision comes before the step"
    (path,) = tmp_path.rglob("stopped-step=*.ckpt")
    assert path.name == f"stopped-step={first['step']}.ckpt"
    if what == "accumulate":
        assert first["touched"] - 2 * first["step"] in (0, 1, 2)  # the loader is a batch ahead
    if what != "fsdp2":
        assert torch.load(path, weights_only=False)["global_step"] == first["step"]


def test_sigterm_to_one_rank_ends_both(tmp_path: Path) -> None:
    """Lightning would hang; here both ranks agree, save, and end with 143, which is no stop for good."""
    child = start(SCRIPT, tmp_path, "signal").finish(100)
    assert child.code == 143, child.err[-3000:]
    first, second = _told(tmp_path)
    assert first["step"] == second["step"] > 20
    assert (first["code"], second["code"]) == (143, 143)
    receipt = receipt_of(tmp_path)
    assert receipt["run"]["attempts"][0]["ended"] == "closed"
    assert not list(tmp_path.rglob("control-*.json"))
    assert list(tmp_path.rglob(f"stopped-step={first['step']}.ckpt"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_launcher_that_restarts_gets_one_attempt_of_work(tmp_path: Path) -> None:
    """`--max-restarts 3` around a breach: three more starts, refused before any data, metered, all under the limit."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with (tmp_path / "err").open("w") as errors:
        launcher = subprocess.Popen(
            [*command, "--max-restarts", "3", str(SCRIPT), str(tmp_path), "torchrun"],
            # Shared, the launcher's store keeps addresses of the ranks before, and gloo may wait for those for ever.
            env={**os.environ, "PYTHONPATH": str(TESTS), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            stdout=errors,
            stderr=errors,
        )
        try:
            launcher.wait(280)
        finally:
            launcher.terminate()  # which it passes on to its ranks
            launcher.wait()
    assert launcher.returncode not in (0, -15)
    assert "exitcode  : 93" in (tmp_path / "err").read_text()
    worked = _told(tmp_path)
    assert worked[0]["step"] == worked[1]["step"] > 0
    assert [each["code"] for each in worked] == [93, 93]
    again = [json.loads(path.read_text()) for path in tmp_path.glob("rank-*-[1-3].json")]
    assert all(each["touched"] == 0 for each in again)
    # The launcher ends the other rank as soon as one is refused, which may be before that one has written.
    assert len(again) >= 3
    assert {each["code"] for each in again} == {93}
    receipt = checked(receipt_of(tmp_path), 130, dollars_a_second=2)
    first, *others = receipt["run"]["attempts"]
    assert first["last_step"] == worked[0]["step"]
    assert len(others) == [v["action"] for v in receipt["verdicts"]].count("refuse") == 3
    assert all(each["elapsed_device_ns"] > 0 and each["batches"] == 0 for each in others)
