"""Writes one rank's side of an attempt: its segment, its page, and the thread that keeps both fresh."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from costguard.clock import Clock
from costguard.errors import warn
from costguard.flops.step import NO_WORK, Work
from costguard.ledger.activity import ActivityMeter, Counters, Warmup
from costguard.ledger.files import Files
from costguard.ledger.fold import fold_line, state_fields
from costguard.ledger.layout import Seat
from costguard.ledger.mirror import Mirror, MirrorThread
from costguard.ledger.page import PAGE_BYTES, Page, read_page
from costguard.ledger.segment import Segment
from costguard.records import ENDING_ACTIONS, Verdict
from costguard.units import NS_PER_S

BEAT_S = 0.25
"""Time between looks at what is going on: the most that the hour of a sudden death, and what was done in it, can be
off; what training has done is in the page at once."""
LINE_EVERY_NS = 29 * NS_PER_S
"""Longest time without a line."""


class AttemptWriter:
    """The journal of one rank during one attempt.

    Args:
        files: The file layer.
        folder: The run's folder.
        seat: Attempt and rank.
        segment: The segment, created exclusively by whoever claimed the seat; `None` keeps all in memory.
        meter: The rank's meter; its state is kept in the page from now on.
        clock: The clock.
        header: Facts of the first line.
        price_changes_ns: Wall-clock instants at which a line must stand, so that prices split exactly there.
        wall_offset_ns: Wall clock minus the meter's clock, to name instants with; read now if `None`.
        mirror: Where the journal is copied to, if anywhere.
        earlier: Local segments of earlier attempts, of which the mirror may lack the end.
    """

    def __init__(
        self,
        *,
        files: Files,
        folder: str,
        seat: Seat,
        segment: Segment | None,
        meter: ActivityMeter,
        clock: Clock,
        header: Mapping[str, Any],
        price_changes_ns: Sequence[int] = (),
        wall_offset_ns: int | None = None,
        mirror: Mirror | None = None,
        earlier: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.seat = seat
        self._files = files
        self._segment = segment
        self._meter = meter
        self._clock = clock
        self._wall_offset_ns = clock.wall_ns() - clock.now_ns() if wall_offset_ns is None else wall_offset_ns
        self._changes = [c for c in price_changes_ns if c > clock.wall_ns()]
        self._saves = 0
        self._last_line_ns = 0
        self._closed = False
        self._page = self._open_page(files) if segment else None
        # The id tells apart two machines that claimed one seat without seeing each other.
        self._line("open", sync=True, id=secrets.token_hex(4), **header)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_fresh, name="costguard-journal", daemon=True)
        self._thread.start()
        self._mirror_thread = MirrorThread(mirror, segment.path, self.tick, earlier) if mirror and segment else None

    @property
    def saves(self) -> int:
        """How many checkpoints have been begun in this attempt."""
        return self._saves

    def _open_page(self, files: Files) -> Page | None:
        path = os.path.join(self.folder, self.seat.page)
        try:
            page = Page(files.map_page(path, PAGE_BYTES), self._clock.now_ns, self._wall_offset_ns)
        except OSError as error:
            warn(
                f"cannot map {path} ({error.strerror or error}): metering goes on, but after a sudden death of the "
                "process what it did since the last line (30 s at most) is lost; free space there."
            )
            return None
        self._meter.keep_in(page)
        page.beat(self._meter.state)
        return page

    def _line(self, kind: str, *, sync: bool = False, **fields: Any) -> None:
        if self._segment is None:
            return
        now = self._clock.now_ns()
        self._last_line_ns = now
        state = state_fields(self._meter.state, now, self._wall_offset_ns)
        self._segment.append(kind, sync=sync, **state, **fields)

    def tick(self) -> None:
        """Write where things stand."""
        self._line("tick")

    def settle(self) -> None:
        """Write where things stand, and return when it is on the disk."""
        self._line("tick", sync=True)

    def rest(self) -> None:
        """Work is over for now and the process may end: also see to it that the mirror has it all."""
        self.settle()
        if self._mirror_thread is not None:
            self._mirror_thread.push_now()

    def mark(self) -> int:
        """Note that a checkpoint is being written from the present state.

        Returns:
            The save's number in this attempt, which goes into the checkpoint.
        """
        self._saves += 1
        self._line("mark", sync=True, save=self._saves)
        return self._saves

    def saved(self, **fields: Any) -> None:
        """Note a checkpoint that has been written: its save's number, path, size, blocked time."""
        self._line("saved", **fields)

    def checkpoint(self, **life: Any) -> None:
        """Note where a checkpoint is now and what was done with it; of one `id` the latest word is enough."""
        if self._segment is not None:
            self._segment.append("checkpoint", **life)

    def resumed(self, attempt: int | None, save: int | None, step: int = 0) -> None:
        """Note that training goes on from a checkpoint, at an optimizer step."""
        self._line("resume", sync=True, **{"from": attempt}, save=save, step=step)

    def moved(self, run_id: str) -> None:
        """Note that this attempt turned out to belong to another run, and end."""
        if self._segment is not None:
            self._segment.append("moved", sync=True, last=True, run=run_id)
        self._end()

    def fact(self, name: str, /, **value: Any) -> None:
        """Record something about the run that does not change, such as its number of parameters."""
        self._line("fact", name=name, value=value)

    def forecast(self, made: Mapping[str, Any]) -> None:
        """Record how the run is expected to end, so that it can be scored when it has."""
        self._line("forecast", made=dict(made))

    def adopt_page(self, seat: Seat) -> None:
        """Record what the page of an earlier attempt that ended unseen holds, which then outlives a power cut too."""
        try:
            page = read_page(self._files.read(os.path.join(self.folder, seat.page)))
        except OSError:
            return
        if page and self._segment is not None:
            self._segment.append("fold", **fold_line(seat, page))

    def verdict(self, verdict: Verdict) -> None:
        """Record a decision."""
        fields = {name: getattr(verdict, name) for name in ("reason", "message", "step", "spend")}
        evidence = dict(verdict.evidence)
        ends = verdict.action in ENDING_ACTIONS
        self._line("verdict", sync=ends, judged=verdict.kind, action=verdict.action.value, evidence=evidence, **fields)

    def close(self, reason: str | None, exit_ns: int, at_ns: int | None = None) -> None:
        """Write the last line and end; twice is the same as once.

        Args:
            reason: Why it ended, `None` if in order.
            exit_ns: Estimated time that the interpreter still takes.
            at_ns: Instant of the end if it lies in the past.
        """
        if self._closed:
            return
        if self._segment is not None:
            now = self._clock.now_ns() if at_ns is None else at_ns
            state = state_fields(self._meter.state, now, self._wall_offset_ns)
            self._segment.append("close", sync=True, last=True, **state, reason=reason, exit_ns=exit_ns)
        self._end()

    def _end(self) -> None:
        self._closed = True
        self._stop.set()
        self._thread.join(5)
        if self._segment is not None:
            self._segment.close()
        if self._mirror_thread is not None:
            self._mirror_thread.close()

    def _keep_fresh(self) -> None:
        while not self._stop.wait(BEAT_S):
            if self._page is not None:
                self._page.beat(self._meter.state)
            if self._clock.now_ns() - self._last_line_ns >= LINE_EVERY_NS or self._price_changed():
                self.settle()

    def _price_changed(self) -> bool:
        if not self._changes or self._clock.wall_ns() < self._changes[0]:
            return False
        del self._changes[0]
        return True


