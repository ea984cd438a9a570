"""The receipt of a run as plain data: every figure that the text, the page and `--json` show."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from costguard.ledger.account import RankAccount, RunAccount
from costguard.ledger.ledger import DEVICE, Spend, ledger_of, outcome_spend, price_ledger
from costguard.ledger.lineage import steps_done
from costguard.ledger.load import load_run
from costguard.prices import PriceBook
from costguard.reports.arithmetic import done_in, flops_of, gpus_of, mfu_of, saving_of
from costguard.reports.budgets import budget_of
from costguard.reports.checkpoint_costs import checkpoint_costs_of
from costguard.reports.saves import instant, save_rows, saves_of
from costguard.reports.series import series_of
from costguard.reports.wastes import ADD_PRICE, provenance_of, wastes_of
from costguard.units import NS_PER_HOUR, NS_PER_S, plain, round_money, round_shares

SCHEMA_VERSION = 1
ELSEWHERE_ALIVE_NS = 3 * 60 * NS_PER_S
"""How long an attempt on another machine counts as running after its last sign of life; it gives one each 30 s."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a run cost and where it went.

    Args:
        data: Plain data; money as decimal strings, unknown as `None`. Its keys are documented in docs/receipt.md.
    """

    data: Mapping[str, Any]

    def text(self) -> str:
        """One page for a terminal."""
        from costguard.reports.text import render_text

        return render_text(self.data)

    def json(self) -> str:
        """The data as JSON."""
        return json.dumps(self.data, indent=2, allow_nan=False)

    def html(self) -> str:
        """One self-contained page."""
        from costguard.reports.html import render_html

        return render_html(self.data)

    def write_html(self, path: str) -> None:
        """Write the page to a file.

        Args:
            path: File to write; its folder is created.
        """
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html())


def load_receipt(run_dir: str) -> Receipt:
    """Read the receipt of a run, finished or not.

    Args:
        run_dir: The run's folder, a folder above it that holds exactly one run, or the same on an fsspec URL.

    Raises:
        RunNotFoundError: If there is no such place, no run in it, or more than one.
    """
    folder, account = load_run(run_dir)
    return Receipt(receipt_of(account, folder))


def receipt_of(account: RunAccount, folder: str, now_ns: int | None = None) -> dict[str, Any]:
    """Write an account as a receipt.

    Args:
        account: The run.
        folder: Where it lies.
        now_ns: Until when storage of checkpoints is counted, ns since the epoch; now if `None`.
    """
    spend = price_ledger(ledger_of(account))
    activities, outcomes = account.activities_ns(), account.outcomes_ns()
    done = done_in(account)
    tokens, flops, mfu = _tokens(account), flops_of(account, done), mfu_of(account, done)
    money, plan = _money(account, spend, tokens["trained"]), _plan(account, spend, tokens["trained"])
    saves = saves_of(account)
    data: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run": {
            "id": account.run_id,
            "dir": folder,
            "tags": dict(account.ranks[-1].header.get("tags", {})),
            "state": _status(account.ranks[-1]),
            "attempts": [_attempt(account, number) for number in account.attempts],
        },
        "time": {
            "elapsed_device_ns": account.elapsed_device_ns,
            "released_s": _released_s(account),
            "activities_ns": activities,
            "outcomes_ns": outcomes,
            "estimated_ns": _estimated(account),
        },
        "tokens": tokens,
        "flops": flops,
        "mfu": {**mfu, "saving": saving_of(account, spend, mfu, plan)},
        "gpus": gpus_of(account),
        "spend": money,
        "plan": plan,
        "budget": budget_of(account),
        "released": _released(account, spend.currency),
        "wastes": wastes_of(account, activities, outcomes, money),
        "checkpoints": save_rows(saves),
        "checkpoint_costs": checkpoint_costs_of(
            account,
            saves,
            time.time_ns() if now_ns is None else now_ns,
            currency=spend.currency,
            progress=plan["progress_ratio"],
            running={rank.seat.attempt for rank in account.ranks if _status(rank) == "running"},
        ),
        "verdicts": _verdicts(account),
        "series": series_of(account),
        "notes": [*account.problems, *_other_currencies(account, spend.currency)],
    }
    data["provenance"] = provenance_of(data)
    return data


def _attempt(account: RunAccount, number: int) -> dict[str, Any]:
    ranks = account.of_attempt(number)
    first, gaps = ranks[0], [g for g in account.gaps if g.earlier.attempt == number]
    gap = gaps[0] if gaps else None
    fresh = not first.resumes or first.resumes[0].at.counters.batches > 0
    return {
        "attempt": number,
        "started_at": instant(min(r.wall_ns for r in ranks)),
        "ended_at": instant(max(r.end_wall_ns for r in ranks)) if _status(first) != "running" else None,
        "ended": _status(first),
        "reason": next((r.reason for r in ranks if r.reason), None),
        "releases": first.header.get("releases"),
        "ranks": len(ranks),
        "paid_devices": first.paid_devices,
        "idle_devices": sum(r.idle_devices for r in ranks),
        "device": first.header.get("device"),
        "first_step": 0 if fresh else first.resumes[0].step,
        "last_step": first.final.counters.step,
        "batches": sum(r.final.counters.batches for r in ranks),
        "rework_batches": sum(r.final.counters.batches - account.kept[r.seat].batches for r in ranks),
        "rework_steps": steps_done(first) - account.kept[first.seat].steps,
        "elapsed_device_ns": sum(r.device_ns for r in ranks),
        "gap_after_ns": gap.ns if gap and gap.billed else None,
        "released_after_s": gap.ns / NS_PER_S if gap and not gap.billed else 0.0,
        "gap_reason": gap.reason if gap else None,
    }


def _status(rank: RankAccount) -> str:
    """How a rank ended; another machine's process cannot be asked, but signs of life of the last minutes are some."""
    silent_ns = abs(time.time_ns() - rank.end_wall_ns)
    elsewhere = rank.tenure.host != socket.gethostname()
    return "running" if rank.status == "died" and elsewhere and silent_ns < ELSEWHERE_ALIVE_NS else rank.status


