"""The rules: which checkpoints are worth keeping."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from costguard.errors import config_error
from costguard.keep.facts import Checkpoint, History

HOUR_NS = 3600 * 1_000_000_000
DAY_NS = 24 * HOUR_NS

Mode = Literal["min", "max"]


class Rule(ABC):
    """Says which checkpoints are worth keeping; rules are joined by `|`."""

    __slots__ = ()

    @abstractmethod
    def kept(self, history: History) -> set[str]:
        """The ids of what this rule keeps."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The rule as a user would type it."""

    def parts(self) -> Iterator[Rule]:
        """The simple rules that this one is made of."""
        yield self

    def __or__(self, other: Rule) -> Rule:
        return AnyOf((*self.parts(), *other.parts()))


@dataclass(frozen=True, slots=True)
class AnyOf(Rule):
    """Keeps what any of its rules keeps.

    Args:
        rules: At least one rule; rules that are `any_of` others are taken apart.
    """

    rules: Sequence[Rule]

    def __post_init__(self) -> None:
        if not self.rules:
            raise config_error("any_of(rules=[]): expected at least one rule, such as last(1).")
        object.__setattr__(self, "rules", tuple(part for rule in self.rules for part in rule.parts()))

    def kept(self, history: History) -> set[str]:
        """The ids of what any rule keeps."""
        return set().union(*(rule.kept(history) for rule in self.rules))

    @property
    def label(self) -> str:
        """The rules, joined by `|`."""
        return " | ".join(rule.label for rule in self.rules)

    def parts(self) -> Iterator[Rule]:
        """The simple rules, in the order given."""
        yield from self.rules


@dataclass(frozen=True, slots=True)
class Last(Rule):
    """Keeps the newest checkpoints.

    Args:
        n: How many, >= 1.
    """

    n: int = 1

    def __post_init__(self) -> None:
        _at_least_one("last", "n", self.n)

    def kept(self, history: History) -> set[str]:
        """Those of the newest `n` saves; several at one step in a row, such as `last.ckpt` beside another, are one."""
        candidates = history.candidates()
        begins = [place for place, c in enumerate(candidates) if not place or candidates[place - 1].step != c.step]
        return {c.id for c in candidates[begins[-self.n :][0] :]} if begins else set()

    @property
    def label(self) -> str:
        """`last(n)`."""
        return f"last({self.n})"


@dataclass(frozen=True, slots=True)
class Best(Rule):
    """Keeps the checkpoints with the best finite values of a metric; a NaN is never best.

    Args:
        metric: Name of the metric, as it is logged.
        n: How many, >= 1; of equal ones the older.
        mode: Whether less (`min`) or more (`max`) is better.
    """

    metric: str
    n: int = 1
    mode: Mode = "min"

    def __post_init__(self) -> None:
        _at_least_one("best", "n", self.n)
        if self.mode not in ("min", "max"):
            raise config_error(f"best(mode={self.mode!r}): expected 'min' or 'max'.")
        if not self.metric or not isinstance(self.metric, str):
            raise config_error(f"best(metric={self.metric!r}): expected the name of a metric, such as 'val_loss'.")

    def kept(self, history: History) -> set[str]:
        """The best `n` of those that have a finite value; several of one step and value are one."""
        sign = 1 if self.mode == "min" else -1
        saves: dict[tuple[float, int], list[Checkpoint]] = {}
        for c in history.candidates():
            value = c.metrics.get(self.metric)
            if value is not None and math.isfinite(value):
                saves.setdefault((sign * value, c.step), []).append(c)
        ranked = sorted(saves.items(), key=lambda save: (save[0][0], save[1][0].age_key))
        return {c.id for _, same in ranked[: self.n] for c in same}

    @property
    def label(self) -> str:
        """`best(metric, ...)`."""
        return f"best({self.metric!r}, n={self.n}, mode={self.mode!r})"


@dataclass(frozen=True, slots=True)
class Every(Rule):
    """Keeps milestones: the first checkpoint in each stretch of so many steps, epochs, tokens or hours.

    Stretches are counted from zero (hours from the epoch of UTC), never from a checkpoint that may go, so what was
    a milestone once stays one.

    Args:
        steps: Length of a stretch in optimizer steps, >= 1.
        epochs: In epochs, >= 1.
        tokens: In tokens, >= 1.
        hours: In hours of the wall clock, > 0.
        at_most: Keep only so many of the newest milestones, all if `None`.
    """

    steps: int | None = None
    epochs: int | None = None
    tokens: int | None = None
    hours: float | None = None
    at_most: int | None = None

    def __post_init__(self) -> None:
        given = {unit: getattr(self, unit) for unit in ("steps", "epochs", "tokens", "hours")}
        given = {unit: value for unit, value in given.items() if value is not None}
        if len(given) != 1:
            shown = ", ".join(f"{unit}={value}" for unit, value in given.items())
            raise config_error(f"every({shown}): expected exactly one of steps, epochs, tokens, hours.")
        for unit, value in given.items():
            if not _is_finite(value) or not value > 0 or (unit != "hours" and value != int(value)):
                raise config_error(f"every({unit}={value!r}): expected a number above 0.")
        if self.at_most is not None:
            _at_least_one("every", "at_most", self.at_most)

    def kept(self, history: History) -> set[str]:
        """The first checkpoint of each stretch but the one that begins a run."""
        first: dict[int, str] = {}
        for c in history.candidates():
            stretch = self._stretch(c)
            if stretch:
                first.setdefault(stretch, c.id)
        newest = sorted(first)[-self.at_most :] if self.at_most else sorted(first)
        return {first[stretch] for stretch in newest}

    def _stretch(self, c: Checkpoint) -> int | None:
        if self.steps is not None:
            return c.step // self.steps
        if self.epochs is not None:
            return None if c.epochs is None else c.epochs // self.epochs
        if self.tokens is not None:
            return None if c.tokens is None else c.tokens // self.tokens
        return c.saved_ns // max(1, round((self.hours or 1) * HOUR_NS))

    @property
    def label(self) -> str:
        """`every(unit=n)`."""
        unit = next(u for u in ("steps", "epochs", "tokens", "hours") if getattr(self, u) is not None)
        most = f", at_most={self.at_most}" if self.at_most else ""
        return f"every({unit}={getattr(self, unit)}{most})"


