"""The sections of the HTML receipt, each a pure function from the page to its markup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from costguard.reports import breakdown
from costguard.reports.breakdown import OUTCOMES, at, label, percent_of, value_of
from costguard.reports.svg import Raw, Row, esc, line_chart, share_bar, waterfall
from costguard.units import NS_PER_HOUR, NS_PER_S, format_duration_s, format_money

_FOLD_BELOW = Fraction(5, 1000)
_SCALES = ((1e12, " (trillions)"), (1e9, " (billions)"), (1e6, " (millions)"), (1e3, " (thousands)"))
_KINDS = ("useful", "overhead", "waste")


class Page:
    """One receipt with what several sections of the page need."""

    def __init__(self, receipt: Mapping[str, Any]) -> None:
        """Split the receipt once for all sections."""
        self.receipt = receipt
        self.parts = breakdown.split(receipt)
        self.total: str | None = at(receipt, "spend", "total")
        self.priced = self.total is not None
        self.currency = str(at(receipt, "spend", "currency") or "USD")
        self.whole = self._sum(_KINDS) or Fraction(1)
        sizes = {part.key: value_of(part, self.priced) for part in self.parts}
        self.amounts = breakdown.column(sizes, self.currency if self.priced else None, " h")
        self.percents = breakdown.percent_column(sizes)

    def _sum(self, kinds: Sequence[str]) -> Fraction:
        return sum((value_of(part, self.priced) for part in self.parts if part.kind in kinds), Fraction(0))

    def share(self, kind: str) -> Fraction:
        """Share of the whole that is of one kind."""
        return self._sum((kind,)) / self.whole

    def items(self, *path: str) -> Sequence[Any]:
        """A list in the receipt, empty if it is missing."""
        return at(self.receipt, *path) or ()

    def money(self, amount: Fraction | str | None) -> str | None:
        """Show money in the receipt's currency; `None` stays `None`."""
        return None if amount is None else format_money(amount, self.currency)

    def cents(self, amount: str | None) -> str | None:
        """Show money in a sentence: two decimals from a tenth of a unit up."""
        if amount is None or not Fraction(1, 10) <= Fraction(amount) < 1:
            return self.money(amount)
        return format_money("1", self.currency).replace("1.00", f"{float(amount):.2f}")

    def target(self) -> tuple[Fraction, str] | None:
        """What the spend is held against, with its name: the budget, else the forecast."""
        limit, forecast = at(self.receipt, "budget", "limit"), at(self.receipt, "plan", "forecast_total")
        if not self.priced or not Fraction(limit or forecast or 0):
            return None
        scope = at(self.receipt, "budget", "scope") or "run"
        return (Fraction(limit), f"budget of the {scope}") if limit else (Fraction(forecast), "forecast")


def hours(ns: float) -> str:
    """Show device time in hours."""
    value = ns / NS_PER_HOUR
    return f"{value:,.2f}" if value >= 1 else f"{value:.3g}"


def section(title: str, body: str) -> str:
    """Wrap a section; nothing if there is nothing to show."""
    return f"<section><h2>{esc(title)}</h2>{body}</section>" if body else ""


def cell(value: object) -> str:
    """Escape a value; an unknown one says so."""
    return '<span class="unknown">unknown</span>' if value is None or value == "unknown" else esc(value)


def note(text: str) -> str:
    """Set a small remark."""
    return f'<p class="note">{esc(text)}</p>' if text else ""


def two_lines(first: object, second: object) -> Raw:
    """Put a small line under a value."""
    return Raw(f"<span>{cell(first)}<small>{esc(second)}</small></span>" if second else cell(first))


def seconds(amount: float | None) -> str | None:
    """Show a duration; `None` stays `None`."""
    return None if amount is None else format_duration_s(amount)


