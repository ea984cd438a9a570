"""The FLOPs of batches by their sizes: those that were counted, and others by the law that the counted ones obey."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from costguard.flops.step import Work

MOST_COUNTED = 8
"""Sizes that are counted before a law is looked for."""
MOST_KEPT = 4096
"""Sizes whose work is kept."""
TOLERANCE = 0.005
"""How far a law may be from what was counted."""


@dataclass(frozen=True, slots=True)
class BatchSize:
    """How large a batch is.

    Args:
        key: Whatever tells batches apart that may cost differently; batches of one key cost the same.
        samples: Samples in it.
        elements: Elements of its first tensor: tokens of text, pixels of an image.
    """

    key: Hashable
    samples: int
    elements: int

    @property
    def powers(self) -> tuple[int, ...]:
        """What work can be proportional to: nothing, samples, tokens, pairs of tokens of one sample (times samples)."""
        return (1, self.samples, self.elements, self.elements**2 // max(1, self.samples))


@dataclass(slots=True)
class WorkBySize:
    """Knows the work of batches by their size.

    Until `MOST_COUNTED` sizes are known a new one has to be counted. From then on it follows from a law, work as a
    sum of shares proportional to samples, tokens and pairs of tokens, that all counted sizes must obey. What these do
    not determine, such as another length where all had the same, is counted still.
    """

    _known: dict[Hashable, Work | None] = field(default_factory=dict)
    _sizes: list[BatchSize] = field(default_factory=list)
    _law: tuple[list[Fraction], list[Fraction] | None, list[Fraction] | None] | None = None
    _basis: list[tuple[int, list[Fraction]]] | None = None

    def wants(self, size: BatchSize) -> bool:
        """Whether a batch of this size should be counted."""
        if size.key in self._known:
            return False
        return len(self._sizes) < MOST_COUNTED or not self._determines(size)

    def counted(self, size: BatchSize, work: Work | None) -> None:
        """Note what a batch of a size costs; `None` if it could not be counted."""
        self._known[size.key] = work
        self._sizes.append(size)
        self._law = self._basis = None

    def work(self, size: BatchSize) -> Work | None:
        """What a batch costs, `None` if that is not known."""
        if size.key not in self._known:
            if len(self._known) >= MOST_KEPT:  # sizes that never come again
                self._known = {s.key: self._known[s.key] for s in self._sizes}
            self._known[size.key] = self._by_law(size)
        return self._known.get(size.key)

    def _by_law(self, size: BatchSize) -> Work | None:
        if len(self._sizes) < MOST_COUNTED or not self._determines(size):
            return None
        if self._law is None:
            self._law = self._find_law()
        full, causal, hardware = (None if p is None else _value(p, size) for p in self._law)
        return None if full is None else Work(full, causal, hardware)

    def _determines(self, size: BatchSize) -> bool:
        """Whether another size's work follows from that of the counted ones at all."""
        if self._basis is None:
            rows = [[Fraction(p) for p in s.powers] for s in self._sizes]
            self._basis = list(zip(_reduce(rows, len(size.powers)), rows, strict=False))
        rest = [Fraction(p) for p in size.powers]
        for column, row in self._basis:
            rest = [a - rest[column] * b for a, b in zip(rest, row, strict=True)]
        return not any(rest)

    def _find_law(self) -> tuple[list[Fraction], list[Fraction] | None, list[Fraction] | None]:
        works = [self._known[s.key] for s in self._sizes]
        if any(w is None for w in works):
            return [], None, None
        full, causal, hardware = (
            None if any(v is None for v in column) else _fit(self._sizes, [v for v in column if v is not None])
            for column in zip(*(w for w in works if w is not None), strict=True)
        )
        return full or [], causal, hardware


def _value(law: Sequence[Fraction], size: BatchSize) -> int | None:
    return round(sum(c * p for c, p in zip(law, size.powers, strict=True))) if law else None


def _fit(sizes: Sequence[BatchSize], values: Sequence[int]) -> list[Fraction] | None:
    """Solve the normal equations exactly; `None` if some counted size does not obey."""
    rows = [[Fraction(p) for p in s.powers] for s in sizes]
    n = len(rows[0])
    matrix = [[sum((r[i] * r[j] for r in rows), Fraction(0)) for j in range(n)] for i in range(n)]
    right = [sum((r[i] * v for r, v in zip(rows, values, strict=True)), Fraction(0)) for i in range(n)]
    solved = [[*m, b] for m, b in zip(matrix, right, strict=True)]
    law = [Fraction(0)] * n
    for row, column in zip(solved, _reduce(solved, n), strict=False):
        law[column] = row[-1]  # what the sizes do not determine is 0
    for size, value in zip(sizes, values, strict=True):
        if abs((_value(law, size) or 0) - value) > TOLERANCE * value:
            return None
    return law


def _reduce(rows: list[list[Fraction]], columns: int) -> list[int]:
    """Gauss-Jordan in place: each of the first rows gets a column in which it alone is 1; returns these columns."""
    pivots: list[int] = []
    for column in range(columns):
        at = len(pivots)
        pivot = next((i for i in range(at, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[at], rows[pivot] = rows[pivot], rows[at]
        rows[at] = [value / rows[at][column] for value in rows[at]]
        for i in range(len(rows)):
            if i != at and rows[i][column]:
                factor = rows[i][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[at], strict=True)]
        pivots.append(column)
    return pivots
