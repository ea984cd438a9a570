"""What the environment says about the job and the machine that this process runs in."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from costguard.clock import boot_id
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
    job, hold, restarted = _slurm(env) or _batch(env) or _pod(env, mounts) or _elastic(env) or (None, None, False)
    return Allocation(
        job=job,
        restarted=restarted,
        tenure=Tenure(allocation=hold, host=socket.gethostname(), boot=boot_id()),
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
    for name, variable in (("pbs", "PBS_JOBID"), ("lsf", "LSB_JOBID"), ("sge", "SGE_TASK_ID")):
        value = env.get(variable)
        if value and value != "undefined":
            return f"{name}:{value}", None, None
    task = env.get("SKYPILOT_TASK_ID")
    return (f"skypilot:{task}", None, None) if task else None


def _pod(env: Mapping[str, str], mounts: str | None) -> _Found | None:
    if "KUBERNETES_SERVICE_HOST" not in env:
        return None
    uid = env.get("POD_UID")
    if not uid:
        found = _POD.search(_mount_table() if mounts is None else mounts)
        uid = found[1] if found else None
    # A pod names a machine, not a job: many experiments may be started by hand in one.
    return (None, f"pod:{uid}", False) if uid else None


def _elastic(env: Mapping[str, str]) -> _Found | None:
    run = env.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return None
    restarted = env.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")
    # "none" is what every torchrun without --rdzv-id is called: it names nothing.
    if run == "none":
        return None
    return f"elastic:{run}", f"elastic:{run}", restarted


def _mount_table() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""


def _gpus_on_node(env: Mapping[str, str]) -> int | None:
    for variable in ("SLURM_GPUS_ON_NODE", "COSTGUARD_GPUS_ON_NODE"):
        text = env.get(variable, "")
        if text.isdigit():
            return int(text)
    listed = env.get("SLURM_JOB_GPUS") or env.get("SLURM_STEP_GPUS")
    return len([gpu for gpu in listed.split(",") if gpu]) if listed else None


EPHEMERAL = {"tmpfs": "memory", "ramfs": "memory"}


def ephemeral_disk(path: str, env: Mapping[str, str], mounts: str | None = None) -> str | None:
    """Name the reason why a folder dies with the node, where that can be known.

    Args:
        path: Absolute path of the folder.
        env: Usually `os.environ`.
        mounts: Text of /proc/self/mountinfo; read from the system if `None`.

    Returns:
        A short reason, or `None` if the disk stays or nothing is known.
    """
    kind = _filesystem_of(path, _mount_table() if mounts is None else mounts)
    if kind in EPHEMERAL:
        return f"it lies in {EPHEMERAL[kind]} ({kind})"
    if kind == "overlay" and any(v in env for v in ("KUBERNETES_SERVICE_HOST", "RUNPOD_POD_ID", "VAST_CONTAINERLABEL")):
        return "it lies in the container's own layer (overlay)"
    return None


def _filesystem_of(path: str, mounts: str) -> str | None:
    best, kind = "", None
    for row in mounts.splitlines():
        left, _, right = row.partition(" - ")
        fields, types = left.split(), right.split()
        if len(fields) < 5 or not types:
            continue
        point = fields[4].rstrip("/")
        if len(point) >= len(best) and (path == point or path.startswith(point + "/")):
            best, kind = point, types[0]
    return kind