def table(heads: Sequence[str], rows: Iterable[tuple[str, Sequence[object]]], css: str = "") -> str:
    """Build a table; a head that begins with # is a column of numbers, a row of one cell spans them all."""
    names, kinds = [h.lstrip("#") for h in heads], ["n" if h.startswith("#") else "" for h in heads]
    head = "".join(f'<th scope="col" class="{k}">{esc(n)}</th>' for n, k in zip(names, kinds, strict=True))
    body = []
    for row_css, cells in rows:
        if len(cells) == 1:
            inner = f'<td colspan="{len(heads)}">{cell(cells[0])}</td>'
        else:
            columns = zip(names, kinds, cells, strict=True)
            inner = "".join(f'<td class="{k}" data-label="{esc(n)}">{cell(c)}</td>' for n, k, c in columns)
        body.append(f'<tr class="{row_css}">{inner}</tr>')
    return f'<table class="{css}"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def last(items: Sequence[Any], most: int, what: str) -> tuple[Sequence[Any], str]:
    """Keep the last items of a long list, with a note that says how many are hidden."""
    hidden = len(items) - most
    return items[-most:], note(f"{hidden:,} earlier {what} not shown." if hidden > 0 else "")


def _held_against(page: Page, amount: Fraction, name: str) -> tuple[str, str]:
    """Give the line above the budget bar and the text below it."""
    spent = f"<span><b>{esc(page.money(page.total))}</b> spent</span>"
    limit = f"<span><b>{esc(page.money(amount))}</b> {esc(name)}</span>"
    below = f"{percent_of(page.whole / amount)} of the {name}"
    forecast = at(page.receipt, "plan", "forecast_total")
    if forecast and name != "forecast":
        below += f"; forecast for the whole plan {page.money(forecast)}"
    return f'<div class="ends">{spent}{limit}</div>', f"{below}."


def budget_bar(page: Page) -> str:
    """Spend against the budget or the forecast, else the shares of useful, overhead and waste."""
    target, title, above, below, mark = page.target(), "Useful, overhead and waste", "", "", None
    scale = max(page.whole, target[0]) if target else page.whole
    if target:
        title = f"Spent against the {target[1].split()[0]}"
        above, below = _held_against(page, *target)
        mark = float(target[0] / scale)
    segments, keys = [], []
    for kind in _KINDS:
        if page.share(kind) > 0:
            text = page.percents.text(*(part.key for part in page.parts if part.kind == kind))
            segments.append((kind, f"{kind} {text}", float(page.share(kind) * page.whole / scale)))
            keys.append(f'<span><i class="{kind}"></i>{kind} {esc(text)}</span>')
    desc = ", ".join(hint for _, hint, _ in segments) + f". {below}"
    bar = share_bar("bar", title, desc, segments, mark)
    return section(title, f'{above}{bar}<div class="legend">{"".join(keys)}</div>{note(below)}')


def falls(page: Page) -> str:
    """The waterfall from useful compute through every other use of the devices to the total."""
    sizes = {part.key: value_of(part, page.priced) for part in page.parts}
    kinds = {part.key: part.kind for part in page.parts}
    limit = _FOLD_BELOW * page.whole
    folded = [key for key, size in sizes.items() if key != "kept" and abs(size) < limit]
    groups = [(kinds[key], label(key), [key]) for key in sizes if key not in folded]
    if any(sizes[key] for key in folded):
        other = {kinds[key] for key in folded}
        groups.append((other.pop() if len(other) == 1 else "overhead", "other", folded))
    rows, begin = [], Fraction(0)
    for kind, name, keys in groups:
        end = begin + sum(sizes[key] for key in keys) / page.whole
        texts = page.amounts.text(*keys), page.percents.text(*keys)
        rows.append(Row(kind, name, float(begin), float(end), *texts))
        begin = end
    rows.append(Row("total", "total", 0.0, float(begin), page.amounts.text(), page.percents.text()))
    unit = "money" if page.priced else "device time"
    desc = "; ".join(f"{row.label} {row.value}" for row in rows)
    width = 16 + 8 * max(len(row.value) for row in rows)
    svg = waterfall("falls", f"From useful compute to the total, in {unit}", desc, rows, width)
    drawn = f'<div class="falls" style="--value:{width}px">{svg}</div>'
    names = ", ".join(label(key) for key in folded if sizes[key])
    below = f"Other: {names}; each below 0.5%." if names else ""
    return section(f"Where the {unit} went", drawn + note(below))


