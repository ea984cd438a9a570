"""One run as the callbacks of one Trainer share it: its meter, its journal and its live figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch.nn.parameter import UninitializedParameter

from costguard.clock import Clock, SystemClock, process_start_ns
from costguard.errors import warn
from costguard.hardware.matmul import MeasuredPeak, measure_matmul
from costguard.ledger.activity import ActivityMeter
from costguard.ledger.allocation import Allocation, ephemeral_disk
from costguard.ledger.attempt import AttemptWriter
from costguard.ledger.devices import Paid
from costguard.ledger.files import Files, LocalFiles
from costguard.ledger.fold import fold_line
from costguard.ledger.layout import Seat, run_folder
from costguard.ledger.live import Figures, LiveAttempt
from costguard.ledger.mirror import Mirror, within
from costguard.ledger.opening import Claim, claim_attempt, claim_rank, file_mark, identify, run_that_saved
from costguard.ledger.page import read_page
from costguard.ledger.places import read_folder
from costguard.ledger.process_time import PROCESS
from costguard.lightning.private import matmul_dtype
from costguard.policies.gap import GapMode
from costguard.prices import PriceBook
from costguard.records import Activity

MIRROR_PATIENCE_S = 15.0
STATE_KEY = "CostMonitor"
"""Where a checkpoint keeps costguard's word; fixed, so that it is found again whatever the arguments are."""
Broadcast = Callable[[Any], Any]
"""Gives every rank what rank 0 has; called by all ranks at the same point, never in an exception path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """What the user said about a run.

    Args:
        book: Prices.
        gpus: Paid GPUs over all nodes, `None` to find out.
        planned_tokens: Tokens of the whole plan.
        tags: Labels for breakdowns.
        run_id: Name of the run, `None` to find out.
        root: Local folder in which runs lie.
        mirror: URL under which the journal is copied, if any.
        gap: How time between attempts is billed.
    """

    book: PriceBook = field(default_factory=PriceBook)
    gpus: int | None = None
    planned_tokens: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    run_id: str | None = None
    root: str = "."
    mirror: str | None = None
    gap: GapMode = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where this process stands among the ranks."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    device: str = "cpu"


class Run:
    """Meters this process for one run, from the moment it is made.

    Args:
        config: What the user said.
        place: This process among the ranks.
        allocation: What the environment says.
        paid: Paid devices.
        files: The file layer.
        clock: The clock.
    """

    def __init__(
        self,
        config: RunConfig,
        place: Place,
        allocation: Allocation,
        paid: Paid,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self.place = place
        self.paid = paid
        self._allocation = allocation
        self._files = files or LocalFiles()
        self._clock = clock or SystemClock()
        self._writer: AttemptWriter | None = None
        self._identity: tuple[str, bool] = ("", False)
        self._reason: str | None = None
        self._parameters = 0
        self._peak: MeasuredPeak | None = None
        self.ended = False
        self.live: LiveAttempt | None = None
        self._wall_offset_ns = self._clock.wall_ns() - self._clock.now_ns()
        start_ns, activity = PROCESS.take(self)
        self.meter = ActivityMeter(start_ns, activity, self._clock.now_ns)

    # -- which run this is ------------------------------------------------------------------------------------

    def identify(self, broadcast: Broadcast) -> None:
        """Decide which run this is as far as it can be without a checkpoint; opens the journal if it is decided."""
        found: tuple[str, bool] | None = None
        if self.place.rank == 0:
            identity = identify(self.config.run_id, os.environ, self._allocation, self.config.root, self._files)
            found = identity.run_id, identity.decided
        self._identity = broadcast(found)
        if self._identity[1]:
            self._join(self._identity[0], broadcast, 0)

    def identify_by_file(self, path: str, broadcast: Broadcast) -> None:
        """Before a checkpoint is read: does a journal tell for certain which run wrote it?"""
        if self.is_open:
            return
        found = None
        if self.place.rank == 0:
            found = run_that_saved(self.config.root, path, file_mark(path), self._files)
        found = broadcast(found)
        if found:
            self._join(found, broadcast, 0)

    def identify_by_content(self, state: Mapping[str, Any] | None, broadcast: Broadcast) -> None:
        """After a checkpoint was read: it says which run wrote it; if it says nothing, this is a new run."""
        if self.is_open:
            return
        known = broadcast((state["run"], state["attempt"]) if state and self.place.rank == 0 else None)
        if known:
            self._join(known[0], broadcast, known[1])

    def open_new(self) -> None:
        """Open the journal of the new run that this is, unless it is open; needs no other rank."""
        if self.is_open:
            return
        run_id = self._identity[0]
        if self.place.rank == 0:
            self._open(claim_attempt(self._files, self.config.root, run_id))
        else:
            self._open(claim_rank(self._files, self.config.root, run_id, Seat(1, self.place.rank)))

    def _join(self, run_id: str, broadcast: Broadcast, known_attempts: int) -> None:
        claim = None
        if self.place.rank == 0:
            self._fetch_mirror(run_id)
            claim = claim_attempt(self._files, self.config.root, run_id, known_attempts=known_attempts)
            self._warn_of_missing(claim, known_attempts)
        attempt = broadcast(claim.seat.attempt if claim else None)
        seat = Seat(attempt, self.place.rank)
        self._open(claim or claim_rank(self._files, self.config.root, run_id, seat))

    def _fetch_mirror(self, run_id: str) -> None:
        if self.config.mirror is None:
            return
        folder = run_folder(self.config.root, run_id)
        try:
            mirror = Mirror(f"{self.config.mirror}/{run_id}")
            within(MIRROR_PATIENCE_S, lambda: mirror.restore(folder, self._files))
        except Exception as error:  # a store may raise anything
            warn(
                f"the mirror {self.config.mirror} is away ({type(error).__name__}: {error}): what earlier attempts "
                f"spent on other machines is unknown for now; what {folder} knows counts."
            )

    @staticmethod
    def _warn_of_missing(claim: Claim, known_attempts: int) -> None:
        here = len(claim.earlier.attempts)
        if here < known_attempts:
            warn(
                f"the checkpoint was written by attempt {known_attempts} of run {os.path.basename(claim.folder)}, of "
                f"which {here} are known here: what the others spent is unknown; give CostMonitor the dir they used."
            )
        if any(r.status == "running" for r in claim.earlier.ranks):
            warn(
                f"another live process is writing run {os.path.basename(claim.folder)}: this one is attempt "
                f"{claim.seat.attempt} and both are metered; give each experiment a run_id of its own."
            )

    # -- the journal ------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the run is known and its journal open."""
        return self._writer is not None

    @property
    def writer(self) -> AttemptWriter:
        """The open journal."""
        assert self._writer is not None, "the run's journal is not open yet"
        return self._writer

    @property
    def run_id(self) -> str:
        """The run's name."""
        return os.path.basename(self.writer.folder)

    def _open(self, claim: Claim) -> None:
        book = self.config.book
        mirror = self._mirror(os.path.basename(claim.folder)) if claim.segment else None
        self._writer = AttemptWriter(
            files=self._files,
            folder=claim.folder,
            seat=claim.seat,
            segment=claim.segment,
            meter=self.meter,
            clock=self._clock,
            header=self._header(claim),
            price_changes_ns=book.changes_ns(),
            mirror=mirror,
        )
        if claim.seat.rank == 0:
            self._adopt_pages(claim)
            self._warn_of_disk(claim.folder, mirror)
        self.begin_live()

    def begin_live(self) -> None:
        """Sum up what was before this attempt; called again when a checkpoint has been loaded."""
        folder, seat = self.writer.folder, self.writer.seat
        now = read_folder(folder, self._files)
        live = LiveAttempt(
            now,
            self.config.book,
            self.paid,
            folder,
            seat,
            self.place.world_size,
            self._files,
            wall_offset_ns=self._wall_offset_ns,
            planned_tokens=self.config.planned_tokens,
        )
        self.live = live

    def _header(self, claim: Claim) -> dict[str, Any]:
        tenure = self._allocation.tenure
        return {
            "run": os.path.basename(claim.folder),
            "attempt": claim.seat.attempt,
            "rank": claim.seat.rank,
            "wall_offset_ns": self._wall_offset_ns,
            "world_size": self.place.world_size,
            "device": self.place.device,
            "pid": os.getpid(),
            "pid_start": process_start_ns(),
            "host": tenure.host,
            "boot": tenure.boot,
            "allocation": tenure.allocation,
            "job": self._allocation.job,
            "idle_devices": self.paid.idle_here if self.place.local_rank == 0 else 0,
            "paid_devices": self.paid.total,
            "planned_tokens": self.config.planned_tokens,
            "tags": dict(self.config.tags),
            "book": self.config.book.to_json(),
            "gap": self.config.gap,
        }

    def _mirror(self, run_id: str) -> Mirror | None:
        if self.config.mirror is None:
            return None
        try:
            return Mirror(f"{self.config.mirror}/{run_id}")
        except (ImportError, ValueError, OSError) as error:
            warn(f"no mirror at {self.config.mirror} ({error}): the journal is kept on this machine's disk only.")
            return None

    def _adopt_pages(self, claim: Claim) -> None:
        """Write down what dead attempts' pages hold, so that it also outlives a power cut and reaches the mirror."""
        for rank in claim.earlier.ranks:
            if rank.status == "died":
                try:
                    page = read_page(self._files.read(os.path.join(claim.folder, rank.seat.page)))
                except OSError:
                    continue
                if page:
                    self.writer.adopt(fold_line(rank.seat, page))

    def _warn_of_disk(self, folder: str, mirror: Mirror | None) -> None:
        why = ephemeral_disk(os.path.abspath(folder), os.environ) if mirror is None else None
        if why:
            warn(f"the journal in {folder} dies with this machine ({why}); mirror it with CostMonitor(dir='s3://...').")

    # -- live figures -----------------------------------------------------------------------------------------

    def count_parameters(self, module: torch.nn.Module) -> None:
        """Count the module's parameters, each once; kept if more than before (a shard or a shell has fewer)."""
        seen = {id(p): p.numel() for p in module.parameters() if not isinstance(p, UninitializedParameter)}
        self._parameters = max(self._parameters, sum(seen.values()))

    def measure_peak(self, trainer: Trainer, given: float | None) -> None:
        """Take the user's peak, on a CPU measure one; unknown elsewhere."""
        if self._peak is not None and given is None:
            return
        if given is not None:
            self._peak = MeasuredPeak(given, "given: peak_flops_per_s")
        elif trainer.strategy.root_device.type == "cpu":
            self._peak = measure_matmul(trainer.strategy.root_device, matmul_dtype(trainer))

    def resumed(self, word: Mapping[str, Any]) -> None:
        """Note what training goes on from; a checkpoint of another run, or without a word, has no known origin."""
        own = word.get("run") == self.run_id
        self.writer.resumed(word.get("attempt") if own else None, word.get("save") if own else None)

    def at_step(self, step: int) -> None:
        """Set the Trainer's step before the first batch, so that what is redone is counted from there."""
        state = self.meter.state
        self.meter.settle(state.since_ns, state.activity, state.counters._replace(step=step))

    def begin_training(self, trainer: Trainer) -> None:
        """Record the model's size and peak, and sum up what was before."""
        if self._parameters:
            self.writer.fact("model", parameters=self._parameters)
        if self._peak is not None:
            self.writer.fact("peak", flops_per_s=self._peak.flops_per_s, source=self._peak.source)
        self.begin_live()
        assert self.live is not None
        self.live.parameters = self._parameters or None
        self.live.peak_flops_per_s = self._peak.flops_per_s if self._peak else None
        self.live.planned_steps = trainer.max_steps if trainer.max_steps > 0 else None

    def figures(self) -> Figures:
        """Read the live figures now."""
        assert self.live is not None
        return self.live.figures(self.meter.state, self._clock.now_ns())

    # -- the end ----------------------------------------------------------------------------------------------

    def failed(self, error: BaseException | None) -> None:
        """Note why training ended; `None` after it ended in order."""
        text = str(error).splitlines()[0][:200] if error and str(error) else ""
        self._reason = None if error is None else type(error).__name__ + (f": {text}" if text else "")

    def on_exit(self) -> None:
        """The interpreter begins to end."""
        self.meter.enter(Activity.TEARDOWN)

    def release(self, exit_ns: int) -> int:
        """End this run's time; see `costguard.ledger.process_time.Owner`."""
        state = self.meter.state
        # Time after the last work belongs to whoever takes it: a run that follows in this process, or the exit.
        end = state.since_ns if state.activity == Activity.IDLE else self._clock.now_ns()
        self.ended = True
        if self._writer is not None:
            self._writer.close(self._reason, exit_ns, end)
        return end
