"""Which training is part of the run's present state, and which was thrown away by going back to a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from costguard.ledger.account import Kept, RankAccount, Resume, Snapshot
from costguard.ledger.activity import Counters
from costguard.ledger.layout import Seat


class _Stretch:
    """Training of one rank between two loads of a checkpoint."""

    def __init__(self, rank: RankAccount, begin: Snapshot, end: Snapshot, resume: Resume | None) -> None:
        self.rank = rank
        self.begin = begin
        self.end = end
        self.resume = resume

    @property
    def trained(self) -> bool:
        return self.end.counters.batches > self.begin.counters.batches or self.end.train_ns > self.begin.train_ns

    def holds(self, attempt: int, mark: Snapshot) -> bool:
        return self.rank.seat.attempt == attempt and self.begin.at_ns <= mark.at_ns <= self.end.at_ns


def kept_work(ranks: Sequence[RankAccount], *, training_in: int | None = None) -> dict[Seat, Kept]:
    """Find for each rank of each attempt how much of its training was kept.

    The last stretch that trained is kept; what it was resumed from is kept up to that save, and so on back.
    A checkpoint without a known origin keeps everything before it, since nothing proves that it was thrown away.

    Args:
        ranks: All ranks of a run.
        training_in: Attempt that is about to train, so that it counts as the last stretch already.
    """
    kept: dict[Seat, Kept] = {r.seat: Kept() for r in ranks}
    for number in sorted({r.seat.rank for r in ranks}):
        own = [r for r in ranks if r.seat.rank == number]
        stretches = [s for rank in own for s in _stretches(rank)]
        live = [s for s in stretches if s.rank.seat.attempt == training_in][-1:]
        _keep_line(own, [s for s in stretches if s.trained or s in live], kept)
    return kept


def _keep_line(own: Sequence[RankAccount], stretches: Sequence[_Stretch], kept: dict[Seat, Kept]) -> None:
    position = len(stretches) - 1
    end: Snapshot | None = None
    while position >= 0:
        stretch = stretches[position]
        _add(kept, stretch, end or stretch.end)
        resume = stretch.resume
        if resume is None:
            # Nothing was loaded. In the run's first stretch that is how it began; later it began from scratch again,
            # in the same process it went on with the weights it had.
            same = position > 0 and _same_process(stretches[position - 1].rank, stretch.rank)
            position, end = (position - 1, None) if same else (-1, None)
        elif resume.attempt is None or resume.save is None:
            position, end = position - 1, None
        else:
            position, end = _origin(own, stretches, position, resume.attempt, resume.save)


def _origin(
    own: Sequence[RankAccount], stretches: Sequence[_Stretch], below: int, attempt: int, save: int
) -> tuple[int, Snapshot | None]:
    mark = next((r.marks.get(save) for r in own if r.seat.attempt == attempt), None)
    if mark is None:
        # The save is in no journal we have, so nothing tells what came after it.
        return below - 1, None
    for position in range(below - 1, -1, -1):
        if stretches[position].holds(attempt, mark):
            return position, mark
    return -1, None


def _same_process(a: RankAccount, b: RankAccount) -> bool:
    """Whether two attempts ran in one process, which kept its weights in memory."""
    names = ("host", "boot", "pid", "pid_start")
    return a is b or (bool(a.header) and all(a.header.get(n) == b.header.get(n) for n in names))


def _stretches(rank: RankAccount) -> list[_Stretch]:
    begin = Snapshot(rank.start_ns, {}, Counters())
    stretches, resume = [], None
    for event in rank.resumes:
        stretches.append(_Stretch(rank, begin, event.at, resume))
        begin, resume = event.at, event
    stretches.append(_Stretch(rank, begin, rank.final, resume))
    return stretches


def _add(kept: dict[Seat, Kept], stretch: _Stretch, end: Snapshot) -> None:
    old, a, b = kept[stretch.rank.seat], stretch.begin, end
    kept[stretch.rank.seat] = Kept(
        train_ns=old.train_ns + b.train_ns - a.train_ns,
        batches=old.batches + b.counters.batches - a.counters.batches,
        tokens=old.tokens + (b.counters.tokens or 0) - (a.counters.tokens or 0),
        padding=old.padding + (b.counters.padding or 0) - (a.counters.padding or 0),
        samples=old.samples + (b.counters.samples or 0) - (a.counters.samples or 0),
    )
