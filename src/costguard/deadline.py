"""Does something that a dead network may hang, and gives up on it in time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def within(seconds: float, work: Callable[[], _T]) -> _T:
    """Do something that a dead network may hang, or give up.

    Args:
        seconds: How long to wait.
        work: What to do, on another thread, where it may end later than we wait.

    Raises:
        TimeoutError: If it takes longer.
        Exception: Whatever `work` raised.
    """
    outcome: list[_T] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as raised:
            error.append(raised)

    thread = threading.Thread(target=run, name="costguard-deadline", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer in {seconds:g} s")
    if error:
        raise error[0]
    return outcome[0]
