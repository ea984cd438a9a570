"""A real Slurm of one node, with its own configuration, keys and ports, gone at the end."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

from servers import free_ports

READY_S = 60
PARTS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
"""Programs of Debian's packages `munge` and `slurm-wlm`."""
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")
_CONFIG = """\
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobacctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_parts() -> list[str]:
    """Programs that are not installed."""
    return [name for name in PARTS if shutil.which(name, path=_PATH) is None]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """What Slurm says of a job.

    Args:
        state: Slurm's word, such as `RUNNING`.
        exit_code: Status of its script; 0 while it has none.
        restarts: How often it was put back into the queue.
    """

    state: str
    exit_code: int
    restarts: int

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.state in _ENDED


class Cluster:
    """munged, slurmctld and slurmd as processes of the test.

    Args:
        folder: Where configuration, key, state and output lie; a socket's path in it must be under 108 bytes.

    Source:
        slurm.conf(5) and munged(8), Slurm 22.05 and MUNGE 0.5.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        controller, node = free_ports(2)
        host = socket.gethostname().partition(".")[0]
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        self._config = folder / "slurm.conf"
        self._config.write_text(
            _CONFIG.format(controller=controller, node=node, folder=folder, user=getuser(), host=host)
        )

    def start(self) -> None:
        """Start it, and return when its node takes jobs."""
        here = self._folder
        files = [f"--{name}-file={here}/munge.{name}" for name in ("key", "pid", "seed")]
        # What it insists on without force are safeguards for a socket that strangers use.
        self._spawn("munged", "--foreground", "--force", f"--socket={here}/munge.socket", *files)
        self._wait((here / "munge.socket").exists)
        self._spawn("slurmctld", "-D", "-f", str(self._config))
        self._spawn("slurmd", "-D", "-f", str(self._config))
        self._wait(lambda: self._run("sinfo", "-h", "-o", "%t", check=False).strip() == "idle")

    def stop(self) -> None:
        """End all jobs, then the daemons, the last started first."""
        try:
            if len(self._processes) == 3:
                self._run("scancel", f"--user={getuser()}", check=False)
                self._wait(lambda: not self._run("squeue", "-h", check=False).strip())
        finally:
            while self._processes:
                _end(self._processes.pop())

    def submit(self, output: Path, script: str, **env: str) -> int:
        """Queue a script of one task that may be started again, and return the job's number.

        Args:
            output: File to which each attempt appends what it prints.
            script: Shell lines.
            env: Variables that the job gets beside the test's own.
        """
        options = [f"--output={output}", "--open-mode=append", "--requeue", "--parsable"]
        limits = ["--ntasks=1", "--job-name=training"]
        printed = self._run("sbatch", *options, *limits, f"--chdir={self._folder}", script=script, **env)
        return int(printed.partition(";")[0])

    def requeue(self, job: int) -> None:
        """Put a job back into the queue, and let it start at once rather than after Slurm's pause."""
        self._run("scontrol", "requeue", str(job))
        self._wait(lambda: self.look(job).state == "PENDING")
        self._run("scontrol", "update", f"jobid={job}", "StartTime=now")

    def look(self, job: int) -> JobState:
        """What Slurm says of a job now."""
        said = self._run("scontrol", "-o", "show", "job", str(job))
        words = dict(word.split("=", 1) for word in said.split() if "=" in word)
        return JobState(
            state=words["JobState"],
            exit_code=int(words["ExitCode"].partition(":")[0]),
            restarts=int(words["Restarts"]),
        )

    def wait(self, job: int, restarts: int = 0, timeout_s: float = 120) -> JobState:
        """Wait until a start of a job is over, and return how.

        Args:
            job: Its number.
            restarts: Which start, 0 for the first.
            timeout_s: Longest wait in seconds.
        """

        def over() -> bool:
            now = self.look(job)
            return now.ended and now.restarts == restarts

        self._wait(over, timeout_s)
        return self.look(job)

    def _spawn(self, name: str, *options: str) -> None:
        program = shutil.which(name, path=_PATH)
        assert program is not None
        with (self._folder / f"{name}.output").open("ab") as output:
            # A group of its own, so that an interrupt of the tests does not end it before its jobs.
            process = subprocess.Popen(
                [program, *options], stdout=output, stderr=output, env=self._env(), start_new_session=True
            )
        self._processes.append(process)

    def _run(self, name: str, *options: str, script: str | None = None, check: bool = True, **env: str) -> str:
        variables = {**self._env(), **env}
        done = subprocess.run(
            [name, *options], input=script, text=True, capture_output=True, timeout=60, env=variables, check=False
        )
        assert not check or done.returncode == 0, (name, options, done.stderr, self._output())
        return done.stdout

    def _env(self) -> dict[str, str]:
        # Tests may run inside a job of another Slurm.
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return {**own, "PATH": _PATH, "SLURM_CONF": str(self._config)}

    def _wait(self, met: Callable[[], bool], timeout_s: float = READY_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not met():
            assert all(process.poll() is None for process in self._processes), self._output()
            assert time.monotonic() < deadline, self._output()
            time.sleep(0.1)

    def _output(self) -> str:
        paths = sorted(self._folder.glob("*.output"))
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}" for path in paths)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
