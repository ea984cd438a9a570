"""The section of the HTML receipt that says what checkpoints cost and how often saving would be best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costguard.reports.breakdown import at
from costguard.reports.checkpoint_text import blocked_sentence, storage_sentences, transfers_sentence
from costguard.reports.sections import Page, last, seconds, section, table, two_lines
from costguard.reports.svg import esc
from costguard.units import format_count, format_money

_LISTED = 20
_HEADS = ("Step and file", "#Where", "#Blocked", "#Requests, reads", "#Hot, cold", "#A month")


def checkpoint_costs(page: Page) -> str:
    """Each checkpoint's costs, their sums, and the interval between saves beside the advised one."""
    costs = at(page.receipt, "checkpoint_costs")
    if not at(costs, "saves", "count"):
        return ""
    kept, more = last(page.items("checkpoint_costs", "each"), _LISTED, "checkpoints")
    rows = [("", _cells(page, one)) for one in kept]
    listed = table(_HEADS, rows, "cards") + more if rows else ""
    sentences = [f"Saves held devices up for {blocked_sentence(page.receipt)}."]
    moved = at(costs, "transfers")
    sentences += [] if moved is None else [f"Moves: {transfers_sentence(moved)}."]
    sentences += [f"Storage {sentence}." for sentence in storage_sentences(at(costs, "storage"))[:1]]
    sentences += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in storage_sentences(at(costs, "storage"))[1:]]
    said = "".join(f"<p>{esc(sentence)}</p>" for sentence in sentences)
    return section("What checkpoints cost", said + listed) + _interval(at(costs, "interval"))


def _cells(page: Page, one: Mapping[str, Any]) -> list[object]:
    restored = f" ({one['restores']:,} restores)" if one["restores"] else ""
    return [
        two_lines(f"{one['step']:,}", one["path"]),
        two_lines(one["tier"], f"{format_count(float(one['bytes']))}B"),
        two_lines(page.money(one["blocked"]), seconds(one["blocked_s"])),
        two_lines(_usd(one["requests"]), f"reads {format_money(one['reads'])}{restored}"),
        two_lines(_usd(one["hot"]), f"cold {format_money(one['cold'])}"),
        _usd(one["per_month"]),
    ]


def _usd(amount: str | None) -> str | None:
    """Storage is priced in US dollars, whatever the currency of the devices is."""
    return None if amount is None else format_money(amount)


def _interval(interval: Mapping[str, Any] | None) -> str:
    if interval is None:
        return ""
    first, *others = interval["sentences"]
    body = "".join(f"<p>{esc(sentence)}</p>" for sentence in (f"Saved {first}", *others))
    return section("How often to save", body)
