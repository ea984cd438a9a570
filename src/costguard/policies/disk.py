"""When the disk will be full, if saving goes on as it does."""

from __future__ import annotations

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
