"""The sections of the HTML receipt that list what happened and where the figures come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costguard.reports.breakdown import at, percent_of
from costguard.reports.checkpoint_tables import checkpoint_costs
from costguard.reports.names import NAMES
from costguard.reports.sections import Page, cell, hours, last, seconds, section, table, two_lines
from costguard.reports.svg import Raw, esc
from costguard.units import NS_PER_S, format_count

_ATTEMPTS, _CHECKPOINTS, _VERDICTS, _LINES = 40, 20, 20, 40


def _count(number: float | None, unit: str = "") -> str | None:
    if number is None:
        return None
    text = format_count(number)
    return text + unit if text[-1:].isalpha() or not unit else f"{text} {unit}"


def _moment(text: str | None) -> str | None:
    """Show a UTC time without fraction and zone; the head of the column says UTC."""
    if text is None or not text.endswith("Z"):
        return text
    return text.removesuffix("Z").split(".")[0].replace("T", " ")


def _between(attempt: Mapping[str, Any], is_last: bool) -> list[tuple[str, list[object]]]:
    gap, released = at(attempt, "gap_after_ns"), at(attempt, "released_after_s")
    texts = []
    if gap:
        texts.append(f"Gap of {seconds(gap / NS_PER_S)}, devices held: paid and counted.")
    elif gap is None and not released and not is_last:
        texts.append("Gap of unknown length.")
    if released:
        texts.append(f"Devices released for {seconds(released)}, not counted.")
    return [("between", [" ".join(texts)])] if texts else []


def _attempt(attempt: Mapping[str, Any]) -> tuple[str, list[object]]:
    ended, running = at(attempt, "ended"), at(attempt, "ended") == "running"
    first, final, again = (at(attempt, key) for key in ("first_step", "last_step", "rework_steps"))
    steps = None if first is None or final is None else f"{first:,} to {final:,}"
    idle, elapsed = at(attempt, "idle_devices"), at(attempt, "elapsed_device_ns")
    return "", [
        at(attempt, "attempt"),
        _moment(at(attempt, "started_at")),
        "still running" if running else _moment(at(attempt, "ended_at")),
        two_lines(ended, at(attempt, "reason")),
        two_lines(at(attempt, "paid_devices"), f"{idle} idle" if idle else ""),
        two_lines(steps, f"{again:,} done twice" if again else ""),
        None if elapsed is None else hours(elapsed),
    ]


def attempts(page: Page) -> str:
    """Every attempt, with the gaps and the released time between them."""
    kept, more = last(page.items("run", "attempts"), _ATTEMPTS, "attempts")
    rows = []
    for index, attempt in enumerate(kept):
        rows += [_attempt(attempt), *_between(attempt, index + 1 == len(kept))]
    heads = ["Attempt", "Start (UTC)", "End (UTC)", "Ended", "#Devices", "#Steps", "#Device-hours"]
    return section("Attempts", table(heads, rows, "cards") + more if rows else "")


def _step(item: object) -> str | None:
    step = at(item, "step")
    return None if step is None else f"{step:,}"


def checkpoints(page: Page) -> str:
    """The last checkpoints and what they blocked."""
    kept, more = last(page.items("checkpoints"), _CHECKPOINTS, "checkpoints")
    rows: list[tuple[str, list[object]]] = []
    for item in kept:
        name = two_lines(_step(item), at(item, "path"))
        size, blocked = _count(at(item, "bytes"), "B"), seconds(at(item, "blocked_s"))
        rows.append(("", [name, size, blocked, page.money(at(item, "money"))]))
    heads = ["Step and file", "#Size", "#Blocked", "#Cost"]
    return section("Checkpoints", table(heads, rows) + more if rows else "")


def verdicts(page: Page) -> str:
    """What costguard decided during the run."""
    kept, more = last(page.items("verdicts"), _VERDICTS, "verdicts")
    rows: list[tuple[str, list[object]]] = []
    for item in kept:
        name = two_lines(at(item, "kind"), at(item, "action"))
        why = two_lines(at(item, "message"), at(item, "reason"))
        rows.append(("", [name, why, _step(item), page.money(at(item, "spend"))]))
    heads = ["Verdict", "Why", "#Step", "#Spend then"]
    return section("Verdicts", table(heads, rows) + more if rows else "")


def _figures(page: Page) -> list[tuple[str, object, object]]:
    tokens, flops, mfu, plan = (at(page.receipt, key) for key in ("tokens", "flops", "mfu", "plan"))
    shown = at(mfu, "convention")
    by = {name: value for name, value in (at(mfu, "step_by_convention") or {}).items() if name != shown}
    return [
        ("Tokens trained", _count(at(tokens, "trained")), ""),
        ("Tokens planned", _count(at(plan, "planned_tokens")), ""),
        ("Padding tokens", _count(at(tokens, "padding")), ""),
        ("Tokens trained twice", _count(at(tokens, "rework")), ""),
        ("Samples", _count(at(tokens, "samples")), ""),
        ("Plan done", percent_of(at(plan, "progress_ratio")), ""),
        ("Parameters", _count(at(flops, "parameters")), ""),
        ("Work, counted (full attention)", _count(at(flops, "model", "full_attention"), "FLOP"), at(flops, "how")),
        ("Work, counted (causal attention)", _count(at(flops, "model", "causal"), "FLOP"), ""),
        ("Work, executed", _count(at(flops, "hardware"), "FLOP"), "with recomputed activations"),
        ("Work, 6ND estimate", _count(at(flops, "estimate_6nd"), "FLOP"), ""),
        ("Peak per device", _count(at(mfu, "peak_flops_per_s"), "FLOP/s"), at(mfu, "peak_source")),
        ("MFU of steps", _percent(at(mfu, "step")), NAMES.get(at(mfu, "convention"), "")),
        *[(f"MFU of steps, {NAMES[name]}", _percent(value), "") for name, value in by.items() if name in NAMES],
        ("MFU of all paid time", _percent(at(mfu, "billed")), NAMES.get(at(mfu, "convention"), "")),
        ("HFU of steps", _percent(at(mfu, "hfu")), "executed FLOPs, full attention"),
        ("Cost per hour of the run", page.money(at(page.receipt, "spend", "usd_per_hour")), ""),
        ("Price per exaFLOP", page.money(at(page.receipt, "spend", "per_exaflop")), "of model FLOPs that were kept"),
        ("Price per million tokens", page.money(at(page.receipt, "spend", "per_million_tokens")), ""),
        ("Forecast for the plan", page.money(at(plan, "forecast_total")), ""),
        ("Released, not counted", seconds(at(page.receipt, "released", "seconds")), _if_held(page)),
    ]


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{100 * ratio:.1f}%"


def _if_held(page: Page) -> str:
    held = page.money(at(page.receipt, "released", "money_if_held"))
    return f"{held} if it had been held" if held else ""


def provenance(page: Page) -> str:
    """The figures behind the page, and how each became known."""
    pairs = ""
    for name, value, source in _figures(page):
        pairs += f"<div><dt>{esc(name)}</dt><dd>{two_lines(value, source)}</dd></div>"
    kept, more = last(page.items("provenance"), _LINES, "figures")
    rows = [("", [at(p, "figure"), _how(str(at(p, "how"))), at(p, "text")]) for p in kept]
    listed = table(["Figure", "Known how", "From"], rows) + more if rows else ""
    return section("Where the figures come from", f"<dl>{pairs}</dl>{listed}")


def _how(how: str) -> str:
    known = how in ("measured", "estimated", "unknown")
    return Raw(f'<span class="tag {how}">{how}</span>') if known else how


def notes(page: Page) -> str:
    """Remarks that the receipt carries."""
    kept, more = last(page.items("notes"), _LINES, "notes")
    lines = "".join(f"<li>{cell(text)}</li>" for text in kept)
    return section("Notes", f"<ul>{lines}</ul>{more}" if kept else "")


SECTIONS = (attempts, checkpoints, checkpoint_costs, verdicts, provenance, notes)
"""The sections of this module in reading order."""
