"""What of a run was waste, in sentences with a price, and how each figure came about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costguard.ledger.account import RunAccount
from costguard.reports.checkpoint_text import provenance_rows
from costguard.reports.names import NAMES
from costguard.units import NS_PER_S, format_count, format_duration_s

ADD_PRICE = 'CostMonitor(usd_per_gpu_hour="2.49")'
USEFUL = frozenset({"train", "validation"})

_SENTENCES = {
    "provision": "Waiting for the machine to be ready.",
    "startup": "Importing, building the model and getting ready to train; paid again at each attempt.",
    "restore": "Reading checkpoints back.",
    "compile": "Compiling and warming up.",
    "data_wait": "The device waited for data; more loader workers, prefetching or a quicker format help.",
    "checkpoint": "Training stood still while checkpoints were written.",
    "demotion": "Training stood still while checkpoints were moved.",
    "logging": "Training stood still while loggers wrote; log less often.",
    "metering": "costguard itself, and on a CPU the measurement of its peak.",
    "idle": "Paid for and not used: devices without a rank, the process after training, a machine not given back.",
    "hung": "Nothing went on.",
    "teardown": "Ending: closing loaders and loggers, and the interpreter's own exit.",
    "gap": "The machine was held between two attempts.",
    "skipped": "Steps whose update was skipped.",
    "stalled": "Steps that learned nothing.",
}


def wastes_of(
    account: RunAccount, activities: Mapping[str, int], outcomes: Mapping[str, int], money: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The three largest wastes.

    Args:
        account: The run.
        activities: Device time by activity.
        outcomes: Train time by outcome.
        money: The receipt's `spend`.
    """
    causes = {name: ns for name, ns in activities.items() if name not in USEFUL}
    causes |= {name: ns for name, ns in outcomes.items() if name != "kept"}
    prices = {**money["by_activity"], **money["by_outcome"]}
    largest = sorted((name for name in causes if causes[name]), key=lambda name: -causes[name])[:3]
    return [
        {
            "cause": name,
            "device_ns": causes[name],
            "money": prices.get(name),
            "share_ratio": causes[name] / account.elapsed_device_ns,
            "sentence": _rework(account) if name == "rework" else _SENTENCES[name],
        }
        for name in largest
    ]


def _rework(account: RunAccount) -> str:
    lost = {
        r.seat.attempt: r.final.counters.batches - account.kept[r.seat].batches
        for r in account.ranks
        if r.seat.rank == 0 and r.final.counters.batches > account.kept[r.seat].batches
    }
    where = ", ".join(f"{batches} batches of attempt {attempt}" for attempt, batches in lost.items())
    return f"Training after the last save that was gone on from, done again: {where}. Save more often."


def provenance_of(receipt: Mapping[str, Any]) -> list[dict[str, str]]:
    """How each figure came about: measured, estimated or unknown.

    Args:
        receipt: The other parts of the receipt.
    """
    time, spend, mfu, flops = (receipt[k] for k in ("time", "spend", "mfu", "flops"))
    rows = [("device time", "measured", "each rank's clock, from the creation of its process; activities add up to it")]
    if time["estimated_ns"]:
        seconds = sum(time["estimated_ns"].values()) / NS_PER_S
        rows.append(("interpreter exit", "estimated", f"{seconds:g} s of teardown, after the last handler has run"))
    if spend["total"] is None:
        rows.append(("money", "unknown", remedy_of(receipt)))
    else:
        rows.append(("money", "measured", "device time times the price given, exact, rounded once to 1e-12"))
    if spend["unpriced"] and spend["total"] is not None:
        parts = ", ".join(f"{u['what']} {_amount(u)}" for u in spend["unpriced"])
        rows.append(("unpriced", "unknown", f"{parts}: no price was in force; it is in no total"))
    rows += [_tokens_row(receipt["tokens"]), _flops_row(flops), _mfu_row(mfu, flops)]
    rows += provenance_rows(receipt["checkpoint_costs"])
    return [{"figure": figure, "how": how, "text": text} for figure, how, text in rows]


def remedy_of(receipt: Mapping[str, Any]) -> str:
    """What to do about money that is unknown."""
    unpriced = receipt["spend"]["unpriced"]
    return str(unpriced[0]["remedy"]) if unpriced else f"no price given; add {ADD_PRICE}"


def _amount(unpriced: Mapping[str, Any]) -> str:
    if unpriced["unit"] == "device_ns":
        return format_duration_s(unpriced["quantity"] / NS_PER_S)
    return f"{format_count(unpriced['quantity'])} {unpriced['unit']}"


def _tokens_row(tokens: Mapping[str, Any]) -> tuple[str, str, str]:
    if tokens["trained"] is None:
        return "tokens", "unknown", "no batch had countable tokens; pass count_tokens=your_function"
    return "tokens", "measured", "from the shapes of each batch, summed over ranks, padding and redone work apart"


def _flops_row(flops: Mapping[str, Any]) -> tuple[str, str, str]:
    if flops["model"] is not None:
        check = flops["check"]
        text = f"each product of a batch of each size ({flops['how']}), summed over batches and ranks"
        return "FLOPs", "measured", f"{text}; {check['sentence']}" if check else text
    why = f" ({flops['reason']})" if flops["reason"] else ""
    if flops["estimate_6nd"] is None:
        return "FLOPs", "unknown", f"the model's were not counted{why}, and 6ND needs its parameters and tokens"
    parameters = format_count(flops["parameters"])
    text = f"6ND: 6 x {parameters} parameters x tokens, redone ones included, padding not"
    return "FLOPs", "estimated", f"{text}; the model's were not counted{why}"


def _mfu_row(mfu: Mapping[str, Any], flops: Mapping[str, Any]) -> tuple[str, str, str]:
    if mfu["step"] is None:
        why = mfu["reason"] or "pass peak_flops_per_s"
        missing = f"the device's peak: {why}" if mfu["peak_flops_per_s"] is None else "FLOPs"
        return "MFU", "unknown", f"needs {missing}"
    how = f" ({mfu['reason']})" if mfu["reason"] else ""
    if mfu["alarms"]:
        how += "; over 100%: the peak was measured while the machine was busy, or is not this device's"
    measured = "measured" if flops["model"] is not None and not mfu["peak_estimated"] else "estimated"
    text = f"{NAMES[mfu['convention']]} over train time x peak, warm-up left out; peak {mfu['peak_source']}{how}"
    return "MFU", measured, text
