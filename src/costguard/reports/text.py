"""The receipt as one page for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from costguard.reports.checkpoint_text import checkpoint_lines
from costguard.reports.names import NAMES
from costguard.reports.wastes import remedy_of
from costguard.units import NS_PER_HOUR, NS_PER_S, format_count, format_duration_s, format_money

_RULE = "-" * 78


def render_text(receipt: Mapping[str, Any]) -> str:
    """Write the receipt as text of at most about 100 columns.

    Args:
        receipt: See `costguard.reports.receipt.receipt_of`.
    """
    parts = [_head, _where, _wastes, _training, _budget, _attempts, _checkpoints, _verdicts, _provenance]
    blocks = ["\n".join(part(receipt)) for part in parts]
    return "\n\n".join(block for block in blocks if block)


def _money(receipt: Mapping[str, Any], amount: str | None) -> str:
    return "unpriced" if amount is None else format_money(amount, receipt["spend"]["currency"])


def headline(receipt: Mapping[str, Any]) -> str:
    """One sentence: what the run cost, per what, how well it used the device, what was waste."""
    spend, hours = receipt["spend"], receipt["time"]["elapsed_device_ns"] / NS_PER_HOUR
    verb = "has cost" if receipt["run"]["state"] == "running" else "cost"
    if spend["total"] is None:
        parts = [f"This run took {hours:.4g} device-hours (unpriced)"]
    else:
        parts = [f"This run {verb} {_money(receipt, spend['total'])}"]
        if spend["per_million_tokens"]:
            parts.append(f"{_money(receipt, spend['per_million_tokens'])} per million tokens")
        if spend["usd_per_hour"]:
            parts.append(f"{_money(receipt, spend['usd_per_hour'])} per hour")
    if receipt["mfu"]["step"] is not None:
        parts.append(f"MFU {receipt['mfu']['step']:.1%} ({NAMES[receipt['mfu']['convention']]})")
    parts.append(f"{waste_ratio(receipt):.1%} of it was waste (not kept training or validation)")
    return parts[0] + ": " + ", ".join(parts[1:]) + "."


def waste_ratio(receipt: Mapping[str, Any]) -> float:
    """Share of device time that was neither kept training nor validation."""
    time = receipt["time"]
    useful = time["outcomes_ns"]["kept"] + time["activities_ns"].get("validation", 0)
    return 1 - useful / time["elapsed_device_ns"] if time["elapsed_device_ns"] else 0.0


def _head(receipt: Mapping[str, Any]) -> Iterator[str]:
    run = receipt["run"]
    tags = ", ".join(f"{k}={v}" for k, v in run["tags"].items())
    yield f"costguard receipt   run {run['id']}   {run['state']}" + (f"   {tags}" if tags else "")
    yield _RULE
    yield headline(receipt)
    if receipt["spend"]["total"] is None:
        yield f"Money is unknown: {remedy_of(receipt)}"


def _where(receipt: Mapping[str, Any]) -> Iterator[str]:
    time, spend = receipt["time"], receipt["spend"]
    total = time["elapsed_device_ns"]
    yield f"{'WHERE IT WENT':<28}{'device-hours':>14}{'money':>16}{'share':>10}"
    activities = sorted(time["activities_ns"].items(), key=lambda item: -item[1])
    for name, ns in activities:
        yield _where_row(receipt, name.replace("_", " "), ns, spend["by_activity"].get(name), total)
        if name == "train":
            for outcome, part in time["outcomes_ns"].items():
                if part and part != ns:
                    yield _where_row(receipt, f"  of it {outcome}", part, spend["by_outcome"].get(outcome), total)
    yield _where_row(receipt, "total", total, spend["device_total"], total)


def _where_row(receipt: Mapping[str, Any], name: str, ns: int, money: str | None, total: int) -> str:
    return f"{name:<28}{ns / NS_PER_HOUR:>14.6f}{_money(receipt, money):>16}{ns / total if total else 0:>10.2%}"


def _wastes(receipt: Mapping[str, Any]) -> Iterator[str]:
    if receipt["wastes"]:
        yield "LARGEST WASTES"
    for place, waste in enumerate(receipt["wastes"], 1):
        price = _money(receipt, waste["money"])
        took = format_duration_s(waste["device_ns"] / NS_PER_S)
        yield f"{place}. {waste['cause'].replace('_', ' ')}: {price}, {took} ({waste['share_ratio']:.1%})"
        yield f"   {waste['sentence']}"


def _training(receipt: Mapping[str, Any]) -> Iterator[str]:
    tokens, flops, plan = (receipt[k] for k in ("tokens", "flops", "plan"))
    yield "TRAINING"
    if tokens["trained"] is not None:
        apart = [f"{tokens[k]:,} {k}" for k in ("rework", "padding") if tokens[k]]
        yield f"tokens    {tokens['trained']:,} trained" + (f" ({', '.join(apart)} apart)" if apart else "")
    elif tokens["samples"] is not None:
        yield f"samples   {tokens['samples']:,} trained; tokens unknown"
    yield from _flops(flops)
    yield from _mfu(receipt)
    yield from _gpus(receipt["gpus"])
    if plan["progress_ratio"] is not None:
        forecast = f", in all {_money(receipt, plan['forecast_total'])} at this pace" if plan["forecast_total"] else ""
        yield f"plan      {plan['progress_ratio']:.1%} of {format_count(plan['planned_tokens'])} tokens{forecast}"


def _flops(flops: Mapping[str, Any]) -> Iterator[str]:
    model, parameters = flops["model"], flops["parameters"]
    of = f", {parameters:,} parameters" if parameters is not None else ""
    if model is not None:
        versus = f", {flops['vs_6nd_ratio']:.3f} x 6ND" if flops["vs_6nd_ratio"] else ""
        yield f"FLOPs     {format_count(float(model['full_attention']))} of the model{versus}{of}"
        gap = flops["gap_to_6nd"] or {}
        shares = [f"{name} {value:+.1%}" for name, value in gap.items() if name != "total" and abs(value) >= 0.0005]
        if shares:
            yield f"          against 6ND {gap['total']:+.1%}: {', '.join(shares)}"
    elif flops["estimate_6nd"] is not None:
        yield f"FLOPs     {format_count(float(flops['estimate_6nd']))} by 6ND{of}"


def _mfu(receipt: Mapping[str, Any]) -> Iterator[str]:
    mfu = receipt["mfu"]
    if mfu["step"] is None:
        if mfu["model_flops_per_s"] is not None:
            yield f"speed     {format_count(mfu['model_flops_per_s'])}FLOP/s a device; MFU unknown: {mfu['reason']}"
        return
    yield f"MFU       {mfu_line(mfu)}"
    hfu = f", HFU {mfu['hfu']:.1%}" if mfu["hfu"] is not None else ""
    best = f", {mfu['of_achievable']:.1%} of what a matrix product reaches here" if mfu["of_achievable"] else ""
    billed = f"{mfu['billed']:.1%} of all billed time" if mfu["billed"] is not None else ""
    yield f"          of train time; {billed}{hfu}{best}"
    for alarm in mfu["alarms"]:
        yield f"ALARM     {alarm}: the peak or the count is wrong; pass peak_flops_per_s=, or see `costguard doctor`"
    saving = mfu["saving"]
    if saving["money"] is not None:
        saved = _money(receipt, saving["money"])
        yield f"          raising it to {saving['mfu_to']:.1%} would save {saved} on the rest of the plan"


def _gpus(gpus: Mapping[str, Any]) -> Iterator[str]:
    if gpus["energy_kwh"] is not None:
        how = " (partly integrated from power)" if gpus["energy_estimated"] else ""
        yield f"energy    {gpus['energy_kwh']:.4g} kWh of the GPUs while they trained{how}"
    for gpu in gpus["devices"]:
        figures = [
            *([f"{gpu['power_mean_w']:.0f} W"] if gpu["power_mean_w"] is not None else []),
            *([_clock(gpu)] if gpu["sm_clock_mean_mhz"] is not None else []),
            *([_memory(gpu)] if gpu["memory_max_bytes"] is not None else []),
        ]
        if figures or gpu["problem"]:
            what = ", ".join(figures) or gpu["problem"]
            yield f"GPU       attempt {gpu['attempt']} rank {gpu['rank']} {gpu['name']}: {what}"


def _clock(gpu: Mapping[str, Any]) -> str:
    limit = f" of {gpu['sm_clock_limit_mhz']:.0f}" if gpu["sm_clock_limit_mhz"] else ""
    return f"{gpu['sm_clock_mean_mhz']:.0f}{limit} MHz"


def _memory(gpu: Mapping[str, Any]) -> str:
    total = f" of {format_count(float(gpu['memory_total_bytes']))}B" if gpu["memory_total_bytes"] else ""
    return f"at most {format_count(float(gpu['memory_max_bytes']))}B{total} of memory"


def mfu_line(mfu: Mapping[str, Any]) -> str:
    """MFU by each convention with its peak, in one line."""
    by = {name: mfu["step_by_convention"].get(name) for name in ("full_attention", "causal", "6nd")}
    known = {NAMES[name]: f"{value:.1%}" for name, value in by.items() if value is not None}
    first, *others = known.items()
    figures = [f"{first[1]} ({first[0]})", *(f"{value} {name}" for name, value in others)]
    dtype = f" {mfu['dtype']} dense" if mfu["dtype"] else ""
    source = str(mfu["peak_source"]).replace(f",{dtype}", "")
    tera = mfu["peak_flops_per_s"] / 1e12
    amount = f"{tera:.4g} T" if tera >= 1 else format_count(mfu["peak_flops_per_s"])
    peak = f"peak {amount}FLOP/s{dtype}, {source}"
    return " | ".join([*figures, peak])


def _budget(receipt: Mapping[str, Any]) -> Iterator[str]:
    budget = receipt["budget"]
    if budget is None:
        return
    yield "BUDGET"
    for key, limit in budget["limits"].items():
        scope, unit, _ = key.rsplit("/", 2)
        amount = format_money(limit) if unit == "usd" else f"{limit} GPU-hours"
        yield f"{amount} for the {scope}"
    for stop in budget["stops"]:
        yield f"stopped at step {stop['step']} of attempt {stop['attempt']}: {stop['message']}"
        if stop["reserved_s"] is not None:
            parts = ", ".join(
                f"{part['part']} {format_duration_s(part['predicted_s'])}"
                + (f" (took {format_duration_s(part['real_s'])})" if part["real_s"] is not None else "")
                for part in stop["parts"]
                if part["predicted_s"] or part["real_s"]
            )
            reserved, took = (format_duration_s(stop[name]) for name in ("reserved_s", "took_s"))
            yield f"   set aside for stopping {reserved}, it took {took}: {parts}"


def _attempts(receipt: Mapping[str, Any]) -> Iterator[str]:
    yield "ATTEMPTS"
    for a in receipt["run"]["attempts"]:
        devices = f"{a['paid_devices']} device{'s' if a['paid_devices'] != 1 else ''}"
        redone = f", {a['rework_steps']} redone" if a["rework_steps"] else ""
        why = f" ({a['reason']})" if a["reason"] else ""
        end = a["ended_at"] or "now"
        yield f"{a['attempt']}. {a['started_at']} to {end}, {a['ended']}{why}"
        nothing = "nothing trained" if a["releases"] is None else "idle until the machine was given back"
        steps = f"steps {a['first_step']} to {a['last_step']}{redone}" if a["batches"] else nothing
        yield f"   {devices}, {steps}, {a['elapsed_device_ns'] / NS_PER_HOUR:.4g} device-hours"
        if a["gap_after_ns"]:
            yield f"   then a gap of {format_duration_s(a['gap_after_ns'] / NS_PER_S)}, billed: {a['gap_reason']}"
    released = receipt["released"]
    if released["seconds"]:
        kept = (
            f", {_money(receipt, released['money_if_held'])} if you kept the machine"
            if released["money_if_held"]
            else ""
        )
        yield f'   not counted: {format_duration_s(released["seconds"])}{kept}; gap="held" counts it'


def _checkpoints(receipt: Mapping[str, Any]) -> Iterator[str]:
    rows = receipt["checkpoints"]
    if not rows:
        return
    blocked = sum(c["blocked_s"] for c in rows)
    written = sum(c["bytes"] or 0 for c in rows)
    yield (
        f"CHECKPOINTS  {len(rows)} written, {format_count(float(written))}B in all, training stood still for "
        f"{format_duration_s(blocked)}; last: step {rows[-1]['step']}, {rows[-1]['path']}"
    )
    yield from checkpoint_lines(receipt)


def _verdicts(receipt: Mapping[str, Any]) -> Iterator[str]:
    if receipt["verdicts"]:
        yield "VERDICTS"
    for verdict in receipt["verdicts"]:
        step = "" if verdict["step"] is None else f"step {verdict['step']}: "
        yield f"{step}{verdict['action']} ({verdict['kind']}): {verdict['message']}"


def _provenance(receipt: Mapping[str, Any]) -> Iterator[str]:
    yield "HOW EACH FIGURE CAME ABOUT"
    for row in receipt["provenance"]:
        yield f"{row['how']:<10} {row['figure']}: {row['text']}"
    for note in receipt["notes"]:
        yield f"note       {note}"
