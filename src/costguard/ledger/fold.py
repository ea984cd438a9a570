"""Folds the segments and pages of a run into its account; the same for a live run and for one read years later."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costguard.clock import boot_id, is_alive
from costguard.errors import ConfigError
from costguard.ledger.account import Gap, RankAccount, Resume, RunAccount, Snapshot, Status
from costguard.ledger.activity import Counters, MeterState
from costguard.ledger.layout import Seat
from costguard.ledger.lineage import kept_work
from costguard.ledger.lines import decode
from costguard.ledger.page import PageReading, read_page
from costguard.policies.gap import Tenure, decide_gap
from costguard.prices import PriceBook

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SeatFiles:
    """The raw bytes that one rank of one attempt left.

    Args:
        seat: Attempt and rank.
        segment: Bytes of its journal segment.
        page: Bytes of its shared page, `None` where there is none.
        problem: What could not be read, `None` if nothing.
    """

    seat: Seat
    segment: bytes
    page: bytes | None = None
    problem: str | None = None


def state_fields(state: MeterState, now_ns: int, wall_offset_ns: int) -> dict[str, Any]:
    """Write a meter's state into the fields of a line, the current activity counted on to `now_ns`.

    Every line says where it stands on the wall clock, so that none depends on the first one.
    """
    return {
        "w": wall_offset_ns,
        "t0": state.start_ns,
        "t": max(now_ns, state.since_ns),
        "ns": state.activities_ns(now_ns),
        "act": state.activity,
        "done": state.counters.to_json(),
    }


def snapshot_of(line: Line) -> Snapshot:
    """Read back what `state_fields` wrote."""
    return Snapshot(line["t"], line["ns"], Counters.from_json(line["done"]))


def fold(run_id: str, files: Sequence[SeatFiles]) -> RunAccount:
    """Account for a run from what its ranks left behind.

    Args:
        run_id: The run's name.
        files: All segments and pages, in any order.

    Returns:
        The account; damage is named in its `problems`, never raised.
    """
    problems: list[str] = []
    lines: dict[Seat, list[Line]] = {}
    pages: dict[Seat, PageReading] = {}
    for each in sorted(files, key=lambda f: f.seat):
        reading = decode(each.segment, each.seat.segment)
        problems += [each.problem] if each.problem else reading.problems
        lines[each.seat] = list(reading.lines)
        page = read_page(each.page) if each.page is not None else None
        if page:
            pages[each.seat] = page
    _adopt_earlier(lines, pages)
    moved = {seat for seat, rows in lines.items() if any(line["k"] == "moved" for line in rows)}
    ranks = [r for seat in lines if seat not in moved and (r := _fold_rank(seat, lines[seat], pages.get(seat)))]
    problems += _missing_ranks(ranks)
    return RunAccount(
        run_id=run_id,
        ranks=ranks,
        gaps=_gaps(ranks),
        kept=kept_work(ranks),
        books=_books(ranks, problems),
        problems=problems,
    )


def _missing_ranks(ranks: Sequence[RankAccount]) -> list[str]:
    problems = []
    for attempt in sorted({r.seat.attempt for r in ranks}):
        found = [r for r in ranks if r.seat.attempt == attempt]
        expected = max(r.header.get("world_size", 1) for r in found)
        if len(found) < expected:
            problems.append(
                f"attempt {attempt}: {expected - len(found)} of {expected} ranks left no segment here, and what they "
                "cost is in no total; give CostMonitor a dir that all nodes share, or a mirror"
            )
    return problems


def _adopt_earlier(lines: Mapping[Seat, list[Line]], pages: dict[Seat, PageReading]) -> None:
    """Use what a later attempt wrote down of an earlier one's page, where the page itself is gone or older."""
    for line in [line for rows in lines.values() for line in rows if line["k"] == "fold"]:
        seat = Seat(line["of"][0], line["of"][1])
        if seat in lines and (seat not in pages or pages[seat].state.since_ns < line["since"]):
            totals = tuple(line["totals"])
            state = MeterState(line["t0"], line["since"], line["act"], totals, Counters.from_json(line["done"]))
            pages[seat] = PageReading(state, line["alive"], line["w"])


def fold_line(seat: Seat, page: PageReading) -> dict[str, Any]:
    """Write a page of an earlier attempt into the fields of a line."""
    state = page.state
    return {
        "of": [seat.attempt, seat.rank],
        "t0": state.start_ns,
        "since": state.since_ns,
        "act": state.activity,
        "totals": list(state.totals),
        "done": state.counters.to_json(),
        "alive": page.alive_ns,
        "w": page.wall_offset_ns,
    }


