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
from costguard.flops.step import Work
from costguard.ledger.account import RunAccount
from costguard.ledger.activity import ActivityMeter, MeterState
from costguard.ledger.allocation import Allocation
from costguard.ledger.attempt import AttemptWriter
from costguard.ledger.devices import Paid
from costguard.ledger.files import Files, LocalFiles
from costguard.ledger.live import Figures, LiveAttempt
from costguard.ledger.mirror import Mirror, open_mirror
from costguard.ledger.mounts import ephemeral_disk
from costguard.ledger.opening import Claim
from costguard.ledger.places import read_folder
from costguard.ledger.process_time import PROCESS
from costguard.lightning.membership import Broadcast, Membership
from costguard.lightning.peak import DevicePeak, device_peak, same_dtype
from costguard.lightning.probing import Seen
from costguard.lightning.shield import metering
from costguard.policies.gap import GapMode
from costguard.prices import PriceBook
from costguard.records import Activity
from costguard.reports.receipt import load_receipt

STATE_KEY = "CostMonitor"
"""Where a checkpoint keeps costguard's word; fixed, so that it is found again whatever the arguments are."""


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
        report_html: File for the page that is written at the end.
    """

    book: PriceBook = field(default_factory=PriceBook)
    gpus: int | None = None
    planned_tokens: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    run_id: str | None = None
    root: str = "."
    mirror: str | None = None
    gap: GapMode = "auto"
    report_html: str | None = None


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
        self.pid = os.getpid()
        self.ended = False
        self.live: LiveAttempt | None = None
        self._allocation = allocation
        self.files = files or LocalFiles()
        self._clock = clock or SystemClock()
        self._wall_offset_ns = self._clock.wall_ns() - self._clock.now_ns()
        self._membership = Membership(config.root, place.rank, config.run_id, config.mirror, allocation, self.files)
        self.after_batch: list[Callable[[int], None]] = []
        self.save_times_ns: list[int] = []
        self.checkpoint_bytes = 0
        self._writer: AttemptWriter | None = None
        self._reason: str | None = None
        self._parameters = self._trainable = 0
        self._peak: DevicePeak | None = None
        self._given_peak: float | None = None
        start_ns, activity = PROCESS.take(self)
        self.meter = ActivityMeter(start_ns, activity, self._clock.now_ns)

    # -- which run this is ------------------------------------------------------------------------------------

    def identify(self, broadcast: Broadcast) -> None:
        """Decide which run this is as far as it can be without a checkpoint; opens the journal if it is decided."""
        self._open(self._membership.decide(broadcast))

    def identify_by_file(self, path: str, broadcast: Broadcast) -> None:
        """Before a checkpoint is read: does a journal tell for certain which run wrote it?"""
        if not self.is_open:
            self._open(self._membership.decide_by_file(path, broadcast))

    def identify_by_content(self, word: Mapping[str, Any], broadcast: Broadcast) -> None:
        """After a checkpoint was read: it says which run wrote it.

        A new run that was opened before, for a validation alone, moves there as long as it has not trained.
        """
        if self._membership.decided or self.meter.state.counters.batches:
            return
        current = self.run_id if self.is_open else None
        claim = self._membership.decide_by_content(word, broadcast, current)
        if claim and self._writer is not None:
            self._writer.moved(os.path.basename(claim.folder))
            self._writer = None
        self._open(claim)

    def open_new(self) -> None:
        """Open the journal of the new run that this is, unless it is open; needs no other rank."""
        if not self.is_open:
            self._open(self._membership.new())

    # -- the journal ------------------------------------------------------------------------------------------

    @property
    def asked(self) -> bool:
        """Whether it was asked which run this is, though only a checkpoint may say."""
        return self._membership.asked

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

    def _open(self, claim: Claim | None) -> None:
        if claim is None:
            return
        mirror = self._mirror(os.path.basename(claim.folder)) if claim.segment else None
        own = [r.seat for r in claim.earlier.ranks if r.seat.rank == claim.seat.rank]
        self._writer = AttemptWriter(
            files=self.files,
            folder=claim.folder,
            seat=claim.seat,
            segment=claim.segment,
            meter=self.meter,
            clock=self._clock,
            header=self._header(claim),
            price_changes_ns=self.config.book.changes_ns(),
            wall_offset_ns=self._wall_offset_ns,
            mirror=mirror,
            earlier=[os.path.join(claim.folder, seat.segment) for seat in own if seat.attempt < claim.seat.attempt],
        )
        if claim.seat.rank == 0:
            for rank in claim.earlier.ranks:
                if rank.status == "died":
                    self.writer.adopt_page(rank.seat)
            self._warn_of_disk(claim.folder, mirror)
            self.begin_live()

    def _header(self, claim: Claim) -> dict[str, Any]:
        tenure = self._allocation.tenure
        return {
            "run": os.path.basename(claim.folder),
            "why": self._membership.why,
            "attempt": claim.seat.attempt,
            "rank": claim.seat.rank,
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
        otherwise = "the journal is kept on this machine's disk only"
        return open_mirror(f"{self.config.mirror}/{run_id}", self.files, otherwise)

    @staticmethod
    def _warn_of_disk(folder: str, mirror: Mirror | None) -> None:
        why = ephemeral_disk(os.path.abspath(folder), os.environ) if mirror is None else None
        if why:
            warn(f"the journal in {folder} dies with this machine ({why}); mirror it with CostMonitor(dir='s3://...').")

    # -- training ---------------------------------------------------------------------------------------------

    def count_parameters(self, module: torch.nn.Module) -> None:
        """Count the module's parameters, each once; kept if more than before (a shard or a shell has fewer)."""
        seen = {id(p): p for p in module.parameters() if not isinstance(p, UninitializedParameter)}
        total = sum(p.numel() for p in seen.values())
        if total >= self._parameters:
            self._parameters = total
            self._trainable = sum(p.numel() for p in seen.values() if p.requires_grad)

    def find_peak(self, trainer: Trainer, given: float | None) -> None:
        """Find the device's peak, once a process."""
        if self._peak is None:
            self._given_peak, self._peak = given, device_peak(trainer, given)

    def _correct_peak(self, trainer: Trainer, seen: str | None) -> None:
        """Take the peak of what products really run in, where the Trainer's precision says otherwise."""
        if self._peak is None or seen is None or self._given_peak is not None:
            return
        if self._peak.dtype is not None and not same_dtype(self._peak.dtype, seen):
            self._peak = device_peak(trainer, None, seen)
            self.writer.fact("peak", **self._peak.fact())
            if self.live is not None:
                self.live.peak_flops_per_s = self._peak.flops_per_s

    def begin_training(self, trainer: Trainer, word: Mapping[str, Any] | None) -> None:
        """Say what training goes on from, record the model's size and peak, and sum up what was before.

        Args:
            trainer: The Trainer, about to train its first batch.
            word: What the loaded checkpoint says, empty if it says nothing; `None` if none was loaded.
        """
        step, state = trainer.global_step, self.meter.state
        if word is not None:
            # A checkpoint of another run, or without a word, has no known origin here.
            own = word.get("run") == self.run_id
            self.writer.resumed(word.get("attempt") if own else None, word.get("save") if own else None, step)
        self.meter.settle(state.since_ns, state.activity, state.counters._replace(step=step))
        if self._parameters:
            self.writer.fact("model", parameters=self._parameters, trainable=self._trainable)
        if self._peak is not None:
            self.writer.fact("peak", **self._peak.fact())
        if self.live is not None:
            self.begin_live()
            self.live.planned_steps = trainer.max_steps if trainer.max_steps > 0 else None

    def note_flops(self, trainer: Trainer, seen: Seen | None, problem: str | None) -> None:
        """Record what the first counted batch showed, or why the model's FLOPs are not counted."""
        self._correct_peak(trainer, seen.step.dtype if seen else None)
        frozen = self._trainable < self._parameters
        self.writer.fact("flops", reason=problem, **(seen.fact(self._parameters, frozen=frozen) if seen else {}))

    def move_to_padding(self, tokens: int) -> None:
        """Count as padding what was counted as tokens before the device had told which it was."""
        state = self.meter.state
        if tokens:
            self.meter.settle(state.since_ns, state.activity, state.counters.moved_to_padding(tokens))

    def add_work(self, work: Work) -> None:
        """Count FLOPs of batches that were counted without them."""
        state = self.meter.state
        counters = state.counters.settled()
        if work.full and counters.work is not None:
            counters = counters._replace(work=counters.work + work)
            self.meter.settle(state.since_ns, state.activity, counters)

    def begin_live(self) -> None:
        """Sum up what was before the training that begins now; for the first rank, whose loggers and bar show it."""
        folder, seat = self.writer.folder, self.writer.seat
        self.live = LiveAttempt(
            read_folder(folder, self.files),
            self.config.book,
            self.paid,
            folder,
            seat,
            self.place.world_size,
            self.files,
            wall_offset_ns=self._wall_offset_ns,
            planned_tokens=self.config.planned_tokens,
        )
        self.live.parameters = self._parameters or None
        self.live.peak_flops_per_s = self._peak.flops_per_s if self._peak else None

    def figures(self) -> Figures | None:
        """Read the live figures now; `None` on ranks that show none."""
        return self.live.figures(self.meter.state, self._clock.now_ns()) if self.live is not None else None

    def states(self) -> list[MeterState]:
        """This rank's state, then those of the other ranks that can be seen from here."""
        return [self.meter.state, *(self.live.other_states() if self.live is not None else ())]

    def pids(self) -> list[int]:
        """Process ids of the attempt's ranks that are known on this machine."""
        ranks = self.account().of_attempt(self.writer.seat.attempt)
        here = [r for r in ranks if r.tenure.host == self._allocation.tenure.host]
        return [r.header["pid"] for r in here if "pid" in r.header]

    @property
    def supervised(self) -> bool:
        """Whether a scheduler or launcher started this process, who may start it again."""
        return self._allocation.job is not None or self._allocation.tenure.allocation is not None

    @property
    def peak_dtype(self) -> str | None:
        """What the device's peak is of, such as `tf32`."""
        return self._peak.dtype if self._peak is not None else None

    # -- the end ----------------------------------------------------------------------------------------------

    def account(self) -> RunAccount:
        """Everything that is written of the run so far."""
        return read_folder(self.writer.folder, self.files)

    def wall_ns(self) -> int:
        """Now, on the wall clock as it was when this process began: one that is put forward or back changes nothing."""
        return self._clock.now_ns() + self._wall_offset_ns

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
            self._report(self._writer.folder)
        return end

    def _report(self, folder: str) -> None:
        path = self.config.report_html
        if path is None or self.place.rank != 0:
            return
        with metering():
            receipt = load_receipt(folder)
            print(receipt.text())
            receipt.write_html(path)
            print(f"\ncostguard: wrote {path}", flush=True)
