"""A process that leaves a journal as a training does, without torch: `light_training.py FOLDER RUN [CHECKPOINT]`.

It prints `ready`, and ends as the next line on its standard input says: end, breach, fail or interrupt; or by a signal.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from costguard.clock import SystemClock, boot_id, process_start_ns
from costguard.ledger.activity import ActivityMeter
from costguard.ledger.attempt import AttemptWriter, count
from costguard.ledger.control import ControlLog
from costguard.ledger.files import LocalFiles
from costguard.ledger.opening import claim_attempt
from costguard.prices import PriceBook
from costguard.records import Activity

BOOK = PriceBook.for_run("test", "3600", None)
"""A dollar a second for each device."""
DEVICES = 4


def begin(root: str, run_id: str, *, train: bool = True) -> tuple[ActivityMeter, AttemptWriter]:
    """Open the next attempt's journal for this process, and train one batch."""
    clock, files = SystemClock(), LocalFiles()
    claim = claim_attempt(files, root, run_id)
    meter = ActivityMeter(process_start_ns() or clock.now_ns(), Activity.STARTUP, clock.now_ns)
    header: dict[str, Any] = {
        "run": run_id,
        "attempt": claim.seat.attempt,
        "rank": 0,
        "world_size": 1,
        "pid": os.getpid(),
        "pid_start": process_start_ns(),
        "host": socket.gethostname(),
        "boot": boot_id(),
        "allocation": None,
        "job": None,
        "idle_devices": DEVICES - 1,
        "paid_devices": DEVICES,
        "tags": {"stage": "test"},
        "book": BOOK.to_json(),
        "gap": "auto",
    }
    writer = AttemptWriter(
        files=files,
        folder=claim.folder,
        seat=claim.seat,
        segment=claim.segment,
        meter=meter,
        clock=clock,
        header=header,
    )
    if train:
        meter.enter(Activity.TRAIN)
        meter.settle(clock.now_ns(), Activity.DATA_WAIT, count(meter.state.counters, 1, 10, 0, 1))
    return meter, writer


def main(root: str, run_id: str, checkpoint: str | None = None) -> None:
    _, writer = begin(root, run_id)
    if checkpoint is not None:
        save = writer.mark()
        writer.saved(save=save, path=checkpoint, step=1, bytes=None, blocked_ns=1, mark=None)
        writer.settle()
    print("ready", flush=True)
    how = sys.stdin.readline().strip()
    if how == "breach":
        ControlLog(writer.folder).append("stop", judged="budget", action="stop", message="It is spent.")
    reason = {"fail": "RuntimeError: no", "interrupt": "KeyboardInterrupt"}.get(how)
    writer.close(reason, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
    assert "torch" not in sys.modules
