"""What was decided about a run, beside its journal: stops that stay, limits that were raised, runs that may go on."""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from fractions import Fraction
from typing import Any, Literal

from costguard.errors import CostguardError
from costguard.ledger.files import Files, LocalFiles

Kind = Literal["stop", "raise", "resume"]
KINDS = ("stop", "raise", "resume")
_NAME = re.compile(r"control-(\d{4,})\.json")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision; none is ever changed or taken away, a later one counts.

    Args:
        number: Its place in the order, from 1 on.
        kind: `stop`, `raise` or `resume`.
        fields: What it says: `at` (ISO 8601), `who`, and by kind `why`, `from`, `to`, `budget`, or a verdict's fields.
    """

    number: int
    kind: Kind
    fields: Mapping[str, Any]


class ControlLog:
    """The decisions of one run, each a file of its own that is created once.

    Args:
        folder: The run's folder.
        files: The file layer.
    """

    def __init__(self, folder: str, files: Files | None = None) -> None:
        self._folder = folder
        self._files = files or LocalFiles()

    def decisions(self) -> list[Decision]:
        """All decisions, in order.

        Raises:
            CostguardError: If one cannot be read: what it forbids is unknown then.
        """
        numbers = self._numbers()
        return [decision for number in sorted(numbers) if (decision := self._read(number))]

    def append(self, kind: Kind, **fields: Any) -> Decision:
        """Decide something.

        Args:
            kind: `stop`, `raise` or `resume`.
            fields: Plain data.

        Raises:
            OSError: If it cannot be written.
        """
        self._files.make_folder(self._folder)
        while True:
            number = max(self._numbers(), default=0) + 1
            said = {"v": _VERSION, "kind": kind, "at": _now(), "who": _who(), **fields}
            try:
                self._write(self._path(number), json.dumps(said).encode())
            except FileExistsError:
                continue  # somebody decided at the same time: after them
            return Decision(number, kind, said)

    def _write(self, path: str, data: bytes) -> None:
        handle = self._files.create(path)
        try:
            self._files.write(handle, data)
            self._files.sync(handle)
        finally:
            self._files.close(handle)  # a store writes only now, and may find that somebody was faster

    def _numbers(self) -> list[int]:
        return [int(m[1]) for name in self._files.listing(self._folder) if (m := _NAME.fullmatch(name))]

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"control-{number:04d}.json")

    def _read(self, number: int) -> Decision | None:
        path = self._path(number)
        try:
            data = self._files.read(path)
            if not data.strip(b"\0"):
                return None  # who created it died before anything was decided
            said = json.loads(data)
            if said["v"] != _VERSION or said["kind"] not in KINDS:
                raise ValueError("of a newer costguard")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CostguardError(
                f"{path} cannot be read ({error}): what was decided about this run is unknown; mend or remove the file."
            ) from error
        return Decision(number, said["kind"], said)


def standing_stop(decisions: Sequence[Decision]) -> Decision | None:
    """The stop that still holds: the last one, unless its own limit was raised or the run resumed since."""
    stop: Decision | None = None
    for decision in decisions:
        if decision.kind == "stop":
            stop = decision
        elif decision.kind == "resume" or (stop is not None and _limits(stop) == decision.fields.get("budget")):
            stop = None
    return stop


def _limits(stop: Decision) -> Any:
    return stop.fields.get("evidence", {}).get("budget")


def raised_limit(decisions: Sequence[Decision], budget: str, stated: Fraction) -> Fraction:
    """The limit that holds: what is stated in the code, as it was raised by command since it was stated so.

    A raise counts for the limit that it was made from; one that is stated anew, higher or lower, is the last word.

    Args:
        decisions: All decisions.
        budget: The budget's key.
        stated: The limit in the code.
    """
    limit = stated
    for decision in decisions:
        if decision.kind == "raise" and decision.fields.get("budget") == budget:
            if Fraction(decision.fields["from"]) == limit:
                limit = Fraction(decision.fields["to"])
    return limit


def is_control(name: str) -> bool:
    """Whether a file's name is that of a decision."""
    return _NAME.fullmatch(name) is not None


def _now() -> str:
    return f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without such a user
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"
