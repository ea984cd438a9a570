"""Loads the one run that a user points at, wherever it lies."""

from __future__ import annotations

import os

from costguard.errors import RunNotFoundError
from costguard.ledger.account import RunAccount
from costguard.ledger.mirror import load_mirrored
from costguard.ledger.places import check_readable, find_runs, only_run, read_folder


def load_run(path: str) -> tuple[str, RunAccount]:
    """Account for the one run in a folder, in any folder above it, or at a URL.

    Args:
        path: Folder of the run, or one above that holds exactly one run, or the same on any fsspec URL.

    Returns:
        Where the run lies, and its account.

    Raises:
        RunNotFoundError: If there is no such place, no run in it, or more than one.
    """
    if "://" in path:
        return load_mirrored(path)
    if not os.path.isdir(path):
        what = "is a file, not a folder" if os.path.exists(path) else "does not exist"
        raise RunNotFoundError(f"{path!r} {what}; give the folder that you trained in, or the run's own folder.")
    runs = find_runs(path)
    if len(runs) > 1:
        # An attempt that turned out to belong to another run has left its first folder behind, and nothing in it.
        runs = [run for run in runs if read_folder(run).ranks] or runs
    folder = only_run(path, runs)
    account = read_folder(folder)
    check_readable(folder, account)
    return folder, account
