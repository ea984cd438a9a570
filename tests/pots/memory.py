"""A store in memory that fails on purpose: away, replies that are lost, and requests that arrive late."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from costguard.errors import PotAwayError
from costguard.testing import ManualClock

T = TypeVar("T")


class MemoryStore:
    """Objects in a dict, with a clock of its own.

    Args:
        clock: Its wall clock dates objects.
        exclusive: Whether it keeps exclusive create; else it overwrites, as some gateways do.
    """

    url = "memory"

    def __init__(self, clock: ManualClock | None = None, *, exclusive: bool = True) -> None:
        self.data: dict[str, tuple[bytes, int]] = {}
        self.plan: list[str] = []
        self.late: list[Callable[[], object]] = []
        self.calls = 0
        self._clock = clock or ManualClock()
        self._exclusive = exclusive

    def fail(self, *hows: str) -> None:
        """Let the next calls fail: `away` (not done), `lost` (done, no reply), `late` (no reply, done by `arrive`)."""
        self.plan = list(hows)

    def arrive(self) -> None:
        """Do what was under way."""
        under_way, self.late = self.late, []
        for work in under_way:
            work()

    def create_exclusive(self, key: str, data: bytes) -> bool:
        return self._call(lambda: self._create(key, data))

    def put(self, key: str, data: bytes) -> None:
        self._call(lambda: self._put(key, data))

    def read(self, key: str) -> bytes | None:
        return self._call(lambda: self.data.get(key, (None, 0))[0])

    def list(self, folder: str) -> list[str]:
        return self._call(
            lambda: sorted(key.rsplit("/", 1)[-1] for key in self.data if key.rsplit("/", 1)[0] == folder)
        )

    def delete(self, key: str) -> None:
        self._call(lambda: self.data.pop(key, None))

    def modified_ns(self, key: str) -> int | None:
        return self._call(lambda: self.data[key][1] if key in self.data else None)

    def _create(self, key: str, data: bytes) -> bool:
        if self._exclusive and key in self.data:
            return False
        self._put(key, data)
        return True

    def _put(self, key: str, data: bytes) -> None:
        self.data[key] = (data, self._clock.wall_ns())

    def _call(self, work: Callable[[], T]) -> T:
        self.calls += 1
        how = self.plan.pop(0) if self.plan else ""
        if how == "late":
            self.late.append(work)
        if how == "lost":
            work()
        if how in ("away", "lost", "late"):
            raise PotAwayError(f"the store is {how}")
        return work()