def _other_currencies(account: RunAccount, currency: str) -> list[str]:
    return [
        f"attempt {number} is priced in {book.currency}, which is not added to {currency}: its cost is in no total"
        for number, book in sorted(account.books.items())
        if book.prices and book.currency != currency
    ]


def _estimated(account: RunAccount) -> dict[str, int]:
    teardown = sum(r.estimated_ns for r in account.ranks)
    return {"teardown": teardown} if teardown else {}


def _sum_known(ranks: Sequence[RankAccount], name: str) -> int | None:
    """Sum of a counter over ranks that trained; unknown if it is for one of them."""
    values = [getattr(r.final.counters, name) for r in ranks if r.final.counters.batches]
    return None if not values or any(v is None for v in values) else sum(values)


def _tokens(account: RunAccount) -> dict[str, int | None]:
    ranks = account.ranks
    counted = _sum_known(ranks, "tokens")
    kept = None if counted is None else sum(account.kept[r.seat].tokens for r in ranks)
    padding, samples = _sum_known(ranks, "padding"), _sum_known(ranks, "samples")
    return {
        "trained": kept,
        "padding": None if padding is None else sum(account.kept[r.seat].padding for r in ranks),
        "rework": None if counted is None or kept is None else counted - kept,
        "samples": None if samples is None else sum(account.kept[r.seat].samples for r in ranks),
    }


def _kept_flops(account: RunAccount) -> int | None:
    """Model FLOPs of training that was kept, `None` if unknown."""
    kept = [account.kept[r.seat].flops for r in account.ranks if r.final.counters.batches]
    return None if any(flops is None for flops in kept) else sum(flops for flops in kept if flops is not None)


def _texts(shares: Mapping[str, Decimal]) -> dict[str, str]:
    return {name: plain(amount) for name, amount in shares.items()}


