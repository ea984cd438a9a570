"""How often a run saved beside how often it should have: from its own saves, failures and prices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import Any, Final

from costguard.checkpoints.lives import Life
from costguard.checkpoints.money import add_known
from costguard.ledger.account import RunAccount
from costguard.ledger.failures import Failure, failures_of
from costguard.ledger.ledger import train_spend
from costguard.policies.interval import (
    PRIOR_FAILURES,
    PRIOR_GPU_HOURS,
    IntervalReview,
    Range,
    failure_range_s,
    review_interval,
    would_have_lost_s,
)
from costguard.reports.saves import Save, money_text
from costguard.reports.storage import CURRENCY, Stored, usd_per_hour_at
from costguard.units import NS_PER_HOUR, NS_PER_S, format_duration_s, format_money

TRAINING: Final = ("train", "validation", "data_wait", "compile", "logging")
"""Activities in which a failure would lose work: what lies between two saves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """What a run has shown of its saves and failures, in seconds of the whole allocation.

    Args:
        gaps_s: Seconds between two saves that training can go on from.
        blocked_s: Seconds that such a save held training up, all saves of one step together; the median.
        trained_s: Seconds in which a failure would have lost work.
        failures: The attempts that lost work.
        device_hours: Device-hours of all attempts to train.
        devices: Paid devices.
        usd_per_hour: Price of the allocation now.
        checkpoint_usd: What one checkpoint costs until it is deleted.
    """

    gaps_s: Sequence[float]
    blocked_s: float
    trained_s: float
    failures: Sequence[Failure]
    device_hours: float
    devices: int
    usd_per_hour: Fraction | None
    checkpoint_usd: Fraction | None


def interval_of(
    account: RunAccount,
    saves: Sequence[Save],
    stored: Stored | None,
    *,
    currency: str = "USD",
    progress: float | None = None,
    running: Collection[int] = (),
) -> dict[str, Any] | None:
    """The receipt's `checkpoint_costs.interval`.

    Args:
        account: The run.
        saves: Its saves.
        stored: Its checkpoints where `CheckpointTiering` lists them.
        currency: Of the run's prices; where it is not that of storage, a checkpoint's own price is left out.
        progress: Share of the plan that is done, `None` if unknown.
        running: Numbers of attempts that go on on another machine.

    Returns:
        `None` for a run without a save that training can go on from.
    """
    blocked = _blocked_s(saves)
    if not blocked:
        return None
    seen = _seen(account, saves, stored if currency == CURRENCY else None, blocked, running)
    # Without one checkpoint's price Young's rule is what is left of the advice, and `money_per_checkpoint` says so.
    review = review_interval(
        seen.blocked_s,
        failure_range_s(seen.devices, len(seen.failures), seen.device_hours),
        length_s=seen.trained_s / progress if progress and progress < 1 else seen.trained_s,
        every_s=median(seen.gaps_s) if seen.gaps_s else None,
        usd_per_hour=seen.usd_per_hour,
        usd_per_checkpoint=seen.checkpoint_usd or 0,
    )
    data = _data(account, saves, seen, review)
    return data | {
        "sentences": _sentences(data, account.books[max(account.books)].currency if account.books else "USD")
    }


def _steps(saves: Sequence[Save]) -> dict[tuple[int, int], list[Save]]:
    """Saves that training can go on from, those of one step together: a `last.ckpt` beside another is no second one."""
    steps: dict[tuple[int, int], list[Save]] = {}
    for save in saves:
        if save.event["save"] is not None:
            steps.setdefault((save.rank.seat.attempt, save.event["step"]), []).append(save)
    return steps


def _blocked_s(saves: Sequence[Save]) -> list[float]:
    return [sum(save.blocked_ns for save in those) / NS_PER_S for those in _steps(saves).values()]


def _gaps_s(saves: Sequence[Save]) -> list[float]:
    """Seconds between the end of one save and the begin of the next one of the same attempt."""
    gaps, before = [], None
    for (attempt, _), those in _steps(saves).items():
        begin = min(save.wall_ns - save.blocked_ns for save in those)
        if before is not None and before[0] == attempt and begin > before[1]:
            gaps.append((begin - before[1]) / NS_PER_S)
        before = attempt, max(save.wall_ns for save in those)
    return gaps


def _seen(
    account: RunAccount,
    saves: Sequence[Save],
    stored: Stored | None,
    blocked: Sequence[float],
    running: Collection[int],
) -> _Seen:
    trainings = [rank for number in account.trainings for rank in account.of_attempt(number)]
    firsts = {rank.seat.attempt: rank for rank in reversed(trainings)}.values()
    trained = sum(rank.final.activities_ns.get(name, 0) for rank in firsts for name in TRAINING)
    last = trainings[-1]
    return _Seen(
        gaps_s=_gaps_s(saves),
        blocked_s=median(blocked),
        trained_s=trained / NS_PER_S,
        failures=failures_of(account, running),
        device_hours=sum(rank.device_ns for rank in trainings) / NS_PER_HOUR,
        devices=max(1, last.paid_devices),
        usd_per_hour=usd_per_hour_at(account, last.end_wall_ns),
        checkpoint_usd=None if stored is None else _checkpoint_usd(stored),
    )


