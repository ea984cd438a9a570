"""A budget under a real Slurm: a job that it has stopped stays stopped when Slurm starts it again."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from cluster import Cluster

from budgeted import checked
from helpers import TESTS, receipt_of, run_folders

SCRIPT = Path(__file__).with_name("slurm_training.py")
LIMIT = 30
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _said(output: Path, start: int) -> list[str]:
    """What one start of the job has printed."""
    return output.read_text().split("start ")[1 + start].splitlines()


def test_a_job_that_its_budget_stopped_is_refused_when_slurm_starts_it_again(slurm: Cluster, tmp_path: Path) -> None:
    """Exit code 93 both times, the second before any data; one run, two attempts, together under the limit."""
    output = tmp_path / "output"
    command = shlex.join(["srun", sys.executable, str(SCRIPT), str(tmp_path), str(LIMIT)])
    job = slurm.submit(output, f"#!/bin/sh\nexec {command}\n", PYTHONPATH=str(TESTS))
    stopped = slurm.wait(job)
    assert (stopped.state, stopped.exit_code) == ("FAILED", 93), output.read_text()
    said = _said(output, 0)
    assert said[0] == "0"
    assert {f"environment SLURMEnvironment {job}", "data"} <= set(said)
    (attempt,) = checked(receipt_of(tmp_path), LIMIT)["run"]["attempts"]
    assert attempt["ended"] == "closed"

    slurm.requeue(job)
    refused = slurm.wait(job, restarts=1)
    assert (refused.state, refused.exit_code) == ("FAILED", 93), output.read_text()
    said = _said(output, 1)
    assert said[0] == "1"
    assert f"environment SLURMEnvironment {job}" in said
    assert any("Not started" in line for line in said)
    assert "data" not in said
    assert len(run_folders(tmp_path)) == 1
    receipt = checked(receipt_of(tmp_path), LIMIT)
    assert [each["attempt"] for each in receipt["run"]["attempts"]] == [1, 2]
    assert receipt["verdicts"][-1]["action"] == "refuse"
