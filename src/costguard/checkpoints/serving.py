"""The thread on which a node that only has shards answers the owner of the checkpoints, beside training."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from costguard.checkpoints.faults import CheckpointError, StoreError
from costguard.checkpoints.parts import serve
from costguard.checkpoints.recovery import recover
from costguard.checkpoints.room import Room
from costguard.errors import config_error

POLL_S: Final = 10.0
"""Seconds between two looks at what is asked; each is one list of a few objects: chosen."""
LAST_POLL_S: Final = 1.0
"""The same while the end of training waits."""


class Serving:
    """Sends this node's shards when they are asked for, and lets them go when that is decided.

    Args:
        room: This node's list.
        session: The owner's: when it is over nothing more is asked for.
        tell: Told each problem once.
        poll_s: Seconds between two looks, above 0.
    """

    def __init__(self, room: Room, session: str, tell: Callable[[str], None], poll_s: float = POLL_S) -> None:
        if not poll_s > 0:
            raise config_error(f"Serving(poll_s={poll_s!r}): expected seconds above 0.")
        self.room = room
        self._session = session
        self._tell = tell
        self._poll_s = poll_s
        self._told: set[str] = set()
        self._wake = threading.Event()
        self._ending = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="costguard-parts", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def finish(self, patience_s: float) -> bool:
        """Go on until the owner's session is over; says whether it is."""
        self._ending = True
        self._wake.set()
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Look no more; what is being sent now may come to its end."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        self._do(self._recover)
        while not self._closed:
            if self._do(self._serve) and self._ending:
                return
            self._wake.wait(min(self._poll_s, LAST_POLL_S) if self._ending else self._poll_s)
            self._wake.clear()

    def _recover(self) -> bool:
        for problem in recover(self.room).problems:
            self._say(problem)
        return False

    def _serve(self) -> bool:
        """Look once; says whether nothing more will come."""
        served = serve(self.room)
        for problem in served.problems:
            self._say(problem)
        return self._session not in served.sessions and not served.waiting

    def _do(self, work: Callable[[], bool]) -> bool:
        try:
            return work()
        except StoreError as error:
            self._say(str(error), about=error.kind)
        except (CheckpointError, OSError) as error:
            self._say(str(error))
        return False

    def _say(self, sentence: str, about: str | None = None) -> None:
        """Tell each thing once: a store that is away is away at every look."""
        if (about or sentence) not in self._told:
            self._told.add(about or sentence)
            with contextlib.suppress(Exception):  # a warning may be an error here; nobody waits for a dead thread
                self._tell(sentence)
