"""The receipt's FLOPs and MFU, each figure with its convention and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from costguard.flops.check import Check
from costguard.ledger.account import RunAccount
from costguard.ledger.done import OVER_100_PERCENT, Done, done_by, mfu_by_convention, ratio, shown_convention
from costguard.ledger.ledger import Spend
from costguard.units import NS_PER_S, plain, round_money

HIGHER_MFU = Fraction(6, 5)
"""What a higher MFU would save is said for a fifth more than now: a usual result of one round of tuning."""


def done_in(account: RunAccount) -> Done:
    """What all ranks of all attempts did, redone work included."""
    return done_by((r.final.counters, r.final.train_ns) for r in account.ranks)


def flops_of(account: RunAccount, done: Done) -> dict[str, Any]:
    """The receipt's `flops`.

    Args:
        account: The run.
        done: What it did.
    """
    model, seen = account.fact("model") or {}, account.fact("flops") or {}
    parameters = model.get("parameters")
    flops = done.flops(parameters, in_train=False)
    full, six = flops["full_attention"], flops["6nd"]
    counted = bool(full)
    return {
        "model": {"full_attention": full, "causal": flops["causal"]} if counted else None,
        "hardware": done.work.hardware if done.work and counted else None,
        "estimate_6nd": six,
        "convention": shown_convention(flops),
        "parameters": parameters,
        "trainable_parameters": model.get("trainable"),
        "vs_6nd_ratio": full / six if full is not None and six else None,
        "gap_to_6nd": seen.get("gap"),
        "how": seen.get("how") if counted else None,
        "check": _check(seen),
        "unseen": list(seen.get("unseen", ())),
        "reason": None if counted else seen.get("reason") or _why_none(full),
    }


def _why_none(full: int | None) -> str:
    return "no batch was counted" if full is None else "no batch multiplied any matrices"


def _check(seen: Mapping[str, Any]) -> dict[str, Any] | None:
    if seen.get("torch_flops") is None:
        return None
    check = Check(seen["hardware"], seen["torch_flops"], seen["missed"], seen["unseen"])
    return {
        "counted": check.counted,
        "torch": check.torch,
        "ratio": check.ratio,
        "agrees": check.agrees,
        "missed": list(check.missed),
        "sentence": check.sentence,
    }


def mfu_of(account: RunAccount, done: Done) -> dict[str, Any]:
    """The receipt's `mfu`.

    Args:
        account: The run.
        done: What it did.
    """
    model, found, best = account.fact("model") or {}, account.fact("peak"), account.best_peak()
    peak = best["flops_per_s"] if best else None
    trained = done.flops(model.get("parameters"), in_train=True)
    everything = done.flops(model.get("parameters"), in_train=False)
    shown = shown_convention(everything)
    step = mfu_by_convention(trained, done.train_ns, peak)
    achievable = (best or {}).get("achievable_flops_per_s")
    alarms = [OVER_100_PERCENT] if any(value is not None and value > 1 for value in step.values()) else []
    rate = trained[shown]
    return {
        "step": step[shown],
        "billed": mfu_by_convention(everything, account.elapsed_device_ns, peak)[shown],
        "convention": shown,
        "step_by_convention": step,
        "hfu": ratio(done.hardware(), done.train_ns, peak),
        "model_flops_per_s": rate / (done.train_ns / NS_PER_S) if rate and done.train_ns else None,
        "peak_flops_per_s": peak,
        "peak_source": best["source"] if best else None,
        "peak_estimated": (best or {}).get("estimated"),
        "dtype": (best or found or {}).get("dtype"),
        "achievable_flops_per_s": achievable,
        "of_achievable": ratio(trained[shown], done.train_ns, achievable),
        "alarms": alarms,
        "reason": (best or found or {}).get("reason"),
    }


def saving_of(account: RunAccount, spend: Spend, mfu: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """What a fifth more MFU would save on the remaining plan; all `None` if anything needed for it is unknown."""
    nothing = dict.fromkeys(("mfu_from", "mfu_to", "money"))
    progress, step, train = plan["progress_ratio"], mfu["step"], spend.by_activity.get("train")
    if not progress or progress >= 1 or step is None or train is None or step * HIGHER_MFU >= 1:
        return nothing
    remaining = Fraction(train) * (1 / Fraction(progress) - 1)
    saved = remaining * (1 - 1 / HIGHER_MFU)
    return {"mfu_from": step, "mfu_to": float(step * HIGHER_MFU), "money": plain(round_money(saved))}


_J_PER_KWH = 3_600_000


def gpus_of(account: RunAccount) -> dict[str, Any]:
    """The receipt's `gpus`: what NVML told of each rank's GPU in each attempt, and the energy of all.

    Args:
        account: The run.
    """
    told = [(rank, rank.facts["gpu"]) for rank in account.ranks if "gpu" in rank.facts]
    rows = [{"attempt": rank.seat.attempt, "rank": rank.seat.rank, **gpu} for rank, gpu in told]
    joules = [row["energy_j"] for row in rows]
    known = bool(rows) and len(rows) == len(account.ranks) and all(j is not None for j in joules)
    return {
        "energy_kwh": sum(joules) / _J_PER_KWH if known else None,
        "energy_estimated": any(row["energy_estimated"] for row in rows) if known else None,
        "devices": rows,
    }
