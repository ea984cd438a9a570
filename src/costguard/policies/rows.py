"""When costs go into a row of the user's logger: seldom, but never without the first, the last and the alarming."""

from __future__ import annotations

from dataclasses import dataclass

from costguard.units import NS_PER_S


@dataclass(frozen=True, kw_only=True, slots=True)
class RowCadence:
    """At most one row with costs in each interval.

    Args:
        every_ns: Shortest time between two such rows, >= 0.
    """

    every_ns: int = NS_PER_S

    def due(self, last_ns: int | None, now_ns: int, *, alarm: bool = False) -> bool:
        """Whether the row at hand takes costs: the first, an alarm's, or one after the interval.

        Args:
            last_ns: When the last one did, `None` if none has.
            now_ns: Now, on the same clock.
            alarm: Whether a verdict has come up since.
        """
        return alarm or last_ns is None or now_ns - last_ns >= self.every_ns
