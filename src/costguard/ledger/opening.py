"""Decides which run a process belongs to, and claims its seat in it."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from costguard.errors import config_error, warn
from costguard.ledger.account import RunAccount
from costguard.ledger.allocation import Allocation
from costguard.ledger.files import Files
from costguard.ledger.layout import FOLDER, Seat, run_folder, seats_in
from costguard.ledger.places import read_folder
from costguard.ledger.segment import Segment

_CLAIM_TRIES = 1000
_RUN_ID = re.compile(r"[\w .-]{1,200}")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which run a process belongs to.

    Args:
        run_id: The run.
        decided: Whether that is final; otherwise a checkpoint that is loaded may still name another run.
        why: What decided, for the journal.
    """

    run_id: str
    decided: bool
    why: str


def check_run_id(where: str, run_id: str) -> str:
    """Refuse a run id that cannot name a folder.

    Args:
        where: Option and value, to begin the error with.
        run_id: The id.

    Raises:
        ConfigError: With the rule.
    """
    if not _RUN_ID.fullmatch(run_id) or run_id in (".", "..") or run_id != run_id.strip():
        raise config_error(f"{where}: cannot name a folder; use letters, digits, '-', '_' and '.', such as 'gpt-a'.")
    return run_id


def new_run_id(now: datetime | None = None) -> str:
    """Name a new run by the time of its begin and a random part."""
    return f"{now or datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def identify(run_id: str | None, env: Mapping[str, str], allocation: Allocation, root: str, files: Files) -> Identity:
    """Decide what can be decided before a checkpoint is read.

    Args:
        run_id: The user's word, if any.
        env: Usually `os.environ`; `COSTGUARD_RUN_ID` is the user's word too.
        allocation: What the scheduler says.
        root: Folder that is trained in.
        files: The file layer.
    """
    given = run_id or env.get("COSTGUARD_RUN_ID")
    if given:
        where = f"CostMonitor(run_id={given!r})" if run_id else f"environment variable COSTGUARD_RUN_ID={given!r}"
        return Identity(check_run_id(where, given), True, "run_id")
    if allocation.job and allocation.restarted is not False:
        found = _restarted_run(allocation, root, files)
        if found:
            return Identity(found, True, f"restart of {allocation.job}")
    return Identity(new_run_id(), False, "new")


def _restarted_run(allocation: Allocation, root: str, files: Files) -> str | None:
    same_job = []
    for folder, account in runs_in(root, files):
        last = account.of_attempt(max(account.trainings, default=0))
        if any(r.header.get("job") == allocation.job for r in last):
            # Without the scheduler's word only an attempt that died tells a restart from a second script in the job.
            if allocation.restarted or any(r.status == "died" for r in last):
                same_job.append(os.path.basename(folder))
    return same_job[0] if len(same_job) == 1 else None


def runs_in(root: str, files: Files) -> list[tuple[str, RunAccount]]:
    """Every readable run directly in the costguard folder of `root`; none where it may not be looked into."""
    parent = os.path.join(root, FOLDER)
    try:
        folders = [os.path.join(parent, name) for name in files.listing(parent)]
        accounts = [(folder, read_folder(folder, files)) for folder in folders]
    except OSError:
        return []
    return [(folder, account) for folder, account in accounts if account.ranks]


def run_that_saved(root: str, path: str, mark: Sequence[Any] | None, files: Files) -> str | None:
    """The run that wrote a checkpoint file which still looks as it was left, `None` if that is not certain.

    Args:
        root: Folder that is trained in.
        path: The checkpoint.
        mark: Its present size and time of change, `None` if unknown.
        files: The file layer.
    """
    if mark is None:
        return None
    for folder, account in runs_in(root, files):
        for rank in account.ranks:
            for event in rank.events:
                if event["k"] == "saved" and event.get("mark") == list(mark) and _same(event["path"], path):
                    return os.path.basename(folder)
    return None


def file_mark(path: str) -> list[int] | None:
    """Size and time of change of a file, or of all files below a folder; `None` if it cannot be told."""
    try:
        if os.path.isdir(path):
            stats = [os.stat(os.path.join(f, n)) for f, _, names in os.walk(path) for n in names]
            return [sum(s.st_size for s in stats), max((s.st_mtime_ns for s in stats), default=0)]
        stat = os.stat(path)
        return [stat.st_size, stat.st_mtime_ns]
    except (OSError, ValueError):
        return None


def _same(a: str, b: str) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)


@dataclass(frozen=True, slots=True)
class Claim:
    """A seat in a run.

    Args:
        folder: The run's folder.
        seat: Attempt and rank.
        segment: The segment that proves the claim; `None` if the folder takes no files.
        earlier: The run as it was before.
    """

    folder: str
    seat: Seat
    segment: Segment | None
    earlier: RunAccount


def claim_attempt(files: Files, root: str, run_id: str, *, known_attempts: int = 0) -> Claim:
    """Claim the next attempt of a run for rank 0.

    Args:
        files: The file layer.
        root: Folder that is trained in.
        run_id: The run.
        known_attempts: Attempts that must have been, from a checkpoint, even where their journal is gone.
    """
    folder = run_folder(root, run_id)
    earlier, seats = RunAccount(run_id=run_id, ranks=()), list[Seat]()
    try:
        files.make_folder(folder)
        earlier, seats = read_folder(folder, files), seats_in(files.listing(folder))
    except OSError as error:
        return _unwritable(folder, Seat(known_attempts + 1, 0), earlier, error)
    attempt = max([known_attempts, *(s.attempt for s in seats)]) + 1
    for number in range(attempt, attempt + _CLAIM_TRIES):
        seat = Seat(number, 0)
        try:
            return Claim(folder, seat, _create(files, folder, seat), earlier)
        except FileExistsError:
            continue  # another process was quicker
        except OSError as error:
            return _unwritable(folder, seat, earlier, error)
    raise config_error(f"run {run_id!r} in {root!r} takes no further attempt; give CostMonitor another run_id or dir.")


def claim_rank(files: Files, root: str, run_id: str, seat: Seat) -> Claim:
    """Take a seat that the ranks have agreed on: in an attempt that rank 0 has claimed, or in a new run."""
    folder = run_folder(root, run_id)
    earlier = RunAccount(run_id=run_id, ranks=())
    try:
        files.make_folder(folder)
        earlier = read_folder(folder, files)
    except OSError as error:
        return _unwritable(folder, seat, earlier, error)
    try:
        return Claim(folder, seat, _create(files, folder, seat), earlier)
    except FileExistsError:
        warn(
            f"{os.path.join(folder, seat.segment)} is there already, from a run that rank 0 does not know: rank "
            f"{seat.rank} is metered in memory only; give CostMonitor a run_id of its own, or a dir that all share."
        )
        return Claim(folder, seat, None, earlier)
    except OSError as error:
        return _unwritable(folder, seat, earlier, error)


def _create(files: Files, folder: str, seat: Seat) -> Segment:
    return Segment(files, os.path.join(folder, seat.segment))


def _unwritable(folder: str, seat: Seat, earlier: RunAccount, error: OSError) -> Claim:
    warn(
        f"cannot write to {folder} ({error.strerror or error}): training goes on and costs are metered in memory, but "
        "no journal and no receipt will be left; give CostMonitor a dir that can be written to."
    )
    return Claim(folder, seat, None, earlier)
