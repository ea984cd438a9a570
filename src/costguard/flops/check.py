"""Holds the count of a step against a second, independent one, and says why they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

AGREES_RATIO = 0.1
"""Up to this share of the own count two counts agree."""


@dataclass(frozen=True, slots=True)
class Check:
    """Two counts of one step.

    Args:
        counted: Executed FLOPs by the own count, recomputation included; `None` if that is unknown.
        torch: Executed FLOPs by torch's formulas (`torch.utils.flop_counter`).
        missed: Operators that multiply and that torch has no formula for.
        unseen: Operators that the own count does not know.
    """

    counted: int | None
    torch: int
    missed: Sequence[str] = ()
    unseen: Sequence[str] = ()

    @property
    def ratio(self) -> float | None:
        """Torch's count over the own one."""
        return self.torch / self.counted if self.counted else None

    @property
    def agrees(self) -> bool | None:
        """Whether they differ by at most a tenth; `None` where there is nothing to compare."""
        return abs(self.torch - self.counted) <= AGREES_RATIO * self.counted if self.counted else None

    @property
    def sentence(self) -> str:
        """What the comparison shows, and which number is shown."""
        if self.ratio is None:
            return "not cross-checked: how much backward recomputes is unknown, or nothing was counted"
        seen = f"torch's FLOP counter sees {self.ratio:.1%} of what is counted here"
        why = f"it has no formula for {', '.join(self.missed)}" if self.missed else "why is not known"
        if self.agrees:
            return f"cross-checked: {seen}" + (f" ({why})" if self.missed else "")
        if self.ratio < 1:
            return f"{seen}: {why}; shown is the count here"
        why = f"not counted here: {', '.join(self.unseen)}" if self.unseen else "more is executed than its layers need"
        return f"{seen}: {why}; shown is the count here, which is a lower bound"
