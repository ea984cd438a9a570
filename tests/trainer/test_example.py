"""The example is the main job: train, be killed, resume, and account for it all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from costguard import load_receipt

ROOT = Path(__file__).resolve().parents[2]
TOKENS_PER_STEP = 8 * 128


def start(out: Path, *args: str) -> subprocess.Popen[bytes]:
    """Start the example; its output goes to a file."""
    command = [sys.executable, str(ROOT / "examples" / "train_gpt.py"), "--out", str(out), *args]
    with (out.parent / "output.txt").open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "PYTHONUNBUFFERED": "1"})


def closed(out: Path) -> dict[str, Any]:
    """The receipt, after checking that time closes."""
    receipt = dict(load_receipt(str(out)).data)
    assert sum(receipt["time"]["activities_ns"].values()) == receipt["time"]["elapsed_device_ns"]
    return receipt


def test_the_example_trains_and_leaves_receipt_and_page(tmp_path: Path) -> None:
    """A few steps: exit code 0, a receipt whose time fits what is seen from outside, MFU from a measured peak."""
    out = tmp_path / "demo"
    begin = time.monotonic()
    assert start(out, "--max-steps", "4").wait(timeout=110) == 0
    took = time.monotonic() - begin
    receipt = closed(out)
    elapsed = receipt["time"]["elapsed_device_ns"] / 1e9
    assert abs(elapsed - took) < max(1.0, 0.005 * took)
    assert receipt["tokens"]["trained"] == 4 * TOKENS_PER_STEP
    assert receipt["mfu"]["peak_source"].startswith("measured")
    assert 0 < receipt["mfu"]["billed"] < receipt["mfu"]["step"]
    assert receipt["spend"]["total"] is not None
    assert "This run cost $" in (tmp_path / "output.txt").read_text()
    page = (out / "report.html").read_text()
    assert "<svg" in page
    assert "<script" not in page


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_and_resumed_it_is_one_run(tmp_path: Path) -> None:
    """`kill -9` after a save, `--resume`: two attempts, a gap, rework, all tokens once, time as seen from outside."""
    out = tmp_path / "demo"
    begin = time.monotonic()
    process = start(out, "--max-steps", "70")
    while not (out / "checkpoints" / "last.ckpt").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)
    assert start(out, "--max-steps", "70", "--resume").wait(timeout=400) == 0
    took = time.monotonic() - begin
    receipt = closed(out)
    first, second = receipt["run"]["attempts"]
    assert first["ended"] == "died"
    assert first["gap_after_ns"] > 0
    assert second["first_step"] == 50
    assert receipt["time"]["activities_ns"]["gap"] == first["gap_after_ns"]
    assert first["rework_steps"] == first["last_step"] - 50 > 0
    assert receipt["time"]["outcomes_ns"]["rework"] > 0
    assert receipt["tokens"]["trained"] == 70 * TOKENS_PER_STEP
    assert abs(receipt["time"]["elapsed_device_ns"] / 1e9 - took) < max(1.0, 0.005 * took)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_leaves_the_account_intact(tmp_path: Path) -> None:
    """Ctrl-C: the receipt is printed, the page written, the attempt closed with its reason."""
    out = tmp_path / "demo"
    process = start(out, "--max-steps", "1000")
    metrics = out / "lightning_logs" / "version_0" / "metrics.csv"
    while not metrics.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=100) == 1
    (attempt,) = closed(out)["run"]["attempts"]
    assert attempt["ended"] == "closed"
    assert attempt["reason"] == "KeyboardInterrupt"
    assert (out / "report.html").exists()
    assert "costguard receipt" in (tmp_path / "output.txt").read_text()
