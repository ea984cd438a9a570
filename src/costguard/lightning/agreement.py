"""Brings all ranks to one decision at one optimizer step, without a rank ever waiting in the step that asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

LEAST_EVERY, MOST_EVERY = 1, 64
TARGET_S = 1.0
"""How often ranks compare votes, in seconds, as far as `MOST_EVERY` steps allow: chosen."""


class Agreement(Protocol):
    """How the ranks of a training agree."""

    @property
    def delay_steps(self) -> int:
        """Most steps between a vote and the step at which all ranks act on it."""

    def vote(self, value: int) -> None:
        """Propose something; the highest proposal of all ranks wins, 0 proposes nothing."""

    def at_step(self, step_s: Callable[[], float | None]) -> int:
        """What is agreed at this optimizer step, the same on all ranks; 0 if nothing is.

        Args:
            step_s: Tells how long a step takes, `None` if unknown; asked seldom.
        """

    def now(self) -> int:
        """What is proposed by any rank, all waiting for it; for what happens seldom, such as before a validation."""


class Alone:
    """One rank agrees with itself."""

    delay_steps = 0

    def __init__(self) -> None:
        self._vote = 0

    def vote(self, value: int) -> None:
        """Propose something."""
        self._vote = max(self._vote, value)

    def at_step(self, step_s: Callable[[], float | None]) -> int:
        """What was proposed."""
        return self._vote

    def now(self) -> int:
        """What was proposed."""
        return self._vote


class Together:
    """Ranks compare their votes by a collective on the host that runs beside the steps.

    Each round is begun at one step and read at a later one, when it has long ended; the number of steps between is
    rank 0's proposal, told with the votes of the round before.

    Args:
        rank: This rank.
        group: A process group of all ranks for CPU tensors.
    """

    def __init__(self, rank: int, group: Any) -> None:
        self._rank = rank
        self._group = group
        self._vote = 0
        self._every = LEAST_EVERY
        self._steps = 0
        self._due = 0
        self._asked: tuple[Any, torch.Tensor] | None = None

    @property
    def delay_steps(self) -> int:
        """A vote that has just missed a round waits for it, and for the next."""
        return 2 * self._every

    def vote(self, value: int) -> None:
        """Propose something."""
        self._vote = max(self._vote, value)

    def at_step(self, step_s: Callable[[], float | None]) -> int:
        """Read a round that is due, and begin the next."""
        self._steps += 1
        if self._asked is not None:
            if self._steps < self._due:
                return 0
            work, told = self._asked
            self._asked = None
            work.wait()
            agreed, self._every = int(told[0]), max(LEAST_EVERY, int(told[1]))
            if agreed:
                return agreed
        proposal = _every(step_s()) if self._rank == 0 else 0
        votes = torch.tensor([self._vote, proposal], dtype=torch.int64)
        work = torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MAX, group=self._group, async_op=True)
        self._asked, self._due = (work, votes), self._steps + self._every
        return 0

    def now(self) -> int:
        """Compare votes at once, and wait."""
        return self.agree(self._vote)

    def agree(self, value: int) -> int:
        """Ask all ranks at once and wait, the highest value wins; for what happens once, such as at a stop."""
        told = torch.tensor([value], dtype=torch.int64)
        torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX, group=self._group)
        return int(told[0])

    def finish(self) -> None:
        """Training has ended in order on all ranks: the last round is read."""
        if self._asked is not None:
            self._asked[0].wait()
            self._asked = None


def _every(step_s: float | None) -> int:
    if not step_s:
        return LEAST_EVERY
    return min(MOST_EVERY, max(LEAST_EVERY, round(TARGET_S / step_s)))
