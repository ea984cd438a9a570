"""Which training is part of the run's present state, and which was thrown away by going back to a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costguard.ledger.account import Kept, RankAccount, Resume, Snapshot
from costguard.ledger.activity import Counters
from costguard.ledger.layout import Seat


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Training of one rank between two loads of a checkpoint."""

    rank: RankAccount
    index: int
    begin: Snapshot
    end: Snapshot
    resume: Resume | None

    def steps(self, end: Snapshot | None = None) -> int:
        """Optimizer steps up to `end`, by default all of them; none where no batch was trained."""
        last = end or self.end
        if last.counters.batches <= self.begin.counters.batches:
            return 0
        return max(0, last.counters.step - (self.resume.step if self.resume else self.begin.counters.step))

    @property
    def trained(self) -> bool:
        return self.end.counters.batches > self.begin.counters.batches or self.end.train_ns > self.begin.train_ns


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch that was kept, up to one of its saves or to its end."""

    attempt: int
    index: int
    save: int | None


def kept_work(ranks: Sequence[RankAccount], *, training_in: int | None = None) -> dict[Seat, Kept]:
    """Find for each rank of each attempt how much of its training was kept.

    The last stretch that trained is kept; what it was resumed from is kept up to that save, and so on back.
    A checkpoint without a known origin keeps everything before it, since nothing proves that it was thrown away.
    All ranks of an attempt save and load together, so its first rank decides for all of them.

    Args:
        ranks: All ranks of a run.
        training_in: Attempt that is about to train, so that it counts as the last stretch already.
    """
    kept: dict[Seat, Kept] = {r.seat: Kept() for r in ranks}
    firsts = {r.seat.attempt: r for r in sorted(ranks, key=lambda r: r.seat, reverse=True)}
    stretches = [s for attempt in sorted(firsts) for s in _stretches(firsts[attempt])]
    heads = [i for i, s in enumerate(stretches) if s.trained]
    heads += [i for i, s in enumerate(stretches) if s.rank.seat.attempt == training_in]
    for part in _kept_parts(stretches[: max(heads, default=-1) + 1], firsts):
        for rank in ranks:
            if rank.seat.attempt == part.attempt:
                _add(kept, rank, part)
    return kept


def _kept_parts(stretches: Sequence[_Stretch], firsts: dict[int, RankAccount]) -> list[_Part]:
    parts: list[_Part] = []
    position, save = len(stretches) - 1, None
    while position >= 0:
        stretch = stretches[position]
        parts.append(_Part(stretch.rank.seat.attempt, stretch.index, save))
        resume = stretch.resume
        if resume is None and not stretch.trained and position + 1 < len(stretches):
            # Something that never trained, such as a validation alone, says nothing of what came before it.
            position, save = position - 1, None
        elif resume is None:
            # Nothing was loaded. In the run's first stretch that is how it began; later it began from scratch again,
            # in the same process it went on with the weights it had.
            same = position > 0 and _same_process(stretches[position - 1].rank, stretch.rank)
            position, save = (position - 1 if same else -1), None
        elif resume.attempt is None or resume.save is None:
            position, save = position - 1, None
        else:
            position, save = _origin(stretches[:position], firsts, resume.attempt, resume.save)
    return parts


def _origin(
    before: Sequence[_Stretch], firsts: dict[int, RankAccount], attempt: int, save: int
) -> tuple[int, int | None]:
    mark = firsts[attempt].marks.get(save) if attempt in firsts else None
    if mark is None:
        # The save is in no journal we have, so nothing tells what came after it.
        return len(before) - 1, None
    for position in range(len(before) - 1, -1, -1):
        stretch = before[position]
        if stretch.rank.seat.attempt == attempt and stretch.begin.at_ns <= mark.at_ns <= stretch.end.at_ns:
            return position, save
    return -1, None


def steps_done(rank: RankAccount) -> int:
    """Optimizer steps that a rank has made in its attempt, those made twice counted twice."""
    return sum(stretch.steps() for stretch in _stretches(rank))


def _same_process(a: RankAccount, b: RankAccount) -> bool:
    """Whether two attempts ran in one process, which kept its weights in memory."""
    names = ("host", "boot", "pid", "pid_start")
    return a is b or (bool(a.header) and all(a.header.get(n) == b.header.get(n) for n in names))


def _stretches(rank: RankAccount) -> list[_Stretch]:
    begin, resume = Snapshot(rank.start_ns, {}, Counters()), None
    stretches: list[_Stretch] = []
    for event in rank.resumes:
        stretches.append(_Stretch(rank, len(stretches), begin, event.at, resume))
        begin, resume = event.at, event
    return [*stretches, _Stretch(rank, len(stretches), begin, rank.final, resume)]


def _add(kept: dict[Seat, Kept], rank: RankAccount, part: _Part) -> None:
    stretches = _stretches(rank)
    if part.index >= len(stretches):
        return  # this rank died before it had loaded what the first rank went on from
    stretch = stretches[part.index]
    end = stretch.end if part.save is None else rank.marks.get(part.save, stretch.end)
    if not stretch.begin.at_ns <= end.at_ns <= stretch.end.at_ns:
        return  # lines of this rank are lost, and nothing tells what of this stretch was kept
    old, a, b = kept[rank.seat], stretch.begin, end
    kept[rank.seat] = Kept(
        train_ns=old.train_ns + b.train_ns - a.train_ns,
        batches=old.batches + b.counters.batches - a.counters.batches,
        tokens=old.tokens + (b.counters.tokens or 0) - (a.counters.tokens or 0),
        padding=old.padding + (b.counters.padding or 0) - (a.counters.padding or 0),
        samples=old.samples + (b.counters.samples or 0) - (a.counters.samples or 0),
        steps=old.steps + stretch.steps(end),
        flops=_add_flops(old.flops, a.counters, b.counters),
    )


def _add_flops(before: int | None, begin: Counters, end: Counters) -> int | None:
    if before is None or (end.work is None and end.batches > begin.batches):
        return None
    return before + (end.work.full if end.work else 0) - (begin.work.full if begin.work else 0)
