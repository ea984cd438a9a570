"""Where a run lies on disk, and how its files are named."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

FOLDER = "costguard"
_SEGMENT = re.compile(r"attempt-(\d{4,})\.rank-(\d{5,})\.jsonl")


@dataclass(frozen=True, order=True, slots=True)
class Seat:
    """One rank of one attempt."""

    attempt: int
    rank: int

    @property
    def stem(self) -> str:
        """File name without ending."""
        return f"attempt-{self.attempt:04d}.rank-{self.rank:05d}"

    @property
    def segment(self) -> str:
        """Name of the journal segment."""
        return f"{self.stem}.jsonl"

    @property
    def page(self) -> str:
        """Name of the shared page."""
        return f"{self.stem}.page"

    def more(self, names: Sequence[str]) -> list[str]:
        """Names of the pieces that a mirror has brought back beside the segment."""
        return sorted(n for n in names if n.startswith(f"{self.stem}.more-") and n.endswith(".jsonl"))


def seats_in(names: list[str]) -> list[Seat]:
    """Every seat that has a segment among the names of a folder, ascending."""
    matches = (_SEGMENT.fullmatch(name) for name in names)
    return sorted(Seat(int(m[1]), int(m[2])) for m in matches if m)


def run_folder(root: str, run_id: str) -> str:
    """Folder of a run below the folder that the user trains in."""
    return os.path.join(root, FOLDER, run_id)
