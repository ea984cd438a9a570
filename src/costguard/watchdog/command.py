"""Runs the user's command and tells how it went."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import IO


def run_command(command: str, log_path: str, cap_s: float, **env: str) -> str | None:
    """Run a shell command, its output at the end of a file.

    Args:
        command: For the system's shell.
        log_path: The file; where it cannot be written the output is dropped.
        cap_s: Longest time it may take; then it is ended with all that it has started.
        env: Further environment variables.

    Returns:
        Why it failed, `None` if its exit code was 0.
    """
    with contextlib.ExitStack() as stack:
        log: IO[bytes] | int = subprocess.DEVNULL
        with contextlib.suppress(OSError):
            log = stack.enter_context(open(log_path, "ab"))
        try:
            process = subprocess.Popen(
                command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
            )
        except OSError as error:
            return f"it cannot be started ({error.strerror or error})"
        return _outcome(process, cap_s)


def _outcome(process: subprocess.Popen[bytes], cap_s: float) -> str | None:
    try:
        code = process.wait(cap_s)
    except subprocess.TimeoutExpired:
        return f"it was not done in {cap_s:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code < 0:
        return f"signal {-code} ended it"
    return f"exit code {code}" if code else None