def count(
    counters: Counters,
    step: int,
    tokens: int | None,
    padding: int | None,
    samples: int | None,
    work: Work | None = None,
    *,
    warm: bool = False,
) -> Counters:
    """Add one micro-batch to the counters; a part that is unknown adds nothing and stays unknown until known.

    FLOPs are the exception: those of all batches are known, or their sum is not.

    Args:
        counters: So far.
        step: The Trainer's optimizer step now.
        tokens: Tokens in the batch without padding, `None` if it has none that can be counted.
        padding: Padding beside them.
        samples: Samples in the batch.
        work: Its FLOPs.
        warm: Whether it was a warm-up, whose time is none of `train`.
    """
    _, batches, all_tokens, all_padding, all_samples, all_work, warmup, *_ = counters.settled()
    if tokens is not None:
        all_tokens = tokens if all_tokens is None else all_tokens + tokens
    if padding is not None:
        all_padding = padding if all_padding is None else all_padding + padding
    if samples is not None:
        all_samples = samples if all_samples is None else all_samples + samples
    if all_work is None or work is None:
        all_work = None if batches else work
    else:
        all_work += work
    if warm:
        warmup = Warmup(warmup.batches + 1, warmup.tokens + (tokens or 0), warmup.work + (work or NO_WORK))
    values = (step, batches + 1, all_tokens, all_padding, all_samples, all_work, warmup, None, 0)
    return tuple.__new__(Counters, values)
