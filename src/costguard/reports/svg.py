"""Inline SVG for the HTML receipt: fluid in width, fixed in text size, every text escaped.

Plots are drawn in percent of their width, so that nothing but the lines stretches; labels left and right of a
plot lie in the padding of the box around it, which the style sheet sizes.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_LONGEST = 400
_MOST_POINTS = 400
_GRID = 1000


class Raw(str):
    """Markup that is already safe; every other text is escaped where it is put into the page."""

    __slots__ = ()


def esc(value: object) -> str:
    """Make a value safe as HTML or XML text and attribute, and cut what no page should carry.

    Example:
        >>> esc('<b a="1">')
        '&lt;b a=&quot;1&quot;&gt;'
    """
    if isinstance(value, Raw):
        return value
    text = _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", str(value))
    return html.escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


def _svg(name: str, title: str, desc: str, height: int, body: str) -> Raw:
    return Raw(
        f'<svg role="img" aria-labelledby="{name}-title" aria-describedby="{name}-desc" width="100%" '
        f'height="{height}" overflow="visible"><title id="{name}-title">{esc(title)}</title>'
        f'<desc id="{name}-desc">{esc(desc)}</desc>{body}</svg>'
    )


def _rect(kind: str, start: float, end: float, *, y: int, height: int, hint: str) -> str:
    x, right = round(100 * min(start, end), 4), round(100 * max(start, end), 4)
    return (
        f'<rect class="{kind}" x="{x:.4f}%" y="{y}" width="{right - x:.4f}%" height="{height}">'
        f"<title>{esc(hint)}</title></rect>"
    )


def _text(text: str, x: str, y: int, *, dx: int = 0, anchor: str = "start", css: str = "") -> str:
    return f'<text x="{x}" y="{y}" dx="{dx}" text-anchor="{anchor}" class="{css}">{esc(text)}</text>'


Segment = tuple[str, str, float]
"""Style class, hint and share of the track."""


def share_bar(name: str, title: str, desc: str, segments: Sequence[Segment], limit: float | None) -> Raw:
    """Draw one bar of adjoining segments on a track.

    Args:
        name: Prefix of element ids.
        title: Accessible name.
        desc: Accessible description.
        segments: What the bar is made of, left to right.
        limit: Where a limit stands on the track, as a share of it; `None` for no mark.
    """
    body, at = [_rect("track", 0, 1, y=6, height=20, hint=title)], 0.0
    for kind, hint, share in segments:
        body.append(_rect(kind, at, at + share, y=6, height=20, hint=hint))
        at += share
    if limit is not None:
        body.append(f'<line class="limit" x1="{100 * limit:.4f}%" x2="{100 * limit:.4f}%" y1="0" y2="32"/>')
    return _svg(name, title, desc, 32, "".join(body))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a waterfall: a bar from `start` to `end`, both shares of the whole."""

    kind: str
    label: str
    start: float
    end: float
    value: str
    share: str


def waterfall(name: str, title: str, desc: str, rows: Sequence[Row], value_width: int) -> Raw:
    """Draw rows of bars, each beginning where the one above ended.

    Args:
        name: Prefix of element ids.
        title: Accessible name.
        desc: Accessible description.
        rows: Bars from top to bottom.
        value_width: Pixels right of the plot that the values take, aligned at their right end.
    """
    body = []
    for index, row in enumerate(rows):
        y = 28 * index
        shown = row.label if len(row.label) <= 18 else row.label[:17] + "…"
        hint = f"{row.label}: {row.value}, {row.share}"
        total = "strong" if row.kind == "total" else ""
        body += [
            _text(shown, "0", y + 18, dx=-12, anchor="end", css=f"label {total}"),
            _rect(f"bar {row.kind}", row.start, row.end, y=y + 5, height=18, hint=hint),
            _text(row.value, "100%", y + 18, dx=value_width, anchor="end", css=f"value {total}"),
            _text(row.share, "100%", y + 18, dx=value_width + 60, anchor="end", css="wide muted"),
        ]
        if index + 1 < len(rows):
            at = f"{100 * row.end:.4f}%"
            body.append(f'<line class="join" x1="{at}" x2="{at}" y1="{y + 23}" y2="{y + 33}"/>')
    return _svg(name, title, desc, 28 * len(rows), "".join(body))


