"""What the tests of the watch share: light trainings as processes, watches beside them, and their ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from costguard.clock import is_alive, process_start_ns
from costguard.ledger.account import RunAccount
from costguard.ledger.places import read_folder
from costguard.watchdog.orders import Orders

SCRIPT = Path(__file__).with_name("light_training.py")
QUICK = {"grace_s": 0.3, "poll_s": 0.05, "pause_s": 0.2, "longest_pause_s": 0.4}


def wait_until(what: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait for something to become true, and return it."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


class Place:
    """A folder that trainings and their watches work in; `end` ends what is left of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done = root / "done"
        self._trainings: list[subprocess.Popen[str]] = []
        self._watches: list[tuple[int, int | None]] = []

    def folder(self, run_id: str = "r") -> Path:
        return self.root / "costguard" / run_id

    def train(self, run_id: str = "r", checkpoint: Path | str | None = None) -> subprocess.Popen[str]:
        """Start a light training and wait until its journal is open."""
        arguments = [str(self.root), run_id, *([str(checkpoint)] if checkpoint else [])]
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._trainings.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def watch(self, process: subprocess.Popen[str], run_id: str = "r", **orders: Any) -> int:
        """Start a watch as its module is run, with short intervals; returns its process id."""
        account = self.account(run_id)
        known = {"folder": str(self.folder(run_id)), "attempt": max(account.trainings), "pid": process.pid}
        given = {"command": f"touch {self.done}", "pid_start": process_start_ns(process.pid), **QUICK, **known}
        done = subprocess.run(
            [sys.executable, "-m", "costguard.watchdog"],
            input=Orders(**{**given, **orders}).to_json(),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return self.note(int(done.stdout))

    def note(self, pid: int) -> int:
        """A watch that is to be ended with the test."""
        self._watches.append((pid, process_start_ns(pid)))
        return pid

    def gone(self, pid: int) -> None:
        """Wait for a watch's end."""
        start = next(s for p, s in self._watches if p == pid)
        wait_until(lambda: not is_alive(pid, start))

    def account(self, run_id: str = "r") -> RunAccount:
        return read_folder(str(self.folder(run_id)))

    def log(self, run_id: str = "r") -> str:
        path = self.folder(run_id) / "release.log"
        return path.read_text() if path.exists() else ""

    def verdicts(self, run_id: str = "r") -> list[str]:
        """Reasons of what the watches noted in the journal."""
        ranks = [r for r in self.account(run_id).ranks if "releases" in r.header]
        return [event["reason"] for rank in ranks for event in rank.events if event["k"] == "verdict"]

    def end(self) -> None:
        """End every process of the test."""
        for process in self._trainings:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
        for pid, start in self._watches:
            if is_alive(pid, start):
                os.kill(pid, signal.SIGTERM)
        for pid, start in self._watches:
            wait_until(lambda pid=pid, start=start: not is_alive(pid, start))


def tell(process: subprocess.Popen[str], how: str) -> None:
    """Let a light training end."""
    assert process.stdin is not None
    process.stdin.write(how + "\n")
    process.stdin.flush()
    process.wait()


def posted(bodies: list[bytes]) -> list[dict[str, Any]]:
    """What a webhook got."""
    return [json.loads(body) for body in bodies]