def _fold_rank(seat: Seat, lines: Sequence[Line], page: PageReading | None) -> RankAccount | None:
    header = next((line for line in lines if line["k"] == "open"), {})
    close = next((line for line in lines if line["k"] == "close"), None)
    snapshots = [snapshot_of(line) for line in lines if "ns" in line]
    if close is None and page is not None and (not snapshots or page.alive_ns >= snapshots[-1].at_ns):
        state = page.state
        snapshots.append(Snapshot(page.alive_ns, state.activities_ns(page.alive_ns), state.counters))
    if not snapshots:
        return None
    final, estimated = snapshots[-1], close["exit_ns"] if close else 0
    if estimated:
        activities = dict(final.activities_ns)
        activities["teardown"] = activities.get("teardown", 0) + estimated
        final = Snapshot(final.at_ns + estimated, activities, final.counters)
        snapshots.append(final)
    # A run that ended when the next one took over its process ended in the past, before its latest lines.
    snapshots = [s for s in snapshots if s.at_ns <= final.at_ns]
    start = page.state.start_ns if page else next(line["t0"] for line in lines if "ns" in line)
    offset = next(
        (line["w"] for line in lines if "w" in line and line["k"] != "fold"), page.wall_offset_ns if page else 0
    )
    return RankAccount(
        seat=seat,
        start_ns=start,
        wall_ns=start + offset,
        final=final,
        estimated_ns=estimated,
        status=_status(header, close),
        reason=close.get("reason") if close else None,
        tenure=Tenure(allocation=header.get("allocation"), host=header.get("host", "unknown"), boot=header.get("boot")),
        idle_devices=header.get("idle_devices", 0),
        paid_devices=header.get("paid_devices", 1),
        snapshots=snapshots,
        marks={line["save"]: snapshot_of(line) for line in lines if line["k"] == "mark"},
        resumes=[Resume(snapshot_of(x), x["from"], x["save"], x["step"]) for x in lines if x["k"] == "resume"],
        header=header,
        facts={line["name"]: line["value"] for line in lines if line["k"] == "fact"},
        events=_events(lines),
    )


def _events(lines: Sequence[Line]) -> list[Line]:
    """Saves, lives of checkpoints, verdicts and forecasts; of a save or a life that was told again, the later word."""
    events: dict[Any, Line] = {}
    for line in lines:
        if line["k"] in ("verdict", "forecast"):
            events[line["n"]] = line
        elif line["k"] == "saved":
            events[line["path"], line["step"], line["save"]] = line
        elif line["k"] == "checkpoint":
            events["checkpoint", line["id"]] = line
    return list(events.values())


def _status(header: Line, close: Line | None) -> Status:
    if close:
        return "closed"
    return "running" if is_running(header) else "died"


def is_running(header: Line) -> bool:
    """Whether the process that wrote a first line is still there, as far as this host can tell."""
    if not header or header.get("host") != socket.gethostname() or header.get("boot") != boot_id():
        return False
    if header["pid"] == os.getpid():
        return True
    start = header.get("pid_start")
    return start is not None and is_alive(header["pid"], start)


def _gaps(ranks: Sequence[RankAccount]) -> list[Gap]:
    gaps = []
    attempts = sorted({r.seat.attempt for r in ranks})
    for earlier, later in zip(attempts, attempts[1:], strict=False):
        nexts = {r.seat.rank: r for r in ranks if r.seat.attempt == later}
        first = nexts[min(nexts)]
        for rank in ranks:
            if rank.seat.attempt == earlier:
                gaps.append(_gap(rank, nexts.get(rank.seat.rank, first)))
    return gaps


def _gap(earlier: RankAccount, later: RankAccount) -> Gap:
    same_boot = earlier.tenure.boot is not None and earlier.tenure.boot == later.tenure.boot
    ns = later.start_ns - earlier.final.at_ns if same_boot else later.wall_ns - earlier.end_wall_ns
    decision = decide_gap(
        earlier.tenure,
        later.tenure,
        closed=earlier.status == "closed",
        gap_ns=max(0, ns),
        mode=later.header.get("gap", "auto"),
    )
    return Gap(earlier.seat, max(0, ns), 1 + earlier.idle_devices, decision.billed, decision.reason)


def _books(ranks: Sequence[RankAccount], problems: list[str]) -> dict[int, PriceBook]:
    books = {}
    for rank in ranks:
        data = rank.header.get("book")
        if data is None or rank.seat.attempt in books:
            continue
        try:
            books[rank.seat.attempt] = PriceBook.from_json(data)
        except (ConfigError, KeyError, TypeError) as error:
            problems.append(f"the prices of attempt {rank.seat.attempt} cannot be read ({error})")
    return books
