"""What the environment says about the job and the machine."""

from __future__ import annotations

import os
import socket

import pytest

from costguard.ledger.allocation import Allocation, read_allocation, restarts_left
from costguard.ledger.mounts import ephemeral_disk

UID = "0b7c1d2e-3f40-4a5b-8c6d-7e8f90a1b2c3"
MOUNTS = f"""22 1 0:21 / / rw,relatime - overlay overlay rw,lowerdir=/x
23 22 0:22 / /proc rw - proc proc rw
24 22 8:1 /var/lib/kubelet/pods/{UID}/etc-hosts /etc/hosts rw,relatime - ext4 /dev/sda1 rw
25 22 0:30 / /dev/shm rw - tmpfs shm rw,size=65536k
26 22 8:2 / /data rw,relatime shared:1 - xfs /dev/sdb1 rw
27 26 0:31 / /data/scratch rw - tmpfs tmpfs rw
28 22 0:32 / /database rw - ramfs ramfs rw
"""
NO_PODS = MOUNTS.replace("/pods/", "/plods/")
IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}

# environment, job, hold of the machine, restarted
TABLE: dict[str, tuple[dict[str, str], str | None, str | None, bool | None]] = {
    "no scheduler": ({}, None, None, False),
    "slurm, first start": ({"SLURM_JOB_ID": "42"}, "slurm:42", "slurm:42.0", False),
    "slurm, first start, said so": (
        {"SLURM_JOB_ID": "42", "SLURM_RESTART_COUNT": "0", "SLURM_JOB_NAME": "train"},
        "slurm:42",
        "slurm:42.0",
        False,
    ),
    "slurm, requeued": ({"SLURM_JOB_ID": "42", "SLURM_RESTART_COUNT": "2"}, "slurm:42", "slurm:42.2", True),
    "slurm, a shell": ({"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "bash"}, None, None, False),
    "slurm, interactive": ({"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "interactive"}, None, None, False),
    "slurm, empty": ({"SLURM_JOB_ID": ""}, None, None, False),
    "torchrun with an id": (
        {"TORCHELASTIC_RUN_ID": "exp-7", "TORCHELASTIC_RESTART_COUNT": "0"},
        "elastic:exp-7",
        "elastic:exp-7",
        False,
    ),
    "torchrun with an id, restarted": (
        {"TORCHELASTIC_RUN_ID": "exp-7", "TORCHELASTIC_RESTART_COUNT": "1"},
        "elastic:exp-7",
        "elastic:exp-7",
        True,
    ),
    "torchrun restarted in slurm": (
        {"SLURM_JOB_ID": "42", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"},
        "slurm:42",
        "slurm:42.0",
        True,
    ),
    "torchrun restarted in a pod": (
        IN_POD | {"TORCHELASTIC_RUN_ID": "exp-7", "TORCHELASTIC_RESTART_COUNT": "1"},
        "elastic:exp-7",
        f"pod:{UID}",
        True,
    ),
    "torchrun in slurm": ({"SLURM_JOB_ID": "42", "TORCHELASTIC_RUN_ID": "none"}, "slurm:42", "slurm:42.0", False),
    "a pod": (IN_POD, None, f"pod:{UID}", False),
    "a pod that says its uid": (IN_POD | {"POD_UID": "abc"}, None, "pod:abc", False),
    "pbs": ({"PBS_JOBID": "7.server"}, "pbs:7.server", None, None),
    "lsf": ({"LSB_JOBID": "7", "LSB_JOBINDEX": "0"}, "lsf:7.0", None, None),
    "skypilot": ({"SKYPILOT_TASK_ID": "sky-2026-1"}, "skypilot:sky-2026-1", None, None),
    "a variable that is nobody's": ({"JOB_ID": "7"}, None, None, False),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_the_environment_says(name: str) -> None:
    """Job, hold and restart, as each scheduler and launcher tells them."""
    env, job, hold, restarted = TABLE[name]
    found = read_allocation(env, mounts=MOUNTS)
    assert (found.job, found.tenure.allocation, found.restarted) == (job, hold, restarted)
    assert found.tenure.host == socket.gethostname()


@pytest.mark.parametrize(("count", "restarted"), [("0", False), ("1", True)])
def test_torchrun_without_an_id_is_named_by_its_agent(count: str, restarted: bool) -> None:
    """Every torchrun without an id is called "none", which names nothing: two of them are never one job."""
    found = read_allocation({"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": count}, mounts="")
    assert found.job is None or (found.job.startswith("elastic:") and "none" not in found.job.lower())
    assert found.job is None or str(os.getppid()) in found.job
    assert found.restarted is (restarted and found.job is not None)


def test_a_requeued_job_is_a_new_hold() -> None:
    """Slurm may give a requeued job the same node hours later: the job is the same, the hold is not."""
    first, second = (read_allocation({"SLURM_JOB_ID": "1", "SLURM_RESTART_COUNT": n}, mounts="") for n in "01")
    assert first.job == second.job
    assert first.tenure.allocation != second.tenure.allocation


@pytest.mark.parametrize(
    ("env", "left"),
    [
        ({}, 0),
        ({"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RESTART_COUNT": "1"}, 2),
        ({"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "train", "SLURM_RESTART_COUNT": "5"}, 1),
        ({"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "interactive"}, 0),
        ({"SLURM_JOB_ID": "42", "TORCHELASTIC_MAX_RESTARTS": "3"}, 4),
    ],
    ids=["alone", "torchrun", "slurm", "slurm, interactive", "torchrun in slurm"],
)
def test_starts_that_may_still_come(env: dict[str, str], left: int) -> None:
    """A launcher says how many; a Slurm job can be requeued after any end, so one is always to come."""
    assert restarts_left(env) == left


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"SLURM_JOB_ID": "1"}, {"SLURM_JOB_ID": "2"}),
        ({"PBS_JOBID": "7[1].server"}, {"PBS_JOBID": "7[2].server"}),
        # Array tasks: sge numbers them within a job, lsf gives all of them the job's id.
        ({"JOB_ID": "70", "SGE_TASK_ID": "3"}, {"JOB_ID": "71", "SGE_TASK_ID": "3"}),
        ({"JOB_ID": "70", "SGE_TASK_ID": "undefined"}, {"JOB_ID": "71", "SGE_TASK_ID": "undefined"}),
        ({"LSB_JOBID": "7", "LSB_JOBINDEX": "0"}, {"LSB_JOBID": "8", "LSB_JOBINDEX": "0"}),
        ({"LSB_JOBID": "7", "LSB_JOBINDEX": "1"}, {"LSB_JOBID": "7", "LSB_JOBINDEX": "2"}),
    ],
    ids=["slurm", "pbs array", "sge array", "sge", "lsf", "lsf array"],
)
def test_two_jobs_are_never_one(one: dict[str, str], other: dict[str, str]) -> None:
    """What is started as two pieces of work has two job ids, so that neither inherits the other's spend."""
    assert read_allocation(one, mounts="").job != read_allocation(other, mounts="").job


def test_a_pod_that_cannot_be_named_is_none() -> None:
    """Without a uid in the mount table nothing is guessed."""
    found = read_allocation(IN_POD, mounts=NO_PODS)
    assert (found.job, found.tenure.allocation) == (None, None)
    assert read_allocation({}, mounts=MOUNTS).tenure.allocation is None


def test_the_systems_mount_table_can_be_read() -> None:
    """Without a text the system's own table is read, and whatever it holds is no exception."""
    assert isinstance(read_allocation(IN_POD), Allocation)


@pytest.mark.parametrize(
    ("env", "gpus"),
    [
        ({}, None),
        ({"SLURM_GPUS_ON_NODE": "8"}, 8),
        ({"SLURM_GPUS_ON_NODE": "0"}, 0),
        ({"SLURM_GPUS_ON_NODE": "many"}, None),
        ({"SLURM_JOB_GPUS": "0,1,2"}, 3),
        ({"SLURM_STEP_GPUS": "4"}, 1),
        ({"SLURM_JOB_GPUS": ""}, None),
    ],
)
def test_gpus_that_the_scheduler_gave(env: dict[str, str], gpus: int | None) -> None:
    """A count where the scheduler says one, else unknown, which is not zero."""
    assert read_allocation(env, mounts="").gpus_on_node == gpus


@pytest.mark.parametrize(
    ("path", "env", "word"),
    [
        ("/dev/shm/run", {}, "memory"),
        ("/data/scratch/run", {}, "memory"),
        ("/data/scratch", {}, "memory"),
        ("/database/x", {}, "memory"),
        ("/data/run", {}, None),
        ("/data/scratchy", {}, None),
        ("/home/me", {}, None),
        ("/home/me", IN_POD, "container"),
        ("/home/me", {"RUNPOD_POD_ID": "x"}, "container"),
        ("/data/run", IN_POD, None),
    ],
)
def test_a_disk_that_dies_with_the_node_is_known_where_it_can_be(
    path: str, env: dict[str, str], word: str | None
) -> None:
    """The longest mount above the folder counts; where nothing is known, nothing is said."""
    why = ephemeral_disk(path, env, MOUNTS)
    assert why is None if word is None else word in str(why)
