"""What checkpoints cost, as lines of the receipt for a terminal and as sentences that every form of it shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, Final

from costguard.units import format_count, format_duration_s, format_money

_WIDTH: Final = 100
_LISTED: Final = 12
"""Checkpoints that are listed for a terminal; the page and the JSON have more."""
_HEADS: Final = ("step", "where", "size", "blocked", "requests", "hot", "cold", "reads", "a month")


def checkpoint_lines(receipt: Mapping[str, Any]) -> Iterator[str]:
    """The lines below the count of saves.

    Args:
        receipt: The whole receipt.
    """
    costs = receipt["checkpoint_costs"]
    yield from _labelled("blocked", blocked_sentence(receipt))
    if costs["transfers"] is not None:
        yield from _labelled("moves", transfers_sentence(costs["transfers"]))
    for number, sentence in enumerate(storage_sentences(costs["storage"])):
        yield from _labelled("" if number else "storage", sentence)
    yield from _table(costs["each"], receipt["spend"]["currency"])
    for number, sentence in enumerate(costs["interval"]["sentences"] if costs["interval"] else ()):
        yield from _labelled("" if number else "interval", sentence)


def _labelled(label: str, sentence: str) -> Iterator[str]:
    for number, line in enumerate(wrap(sentence, _WIDTH - 10, break_long_words=False, break_on_hyphens=False)):
        yield f"{'' if number else label:<10}{line}"


def blocked_sentence(receipt: Mapping[str, Any]) -> str:
    """What saves have held up, and that it is in the total already."""
    saves = receipt["checkpoint_costs"]["saves"]
    money = saves["money"]
    price = "unpriced" if money is None else f"{format_money(money, receipt['spend']['currency'])}, in the total above"
    half, most = format_duration_s(saves["blocked_median_s"]), format_duration_s(saves["blocked_p95_s"])
    return f"{price}; a save {half} at the median, {most} at the 95th percentile"


def transfers_sentence(transfers: Mapping[str, Any]) -> str:
    """What a batch took while checkpoints moved beside it, against the others."""
    beside, alone = transfers["batches_beside"], transfers["batches_alone"]
    return (
        f"a batch took {format_duration_s(transfers['batch_beside_s'])} on average while checkpoints moved "
        f"({beside:,} of them), {format_duration_s(transfers['batch_alone_s'])} otherwise ({alone:,}): "
        f"{transfers['ratio']:.2f} of it"
    )


def storage_sentences(storage: Mapping[str, Any] | None) -> list[str]:
    """What storage has cost, what it costs from now, and what is unknown of it; none without `CheckpointTiering`."""
    if storage is None:
        return []
    money, months = storage["money"], storage["gb_months"]
    parts = [
        f"hot {_usd(money['hot'])} ({months['hot']:.3g} GB-months)",
        f"cold {_usd(money['cold'])} ({months['cold']:.3g} GB-months)",
        f"requests {_usd(money['requests'])} ({storage['requests']:,})",
        f"reads {_usd(money['reads'])} ({storage['restores']:,} restores, {storage['checks']:,} verifications)",
        f"deleting early {_usd(money['early'])}",
    ]
    there = storage["there"]
    return [
        f"beside the total, until {storage['as_of']}: {_usd(money['total'])} = {' + '.join(parts)}",
        f"from now {_usd(storage['money_per_month'])} a month for the {there:,} that {'is' if there == 1 else 'are'} "
        f"there; deleting all cold copies now would still bill {_usd(storage['money_if_deleted_now'])}",
        *_unknown(storage),
    ]


def _unknown(storage: Mapping[str, Any]) -> Iterator[str]:
    missing = [name for name in ("hot_class", "cold_class") if storage[name] is None]
    if missing:
        options = {"hot_class": 'hot_class="ebs:gp3"', "cold_class": 'storage_class="s3:GLACIER_IR"'}
        given = ", ".join(options[name] for name in missing)
        yield f"for unknown prices name the class, such as CheckpointTiering({given}); see `costguard prices storage`"
    if storage["unseen"]:
        yield f"{storage['unseen']:,} more were deleted when nobody looked, so that their storage is in no sum"
    if storage["source"] == "journal":
        yield "their list cannot be read from here: what was moved or deleted after training is not known"


def _usd(amount: str | None) -> str:
    return format_money(amount)


def provenance_rows(costs: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """How the receipt's `checkpoint_costs` came about, each with its figure and how surely it is known."""
    storage, interval = costs["storage"], costs["interval"]
    if storage is not None:
        classes = (storage["prices"][tier] for tier in ("hot", "cold"))
        sources = "; ".join(f"{c['name']}: {c['source']}, {c['as_of'] or 'undated'}" for c in classes if c is not None)
        how = "unknown" if storage["money"]["total"] is None else "estimated"
        text = f"bytes and time times prices ({sources or 'none named'}); it is no bill, and in no total"
        yield "checkpoint storage", how, text
    if interval is not None:
        prior = interval["prior"]
        yield (
            "advised interval",
            "estimated",
            "sqrt(2 M (C + s/r)), Young 1974 with a checkpoint's own price s; M from this run's failures on a prior of "
            f"{prior['failures']:g} in {prior['device_hours']:,.0f} GPU-hours (Llama 3, arXiv 2407.21783), at the 10% "
            "and 90% quantiles of its Gamma distribution",
        )


def _table(each: list[Mapping[str, Any]], currency: str) -> Iterator[str]:
    if not each:
        return
    rows = [_HEADS, *(_row(one, currency) for one in each[-_LISTED:])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    for row in rows:
        yield " " * 10 + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
    if len(each) > _LISTED:
        yield f"{'':10}and {len(each) - _LISTED:,} earlier ones, in `costguard report --json`"


def _row(one: Mapping[str, Any], currency: str) -> tuple[str, ...]:
    return (
        f"{one['step']:,}",
        one["tier"],
        f"{format_count(float(one['bytes']))}B",
        format_money(one["blocked"], currency),
        *(_usd(one[name]) for name in ("requests", "hot", "cold", "reads", "per_month")),
    )