@dataclass(frozen=True, slots=True)
class Thin(Rule):
    """Keeps fewer the older they are: the newest of each hour, day and week (UTC) that has any.

    Counted back from the newest checkpoint, never from now: a run that paused for a month loses nothing by it.
    While there are fewer hours, days or weeks than asked for, the oldest checkpoint stays too.

    Args:
        hourly: Hours kept, >= 0.
        daily: Days kept, >= 0.
        weekly: Weeks kept, >= 0.
    """

    hourly: int = 0
    daily: int = 0
    weekly: int = 0

    def __post_init__(self) -> None:
        for option in ("hourly", "daily", "weekly"):
            value = getattr(self, option)
            if not _is_finite(value) or value != int(value) or value < 0:
                raise config_error(f"thin({option}={value!r}): expected a whole number of at least 0.")
        if not (self.hourly or self.daily or self.weekly):
            raise config_error("thin(): expected at least one of hourly, daily, weekly, such as thin(daily=7).")

    def kept(self, history: History) -> set[str]:
        """The newest of each of the last so many hours, days and weeks."""
        kept: set[str] = set()
        for count, length_ns in ((self.hourly, HOUR_NS), (self.daily, DAY_NS), (self.weekly, 7 * DAY_NS)):
            kept |= _newest_of_each(history.candidates(), count, length_ns)
        return kept

    @property
    def label(self) -> str:
        """`thin(...)`."""
        given = [f"{o}={getattr(self, o)}" for o in ("hourly", "daily", "weekly") if getattr(self, o)]
        return f"thin({', '.join(given)})"


def _newest_of_each(candidates: Sequence[Checkpoint], count: int, length_ns: int) -> set[str]:
    newest = {c.saved_ns // length_ns: c.id for c in candidates}
    kept = {newest[bucket] for bucket in sorted(newest, reverse=True)[:count]}
    if candidates and len(newest) < count:
        kept.add(candidates[0].id)
    return kept


@dataclass(frozen=True, slots=True)
class StageEnd(Rule):
    """Keeps the checkpoint that ends each stage, such as the one before a cooldown."""

    def kept(self, history: History) -> set[str]:
        """Those that end a stage."""
        return _ids(history.candidates(), lambda c: c.stage_end is not None)

    @property
    def label(self) -> str:
        """`stage_end()`."""
        return "stage_end()"


@dataclass(frozen=True, slots=True)
class BeforeAnomaly(Rule):
    """Keeps the newest checkpoints before each anomaly, to go back to.

    Args:
        n: How many before each, >= 1.
    """

    n: int = 1

    def __post_init__(self) -> None:
        _at_least_one("before_anomaly", "n", self.n)

    def kept(self, history: History) -> set[str]:
        """The newest `n` with a step below each anomaly's."""
        kept: set[str] = set()
        for run, steps in history.anomaly_steps.items():
            of_run = [c for c in history.candidates() if c.run == run]
            for step in steps:
                kept |= {c.id for c in [c for c in of_run if c.step < step][-self.n :]}
        return kept

    @property
    def label(self) -> str:
        """`before_anomaly(n)`."""
        return f"before_anomaly({self.n})"


@dataclass(frozen=True, slots=True)
class Pinned(Rule):
    """Keeps what a user pinned; pins hold without this rule too, which only says so."""

    def kept(self, history: History) -> set[str]:
        """The pinned ones."""
        return _ids(history.candidates(), lambda c: c.pinned)

    @property
    def label(self) -> str:
        """`pinned()`."""
        return "pinned()"


@dataclass(frozen=True, slots=True)
class ByModelCheckpoint(Rule):
    """Keeps what the user's own `ModelCheckpoint` keeps, so that just what it would delete moves."""

    def kept(self, history: History) -> set[str]:
        """Those that it has not let go."""
        return _ids(history.candidates(), lambda c: not c.released)

    @property
    def label(self) -> str:
        """`by_model_checkpoint()`."""
        return "by_model_checkpoint()"


def _ids(candidates: Iterable[Checkpoint], wanted: Callable[[Checkpoint], bool]) -> set[str]:
    return {c.id for c in candidates if wanted(c)}


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return isinstance(value, Integral) or math.isfinite(value)


def _at_least_one(rule: str, option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise config_error(f"{rule}({option}={value!r}): expected a whole number of at least 1.")


any_of = AnyOf
last = Last
best = Best
every = Every
thin = Thin
stage_end = StageEnd
before_anomaly = BeforeAnomaly
pinned = Pinned
by_model_checkpoint = ByModelCheckpoint