def _checkpoint_usd(stored: Stored) -> Fraction | None:
    """What one checkpoint costs until it is deleted, at the median; unknown if that is unknown for half of them.

    One that is to be kept for ever costs more than any that goes, whatever its price.
    """
    totals = [total for life in stored.lives if (total := _life_usd(stored, life)) is not None]
    return sorted(totals)[(len(stored.lives) - 1) // 2] if 2 * len(totals) > len(stored.lives) else None


def _life_usd(stored: Stored, life: Life) -> Fraction | None:
    end_ns = life.ended_ns if life.ended_ns is not None else life.due_ns
    if end_ns is None or life.id in stored.unseen:
        return None
    cost = stored.cost(life, at_ns=max(end_ns, stored.now_ns))
    return add_known(cost.hot_usd, cost.cold_usd, cost.requests_usd, cost.early_usd)


def _data(account: RunAccount, saves: Sequence[Save], seen: _Seen, review: IntervalReview) -> dict[str, Any]:
    at_advised = [
        would_have_lost_s(every_s, seen.blocked_s, len(seen.failures), seen.trained_s) if every_s else 0.0
        for every_s in review.advised_s
    ]
    hours = Range(*sorted(lost_s / 3600 for lost_s in at_advised))
    price = seen.usd_per_hour
    return {
        "observed_s": median(seen.gaps_s) if seen.gaps_s else None,
        "gaps": len(seen.gaps_s),
        "blocked_s": seen.blocked_s,
        "trained_s": seen.trained_s,
        "failures": len(seen.failures),
        "device_hours": seen.device_hours,
        "prior": {"failures": PRIOR_FAILURES, "device_hours": PRIOR_GPU_HOURS},
        "failure_s": review.failure_s._asdict(),
        "advised_s": review.advised_s._asdict(),
        "money_per_hour": money_text(price),
        "money_per_checkpoint": money_text(seen.checkpoint_usd),
        "money_per_hour_now": _money_range(review.usd_per_hour_now),
        "money_per_hour_advised": _money_range(review.usd_per_hour_advised),
        "money_per_hour_saved": _money_range(review.usd_per_hour_saved),
        "lost": _lost(account, saves, seen),
        "lost_at_advised": {
            "device_hours": Range(*(h * seen.devices for h in hours))._asdict(),
            "money": None if price is None else _money_range(Range(*(h * float(price) for h in hours))),
        },
        "failures_matter": review.failures_matter,
    }


def _money_range(amounts: Range | None) -> dict[str, str | None] | None:
    if amounts is None:
        return None
    return {name: money_text(Fraction(amount)) for name, amount in amounts._asdict().items()}


def _lost(account: RunAccount, saves: Sequence[Save], seen: _Seen) -> dict[str, Any]:
    """What saves and failures have cost: time of the whole allocation that stood still, was redone, or is gone."""
    blocked = add_known(*(save.money for save in saves))
    ns, again = sum(save.blocked_ns * save.rank.paid_devices for save in saves), Fraction(0)
    for failure in seen.failures:
        # Ranks train together: what the slowest of them has to do again, all devices are paid for.
        rank = max(account.of_attempt(failure.attempt), key=lambda rank: failure.lost_ns[rank.seat])
        ns += failure.lost_ns[rank.seat] * rank.paid_devices
        again += train_spend(account, rank, failure.lost_ns[rank.seat]) * rank.paid_devices
    return {
        "device_hours": ns / NS_PER_HOUR,
        "money": None if seen.usd_per_hour is None else money_text(add_known(blocked, again)),
    }


# -- in words ------------------------------------------------------------------------------------------------------


def _sentences(data: dict[str, Any], currency: str) -> list[str]:
    return [
        _how_often(data),
        _how_it_is_known(data),
        *([] if data["failures_matter"] else [_not_the_risk(data)]),
        *_what_it_cost(data, currency),
    ]


def _how_often(data: dict[str, Any]) -> str:
    now = data["observed_s"]
    every = "one save so far" if now is None else f"every {format_duration_s(now)} at the median of {data['gaps']}"
    low, middle, high = (format_duration_s(data["advised_s"][name]) for name in ("low", "middle", "high"))
    return f"{every}; advised is every {middle} ({low} to {high})."


def _how_it_is_known(data: dict[str, Any]) -> str:
    prior, price, failures = data["prior"], data["money_per_checkpoint"], data["failures"]
    own = "left out, since it or its end is unknown" if price is None else format_money(price)
    return (
        f"From {format_duration_s(data['blocked_s'])} that a save holds training up, a checkpoint's own price ({own}), "
        f"and {failures} failure{'' if failures == 1 else 's'} that lost work in {data['device_hours']:.4g} "
        f"device-hours, on a prior of {prior['failures']:g} in {prior['device_hours']:,.0f}."
    )


def _not_the_risk(data: dict[str, Any]) -> str:
    advised, trained = (format_duration_s(s) for s in (data["advised_s"]["middle"], data["trained_s"]))
    return (
        f"Failures are not the risk of this run: the advised {advised} are longer than the {trained} of training; save "
        "where the evaluation needs it, and at the end."
    )


def _what_it_cost(data: dict[str, Any], currency: str) -> list[str]:
    lost, then = data["lost"], data["lost_at_advised"]
    hours, money = then["device_hours"], then["money"]
    would = "none of it"
    if hours["high"]:
        would = f"it would have been {_between(f'{hours[name]:.4g}' for name in ('low', 'high'))}"
        would += "" if money is None else f" = {_span(money, currency)}"
    price = "" if lost["money"] is None else f" = {format_money(lost['money'], currency)}"
    said = [
        f"This run lost {lost['device_hours']:.4g} device-hours{price} to saves and failures; at the advised interval "
        f"{would}."
    ]
    now, best = data["money_per_hour_now"], data["money_per_hour_advised"]
    if now is not None and best is not None:
        said.append(
            f"From here on the present interval costs {_span(now, currency)} an hour of training, the advised one "
            f"{_span(best, currency)}."
        )
    return said


def _span(amounts: dict[str, str], currency: str) -> str:
    return _between(format_money(amounts[name], currency) for name in ("low", "high"))


def _between(ends: Iterable[str]) -> str:
    """Two ends of a range that look alike are said once."""
    return " to ".join(dict.fromkeys(ends))