def _money(account: RunAccount, spend: Spend, tokens: int | None) -> dict[str, Any]:
    given = any(book.prices for book in account.books.values())
    remedy = (
        "no price was in force; add one for that time to the PriceBook" if given else f"no price given; add {ADD_PRICE}"
    )
    unpriced = [
        {"what": "device time" if meter == DEVICE else meter, "unit": unit, "quantity": n, "remedy": remedy}
        for (meter, unit), n in spend.unpriced.items()
    ]
    if not spend.priced:
        nothing = dict.fromkeys(("total", "device_total", "usd_per_hour", "per_million_tokens", "per_exaflop"))
        breakdowns: dict[str, Any] = {name: {} for name in ("by_activity", "by_outcome", "by_meter", "by_tag")}
        return {"currency": spend.currency, **nothing, **breakdowns, "unpriced": unpriced}
    total = round_money(spend.total)
    by_meter = round_shares(spend.by_meter)
    device_total = by_meter.get(DEVICE, Decimal(0))
    by_activity = round_shares(spend.by_activity, whole=device_total)
    by_outcome = round_shares(outcome_spend(account), whole=by_activity.get("train", Decimal(0)))
    hours = Fraction(max(r.elapsed_ns for r in account.ranks), NS_PER_HOUR)
    elapsed_hours = Fraction(_wall_ns(account), NS_PER_HOUR) or hours
    return {
        "currency": spend.currency,
        "total": plain(total),
        "device_total": plain(device_total),
        "by_activity": _texts(by_activity),
        "by_outcome": _texts(by_outcome),
        "by_meter": _texts(by_meter),
        "by_tag": {tag: _texts(round_shares(parts)) for tag, parts in spend.by_tag.items()},
        "unpriced": unpriced,
        "usd_per_hour": plain(round_money(spend.total / elapsed_hours)) if elapsed_hours else None,
        "per_million_tokens": plain(round_money(spend.total * 1_000_000 / tokens)) if tokens else None,
        "per_exaflop": plain(round_money(spend.total * 10**18 / kept)) if (kept := _kept_flops(account)) else None,
    }


def _wall_ns(account: RunAccount) -> int:
    """Time during which the run was paid for, however many devices: attempts and held gaps."""
    longest = sum(max(r.elapsed_ns for r in account.of_attempt(n)) for n in account.attempts)
    held = {g.earlier.attempt: g.ns for g in account.gaps if g.billed and g.earlier.rank == 0}
    return longest + sum(held.values())


def _plan(account: RunAccount, spend: Spend, tokens: int | None) -> dict[str, Any]:
    planned = account.ranks[-1].header.get("planned_tokens")
    progress = Fraction(tokens, planned) if planned and tokens is not None else None
    forecast = None
    if progress and spend.priced:
        forecast = plain(round_money(spend.total / progress if progress < 1 else spend.total))
    return {
        "planned_tokens": planned,
        "progress_ratio": None if progress is None else float(progress),
        "forecast_total": forecast,
    }


def _released_s(account: RunAccount) -> float:
    by_attempt = {g.earlier.attempt: g.ns for g in reversed(account.gaps) if not g.billed}
    return sum(by_attempt.values()) / NS_PER_S


def _released(account: RunAccount, currency: str) -> dict[str, Any]:
    ranks = {r.seat: r for r in account.ranks}
    amounts = []
    for gap in account.gaps:
        if not gap.billed and gap.ns:
            rank = ranks[gap.earlier]
            book, start = account.books.get(gap.earlier.attempt, PriceBook()), rank.end_wall_ns
            amounts.append(book.device_money(start, start + gap.ns, gap.devices, rank.paid_devices))
    known = [a for a in amounts if a is not None]
    held = plain(round_money(sum(known, Fraction(0)))) if known and len(known) == len(amounts) else None
    return {"seconds": _released_s(account), "money_if_held": held}


def _verdicts(account: RunAccount) -> list[dict[str, Any]]:
    return [
        {
            "kind": event["judged"],
            **{name: event[name] for name in ("action", "reason", "message", "step", "spend")},
        }
        for rank in account.ranks
        for event in rank.events
        if event["k"] == "verdict"
    ]