def wastes(page: Page) -> str:
    """The three largest wastes, each with its price and its sentence."""
    cards = []
    for item in sorted(page.items("wastes"), key=lambda item: -(at(item, "device_ns") or 0))[:3]:
        price = page.money(at(item, "money")) or seconds((at(item, "device_ns") or 0) / NS_PER_S)
        share, name = percent_of(at(item, "share_ratio")), label(str(at(item, "cause")))
        detail = esc(f"{name}, {share} of device time" if share else name)
        sentence = f"<p>{esc(at(item, 'sentence') or '')}</p>"
        cards.append(f'<div><b>{esc(price)}</b><span class="muted">{detail}</span>{sentence}</div>')
    return section("Largest wastes", f'<div class="wastes">{"".join(cards)}</div>' if cards else "")


def _number(value: Any, times: float = 1) -> float | None:
    return None if value is None or not math.isfinite(float(value)) else times * float(value)


def charts(page: Page) -> str:
    """Spend and MFU over the same axis."""
    series = page.items("series")
    by_tokens = any(at(point, "tokens") is not None for point in series)
    spans = [(at(point, "elapsed_device_ns") or 0) / NS_PER_HOUR for point in series]
    xs = [at(point, "tokens") for point in series] if by_tokens else spans
    x_top = max((x for x in xs if x is not None), default=0)
    unit, name = next((s for s in _SCALES if by_tokens and x_top >= s[0]), (1.0, ""))
    x_label = f"Tokens trained{name}" if by_tokens else "Device-hours"

    def chart(name: str, title: str, y_label: str, ys: Sequence[float | None], fill: bool) -> str:
        points = [(x / unit, y) for x, y in zip(xs, ys, strict=True) if x is not None]
        known = [y for _, y in points if y is not None]
        if not known:
            return note(f"{title}: unknown at every point.")
        desc = f"{y_label} over {x_label.lower()}: lowest {min(known):.4g}, highest {max(known):.4g}."
        axes = {"x_label": x_label, "y_label": y_label}
        drawn = line_chart(name, title, desc, points, **axes, x_top=x_top / unit, fill=fill)
        return f'<div class="plot">{drawn}</div>'

    spend = [_number(at(point, "spend")) for point in series]
    mfu = [_number(at(point, "mfu_step"), 100) for point in series]
    first = chart("spend", "Spend", f"Spend ({page.currency})", spend, True)
    if by_tokens and not page.priced:
        first = chart("spend", "Device-hours", "Device-hours", spans, True)
    second = chart("mfu", "MFU per step", "MFU per step (%)", mfu, False)
    return section("Over the run", first + second if series else "")


def uses(page: Page) -> str:
    """Every activity and outcome with its device-hours, money and share."""
    time, cash = breakdown.hours_column(page.parts), breakdown.money_column(page.parts, page.currency)
    estimated = at(page.receipt, "time", "estimated_ns") or {}

    def row(css: str, name: str, *keys: str) -> tuple[str, list[object]]:
        guess = sum(estimated.get(key) or 0 for key in keys)
        first = two_lines(name, f"of it {seconds(guess / NS_PER_S)} estimated" if guess else "")
        own = time.text(*keys) if not keys or any(key in time.exact for key in keys) else "-"
        return css, [first, own, cash.text(*keys), page.percents.text(*keys)]

    train = [part.key for part in page.parts if part.key in (*OUTCOMES, "train")]
    rows = [row("sum", "train", *train)] if train else []
    rows += [row("sub", "kept" if key == "kept" else label(key), key) for key in train]
    rows += [row("", label(part.key), part.key) for part in page.parts if part.key not in train]
    rows.append(row("sum", "total"))
    heads = ["Activity", "#Device-hours", "#Money", f"#Share of {'money' if page.priced else 'device time'}"]
    return section("Activities and outcomes", table(heads, rows))


SECTIONS = (budget_bar, falls, wastes, charts, uses)
"""The sections of this module in reading order."""
