"""Finds runs in folders, says what is wrong with a place, and folds what lies there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from costguard.errors import RunNotFoundError
from costguard.ledger.account import RunAccount
from costguard.ledger.files import Files, LocalFiles
from costguard.ledger.fold import SeatFiles, fold
from costguard.ledger.layout import Seat, seats_in


class FolderReader:
    """Reads a run from a folder."""

    def __init__(self, folder: str, files: Files | None = None) -> None:
        self._folder = folder
        self._files = files or LocalFiles()

    def seat_files(self) -> list[SeatFiles]:
        """All segments and pages of the folder."""
        names = self._files.listing(self._folder)
        return [self._seat_files(seat, names) for seat in seats_in(names)]

    def _seat_files(self, seat: Seat, names: list[str]) -> SeatFiles:
        segment, problem = b"", None
        for name in (seat.segment, *seat.more(names)):
            try:
                # A piece may end in the middle of a line: the next one starts afresh.
                segment += (b"\n" if segment else b"") + self._files.read(os.path.join(self._folder, name))
            except OSError as error:
                problem = f"{name} cannot be read ({error.strerror or error})"
        page = None
        if seat.page in names:
            with contextlib.suppress(OSError):
                page = self._files.read(os.path.join(self._folder, seat.page))
        return SeatFiles(seat, segment, page, problem)


def read_folder(folder: str, files: Files | None = None) -> RunAccount:
    """Account for the run of exactly this folder."""
    return fold(os.path.basename(os.path.abspath(folder)), FolderReader(folder, files).seat_files())


def find_runs(path: str) -> list[str]:
    """Every folder at or below `path` that holds a run, ascending."""
    found = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        if seats_in(names):
            found.append(folder)
    return found


def only_run(place: str, runs: Sequence[str]) -> str:
    """The one run of a place.

    Raises:
        RunNotFoundError: If there is none or more than one.
    """
    if not runs:
        raise RunNotFoundError(
            f"{place!r} holds no costguard run (no attempt-*.jsonl in it or below); "
            "give the folder that a Trainer with CostMonitor wrote to."
        )
    if len(runs) > 1:
        shown = ", ".join(runs[:5]) + (f" and {len(runs) - 5} more" if len(runs) > 5 else "")
        raise RunNotFoundError(f"{place!r} holds {len(runs)} runs; name one of them: {shown}.")
    return runs[0]


def check_readable(place: str, account: RunAccount) -> None:
    """Refuse a run of which nothing can be read.

    Raises:
        RunNotFoundError: With what is wrong.
    """
    if not account.ranks:
        why = "; ".join(account.problems) or "its segments hold no line"
        raise RunNotFoundError(f"the run in {place!r} cannot be read: {why}.")
