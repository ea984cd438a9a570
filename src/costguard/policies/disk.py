"""When the disk will be full, if saving goes on as it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskFull:
    """Where saving will stop.

    Args:
        step: Optimizer step of the save that will not fit.
        in_s: Seconds until then, `None` if the pace is unknown.
        saves_left: Saves that still fit.
    """

    step: int
    in_s: float | None
    saves_left: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveSeen:
    """The disk right after a save.

    Args:
        step: Optimizer step.
        at_ns: When, ns on a clock that never goes back.
        free_bytes: Bytes free then.
        bytes: Bytes of the checkpoint.
    """

    step: int
    at_ns: int
    free_bytes: int
    bytes: int


def foresee_full(saves: Sequence[SaveSeen]) -> DiskFull | None:
    """Predict from the last saves which one the disk will not take; what else fills it or is freed counts too.

    Args:
        saves: The last saves, from the oldest to the newest; two intervals show a trend, fewer may be a beginning.

    Returns:
        The prediction, `None` if there is none or the disk does not fill.
    """
    steps = saves[-1].step - saves[0].step if saves else 0
    if len(saves) < 3 or steps < len(saves) - 1 or saves[-1].bytes <= 0:
        return None
    intervals, last = len(saves) - 1, saves[-1]
    growth = (saves[0].free_bytes - last.free_bytes) // intervals
    freed = last.bytes - growth
    return predict_full(
        # What a save makes room for goes after it, and has gone before the next one.
        free_bytes=last.free_bytes + max(0, freed),
        bytes_per_save=last.bytes,
        step=last.step,
        steps_per_save=steps // intervals,
        seconds_per_step=(last.at_ns - saves[0].at_ns) / 1e9 / steps,
        freed_per_save=freed,
    )


def predict_full(
    *,
    free_bytes: int,
    bytes_per_save: int,
    step: int,
    steps_per_save: int,
    seconds_per_step: float | None = None,
    freed_per_save: int = 0,
    spare_bytes: int = 0,
) -> DiskFull | None:
    """Predict the save that the disk will not take.

    A save is written before its predecessor goes, so one whole save must fit at any time.

    Args:
        free_bytes: Bytes free now.
        bytes_per_save: Bytes of one checkpoint, > 0.
        step: Present optimizer step.
        steps_per_save: Steps between two saves, >= 1.
        seconds_per_step: Pace, `None` if unknown.
        freed_per_save: Bytes that are deleted after each save.
        spare_bytes: Bytes that are to stay free.

    Returns:
        The first save that does not fit, `None` if each frees as much as it takes.
    """
    room = free_bytes - spare_bytes
    growth = bytes_per_save - freed_per_save
    if room >= bytes_per_save and growth <= 0:
        return None
    saves = 0 if room < bytes_per_save else (room - bytes_per_save) // growth + 1
    steps = (saves + 1) * steps_per_save
    pace = None if seconds_per_step is None else steps * seconds_per_step
    return DiskFull(step=step + steps, in_s=pace, saves_left=saves)