def tick_step(top: float, about: int) -> float:
    """Find a round step that divides 0 to `top` into about that many parts.

    Example:
        >>> tick_step(8.7, 4)
        2.5
    """
    power = 10.0 ** math.floor(math.log10(top / about))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power * about >= top * 0.999)


def _ticks(top: float, about: int) -> list[tuple[float, str]]:
    step = tick_step(top, about)
    places = next((p for p in range(6) if math.isclose(round(step, p), step)), None)
    values = [step * i for i in range(math.floor(top / step * 1.001) + 1)]
    return [(v, f"{v:,.{places}f}" if places is not None else f"{v:.3g}") for v in values]


Point = tuple[float, float]


def _lines(points: Sequence[tuple[float, float | None]]) -> Iterator[list[Point]]:
    """Split at unknown values and where x goes back, which is where an attempt repeats steps."""
    line: list[Point] = []
    for x, y in points:
        if y is None or (line and x < line[-1][0]):
            if line:
                yield line
            line = []
        if y is not None:
            line.append((x, y))
    if line:
        yield line


def _thin(line: list[Point], most: int) -> list[Point]:
    """Keep the lowest and the highest point of each bucket, so that no dip or peak is lost."""
    if len(line) <= most:
        return line
    size = math.ceil(2 * len(line) / most)
    kept = {0, len(line) - 1}
    for start in range(0, len(line), size):
        bucket = range(start, min(start + size, len(line)))
        kept |= {min(bucket, key=lambda i: line[i][1]), max(bucket, key=lambda i: line[i][1])}
    return [line[i] for i in sorted(kept)]


def _paths(lines: Sequence[list[Point]], kind: str, fill: bool) -> str:
    def place(line: list[Point]) -> str:
        return "L".join(f"{round(x * _GRID)} {round(_GRID - y * _GRID)}" for x, y in line)

    stroke = "".join(f"M{place(line)}" + ("h0" if len(line) == 1 else "") for line in lines)
    area = "".join(
        f"M{round(ln[0][0] * _GRID)} {_GRID}L{place(ln)}L{round(ln[-1][0] * _GRID)} {_GRID}Z" for ln in lines
    )
    drawn = f'<path class="area {kind}" d="{area}"/>' if fill else ""
    return drawn + f'<path class="line {kind}" vector-effect="non-scaling-stroke" d="{stroke}"/>'


def line_chart(
    name: str,
    title: str,
    desc: str,
    points: Sequence[tuple[float, float | None]],
    *,
    x_label: str,
    y_label: str,
    x_top: float,
    fill: bool = False,
) -> Raw:
    """Draw one line over an axis from 0.

    Args:
        name: Prefix of element ids and style class of the line.
        title: Accessible name.
        desc: Accessible description.
        points: x and y in the units of the labels; y is `None` where it is unknown.
        x_label: What x is, with its unit.
        y_label: What y is, with its unit.
        x_top: Right end of the x axis, the same for charts that are read together.
        fill: Whether the area under the line is shaded.
    """
    head, plot = 26, 132
    x_top = x_top or 1.0
    highest = max((y for _, y in points if y is not None), default=0.0) or 1.0
    step = tick_step(highest, 4)
    y_top = step * math.ceil(highest / step * 0.999)
    body = [_text(y_label, "0", 12, dx=-54, css="axis strong")]
    for value, text in _ticks(y_top, 4):
        y = round(head + plot * (1 - value / y_top))
        body.append(f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        body.append(_text(text, "0", y + 4, dx=-8, anchor="end", css="axis"))
    for value, text in _ticks(x_top, 5):
        at = f"{100 * value / x_top:.3f}%"
        body.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{head + plot}" y2="{head + plot + 4}"/>')
        body.append(_text(text, at, head + plot + 18, anchor="middle", css="axis"))
    body.append(_text(x_label, "100%", head + plot + 36, anchor="end", css="axis"))
    lines = [[(x / x_top, y / y_top) for x, y in line] for line in _lines(points)]
    count = sum(len(line) for line in lines)
    thinned = [_thin(line, max(4, _MOST_POINTS * len(line) // count)) for line in lines]
    body.append(
        f'<svg x="0" y="{head}" width="100%" height="{plot}" viewBox="0 0 {_GRID} {_GRID}" '
        f'preserveAspectRatio="none" overflow="visible">{_paths(thinned, name, fill)}</svg>'
    )
    return _svg(name, title, desc, head + plot + 44, "".join(body))
