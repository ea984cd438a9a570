"""What the environment says about the job and the machine that this process runs in."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from costguard.clock import boot_id, process_start_ns
from costguard.ledger.mounts import mount_table
from costguard.policies.gap import Tenure

_POD = re.compile(r"/pods/([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The hold on a machine and the job that it is held for.

    Args:
        job: Id that stays the same when a scheduler or launcher starts the same job again, `None` outside one.
        restarted: Whether the scheduler says that this is such a restart; `None` if it does not say.
        tenure: The one uninterrupted hold of the machine; a requeued job is a new hold.
        gpus_on_node: GPUs that the scheduler gave on this node, `None` if it does not say.
    """

    job: str | None
    restarted: bool | None
    tenure: Tenure
    gpus_on_node: int | None


def read_allocation(env: Mapping[str, str], *, mounts: str | None = None) -> Allocation:
    """Read the allocation from environment variables and, in a pod, from the mount table.

    Args:
        env: Usually `os.environ`.
        mounts: Text of /proc/self/mountinfo; read from the system if `None`.

    Source:
        sbatch(1) output environment variables; torch.distributed.elastic "Environment Variables"; the kubelet
        mounts /etc/hosts from /var/lib/kubelet/pods/<uid>/etc-hosts.
    """
    host = socket.gethostname()
    job, hold, restarted = _slurm(env) or _batch(env) or _pod(env, mounts) or (None, None, False)
    launcher = _elastic(env, host)
    if launcher and (job is None or launcher[2]):
        # The launcher started the work again, on whatever hold the scheduler has given.
        job, restarted = job or launcher[0], launcher[2]
        hold = hold or launcher[1]
    return Allocation(
        job=job,
        restarted=restarted,
        tenure=Tenure(allocation=hold, host=host, boot=boot_id()),
        gpus_on_node=_gpus_on_node(env),
    )


_Found = tuple[str | None, str | None, bool | None]


def _slurm(env: Mapping[str, str]) -> _Found | None:
    job = env.get("SLURM_JOB_ID")
    # A shell inside an interactive allocation has a job id, but each script in it is work of its own.
    if not job or env.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None
    restarts = env.get("SLURM_RESTART_COUNT", "0")
    return f"slurm:{job}", f"slurm:{job}.{restarts}", restarts not in ("", "0")


def _batch(env: Mapping[str, str]) -> _Found | None:
    # An array's tasks share the job id and differ in their index; SGE and LSF keep the two apart.
    for name, job, index in (("pbs", "PBS_JOBID", ""), ("lsf", "LSB_JOBID", "LSB_JOBINDEX")):
        if env.get(job):
            return f"{name}:{env[job]}" + (f".{env[index]}" if env.get(index) else ""), None, None
    if env.get("JOB_ID") and env.get("SGE_TASK_ID"):
        return f"sge:{env['JOB_ID']}.{env['SGE_TASK_ID']}", None, None
    task = env.get("SKYPILOT_TASK_ID")
    return (f"skypilot:{task}", None, None) if task else None


def _pod(env: Mapping[str, str], mounts: str | None) -> _Found | None:
    if "KUBERNETES_SERVICE_HOST" not in env:
        return None
    uid = env.get("POD_UID")
    if not uid:
        found = _POD.search(mount_table() if mounts is None else mounts)
        uid = found[1] if found else None
    # A pod names a machine, not a job: many experiments may be started by hand in one.
    return (None, f"pod:{uid}", False) if uid else None


def _elastic(env: Mapping[str, str], host: str) -> _Found | None:
    run = env.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return None
    restarted = env.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")
    if run == "none":
        # Every torchrun without --rdzv-id is called so. Its agent is the parent of its workers and outlives them.
        run = f"{host}-{os.getppid()}-{process_start_ns(os.getppid())}"
    return f"elastic:{run}", f"elastic:{run}", restarted


def restarts_left(env: Mapping[str, str]) -> int:
    """How often launcher and scheduler may still start the work again if it ends with any code but 0.

    Args:
        env: Usually `os.environ`.

    Returns:
        What the launcher says, and one requeue of a Slurm job: Slurm does not say how often it may come.

    Source:
        torch.distributed.elastic, "Environment Variables": torchrun restarts whatever the code is. scontrol(1),
        "requeue": a job that has ended may be put back into the queue.
    """
    most, done = env.get("TORCHELASTIC_MAX_RESTARTS", ""), env.get("TORCHELASTIC_RESTART_COUNT", "0")
    launched = max(0, int(most) - int(done)) if most.isdigit() and done.isdigit() else 0
    return launched + (_slurm(env) is not None)


def _gpus_on_node(env: Mapping[str, str]) -> int | None:
    if env.get("SLURM_GPUS_ON_NODE", "").isdigit():
        return int(env["SLURM_GPUS_ON_NODE"])
    listed = env.get("SLURM_JOB_GPUS") or env.get("SLURM_STEP_GPUS")
    return len([gpu for gpu in listed.split(",") if gpu]) if listed else None
