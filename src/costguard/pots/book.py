"""How the state of a pot is kept among many writers: what the hard and the soft way have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from costguard.pots.state import Close, Event, State

HEAD = "pot.json"
"""Made once, by exclusive create where the store has it: what was agreed."""


class Book(Protocol):
    """A pot's state on its store."""

    def refresh(self) -> State:
        """The pot as it is now.

        Raises:
            PotAwayError: If the store gives no answer.
            PotError: If a file cannot be read.
        """
        ...

    def append(self, make: Callable[[State], Event | None]) -> State:
        """Add one event.

        Args:
            make: Gets the pot as it is and returns the event, or `None` to add nothing; called again after each race
                that was lost.

        Returns:
            The pot after it.

        Raises:
            PotAwayError: If the store gives no answer; the event may be added or not.
            PotError: If a file cannot be read.
        """
        ...

    def closing(self, holder: str) -> Close | None:
        """How a holder that is no longer in the pot ended, `None` if it was never there."""
        ...
