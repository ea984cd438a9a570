"""A run as the forecaster sees it: its plan, and cumulative figures at instants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from costguard.errors import config_error


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run sets out to do.

    Args:
        total: Tokens or optimizer steps of the whole run, at least 1; everything that is done is counted in them.
        validations: Validations over the whole run, `None` if unknown.
        saves: Checkpoints over the whole run, `None` if unknown.

    Raises:
        ConfigError: If a count cannot be one.
    """

    total: int
    validations: int | None = None
    saves: int | None = None

    def __post_init__(self) -> None:
        if self.total < 1:
            raise config_error(f"Plan(total={self.total!r}): nothing to do; expected tokens or steps of at least 1.")
        for name in ("validations", "saves"):
            count = getattr(self, name)
            if count is not None and count < 0:
                raise config_error(f"Plan({name}={count!r}): negative; expected a count, or None if it is unknown.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Figures of a run at one instant, cumulative over all of its attempts.

    Args:
        elapsed_ns: Paid wall time, gaps between attempts included where they are paid.
        done: Units of the plan done and kept; goes back where work is lost.
        spend: Money spent, `None` if unpriced.
        activities_ns: Wall time by activity (`costguard.records.Activity`); adds up to `elapsed_ns`.
        validations: Validations ended.
        saves: Checkpoints written.
        attempt: Attempt that was running, from 1.
    """

    elapsed_ns: int
    done: int
    spend: Fraction | None = None
    activities_ns: Mapping[str, int] = field(default_factory=dict)
    validations: int = 0
    saves: int = 0
    attempt: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """A run that has ended: its plan, and its samples in the order of time, the last one at its end."""

    plan: Plan
    samples: Sequence[Sample]
