"""What a run will have cost when its plan is done."""

from __future__ import annotations

from fractions import Fraction


def forecast_total(
    spent: Fraction, progress: Fraction, begin_spent: Fraction, begin_progress: Fraction
) -> Fraction | None:
    """Go on at the pace since training began in this attempt.

    Args:
        spent: Money spent so far.
        progress: Done part of the plan, in tokens or steps, 0 to 1.
        begin_spent: Money spent when this attempt began to train; what it took to get there comes once.
        begin_progress: Done part then.

    Returns:
        Expected money at the end, `None` until there is a pace.
    """
    if progress >= 1:
        return spent
    if progress <= begin_progress:
        return None
    pace = (spent - begin_spent) / (progress - begin_progress)
    return spent + (1 - progress) * pace
