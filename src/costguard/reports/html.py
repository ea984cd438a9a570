"""The receipt as one self-contained HTML page: no script, no request, light, dark and print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costguard.reports import sections, tables
from costguard.reports.breakdown import at, percent_of
from costguard.reports.names import NAMES
from costguard.reports.sections import Page, cell, hours
from costguard.reports.svg import esc

_ADD_PRICE = 'CostMonitor(usd_per_gpu_hour="2.49")'
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_CSS = """
:root{color-scheme:light dark;--paper:#fbfaf7;--card:#f3f1eb;--ink:#1c1f23;--muted:#5b6068;--rule:#e0dcd2;
--useful:#2c7a69;--overhead:#7b8694;--waste:#c2571f;--spend:#2b5c9e}
@media screen and (prefers-color-scheme:dark){:root{--paper:#15171a;--card:#1d2024;--ink:#e9e7e2;
--muted:#a3a8af;--rule:#30343a;--useful:#58b89f;--overhead:#87919e;--waste:#e8884f;--spend:#7fb0ee}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere;-webkit-print-color-adjust:exact;print-color-adjust:exact}
main{max-width:860px;margin:0 auto;padding:48px 32px 56px}
h1{font:500 34px/1.3 "Iowan Old Style","Palatino Linotype",Palatino,Charter,Georgia,"Liberation Serif",serif;
margin:14px 0 18px;text-wrap:pretty;font-variant-numeric:lining-nums}
h2{font-size:15px;font-weight:650;margin:0 0 14px}
section{border-top:1px solid var(--rule);padding:26px 0 0;margin:30px 0 0}
p{margin:0 0 10px;max-width:68ch}
.muted,.unknown,.note{color:var(--muted)}
.note{font-size:13px;margin:10px 0 0}
.top{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;color:var(--muted)}
.top b{color:var(--ink)}
code{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;
background:var(--card);padding:3px 7px;border-radius:4px}
.ends{display:flex;justify-content:space-between;gap:16px;margin-bottom:6px}
.ends span:last-child{text-align:right}
.legend{display:flex;flex-wrap:wrap;gap:4px 22px;font-size:13px;margin-top:10px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:7px}
svg{display:block}
svg text{font-size:13px;fill:var(--ink)}
svg .muted,svg .axis{fill:var(--muted)}
svg .axis{font-size:12px}
svg .strong{font-weight:650;fill:var(--ink)}
.useful{fill:var(--useful);background:var(--useful)}
.overhead{fill:var(--overhead);background:var(--overhead)}
.waste{fill:var(--waste);background:var(--waste)}
.total{fill:var(--ink)}
.track{fill:var(--rule)}
.grid{stroke:var(--rule)}
.join{stroke:var(--muted);stroke-dasharray:2 2}
.limit{stroke:var(--ink);stroke-width:2}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.line.spend{stroke:var(--spend)}
.line.mfu{stroke:var(--useful);stroke-width:1.5}
.area{fill:var(--spend);opacity:.13}
.falls{padding:0 calc(var(--value) + 62px) 0 132px}
.plot{padding:0 22px 0 56px;margin-bottom:18px}
.wastes{display:grid;grid-template-columns:repeat(3,1fr);gap:14px}
.wastes div{background:var(--card);border-radius:8px;padding:16px 18px;border-top:3px solid var(--waste)}
.wastes b{display:block;font-size:24px;font-weight:600;line-height:1.25}
.wastes .muted{font-size:13px}
.wastes p{margin:8px 0 0;font-size:14px}
table{width:100%;border-collapse:collapse;font-size:14px;line-height:1.4}
th{font-weight:500;font-size:13px;color:var(--muted);text-align:left;vertical-align:bottom}
th,td{padding:7px 0 7px 16px;border-bottom:1px solid var(--rule)}
th:first-child,td:first-child{padding-left:0}
th,.n{overflow-wrap:normal}
td{vertical-align:top}
td:first-child{min-width:5em}
tr:last-child td{border-bottom:0}
td small{display:block;color:var(--muted)}
.n{text-align:right}
td.n{white-space:nowrap}
.sum td{font-weight:650}
.sub td:first-child{padding-left:18px}
tr.sum:last-child td{border-top:1px solid var(--ink)}
.cards td{overflow-wrap:break-word}
.cards small{max-width:15em;margin-left:auto}
.cards td:not(.n) small{margin-left:0}
.between td{color:var(--muted);font-size:13px}
dl{display:grid;grid-template-columns:1fr 1fr;gap:0 32px;margin:0 0 22px;font-size:14px}
dl div{display:flex;justify-content:space-between;gap:12px;border-bottom:1px solid var(--rule);padding:6px 0}
dt{color:var(--muted)}
dd{margin:0;text-align:right}
dd small{display:block;color:var(--muted)}
header p{margin:8px 0 0}
ul{padding-left:18px;margin:0}
.tag{font-size:12px;border:1px solid var(--muted);border-radius:99px;padding:1px 8px;color:var(--muted);
white-space:nowrap}
.tag.estimated{border-style:dashed}
.tag.unknown{border-style:dotted}
@media(max-width:640px){
main{padding:26px 16px 40px}
h1{font-size:25px}
.wide{display:none}
.legend{gap:4px 14px}
.falls{padding:0 var(--value) 0 116px}
svg text{font-size:12px}
svg .axis{font-size:11px}
.wastes,dl{grid-template-columns:1fr}
th,td{padding-left:10px}
.cards thead{display:none}
.cards tr{display:block;border-bottom:1px solid var(--rule);padding:8px 0}
.cards tr:last-child{border:0}
.cards td{display:flex;justify-content:space-between;gap:16px;border:0;padding:2px 0;text-align:right}
.cards td::before{flex:none;content:attr(data-label);color:var(--muted);text-align:left}
.cards td:not(.n) small{margin-left:auto}
.cards .between td{display:block;text-align:left}
}
@media print{
:root{--paper:#fff}
main{max-width:none;padding:0}
h1{font-size:26px}
tr,svg,.wastes div{break-inside:avoid}
h2{break-after:avoid}
}
"""


def _planned(page: Page) -> str:
    """Say what the spend is held against, unless the run is over and the forecast says nothing new."""
    target, scope = page.target(), at(page.receipt, "budget", "scope") or "run"
    amount = page.money(target[0]) if target else None
    if not target or not amount:
        return ""
    if target[1] != "forecast":
        return f" of a planned {amount}" if scope == "run" else f" of a {scope} budget of {amount}"
    return f" of a forecast {amount}" if amount != page.money(page.total) and _progress(page) < 1 else ""


def _progress(page: Page) -> float:
    return float(at(page.receipt, "plan", "progress_ratio") or 0)


def _headline(page: Page) -> str:
    state, cost = at(page.receipt, "run", "state"), page.money(page.total)
    start = "So far this run has" if state == "running" else "This run"
    used = f"{hours(at(page.receipt, 'time', 'elapsed_device_ns') or 0)} device-hours"
    amount = f"cost <b>{esc(cost)}</b>{esc(_planned(page))}" if cost else f"used <b>{used}</b>, unpriced"
    rate, mfu = page.cents(at(page.receipt, "spend", "per_million_tokens")), at(page.receipt, "mfu", "step")
    figures = [f"{rate} per million tokens"] if rate else []
    name = NAMES.get(at(page.receipt, "mfu", "convention"), "6ND")
    figures += [f"MFU {100 * mfu:.1f}% ({name})"] if mfu is not None else []
    waste = page.share("waste")
    clauses = [", ".join(figures)] if figures else []
    clauses.append(f"{percent_of(waste) if waste > 0 else 'none'} of it was waste")
    end = " before it died" if state == "died" else ""
    return f"<h1>{start} {amount}{end}: {esc('; '.join(clauses))}.</h1>"


def _unpriced(page: Page) -> str:
    """Say what has no price, and the line that gives it one."""
    items = page.items("spend", "unpriced")
    remedies = {str(at(item, "remedy")) for item in items if page.priced} or {_ADD_PRICE}
    if page.priced and not items:
        return ""
    named = ", ".join(_quantity(item) for item in items)
    lines = [f'<p class="note">{esc(f"Not priced and in no total: {named}.")}</p>'] if named else []
    lines += [f"<p>To price it, add <code>{esc(remedy)}</code></p>" for remedy in sorted(remedies)[:5]]
    return "".join(lines)


def _quantity(item: Mapping[str, Any]) -> str:
    unit, amount = at(item, "unit") or "device_ns", at(item, "quantity")
    amount = at(item, "device_ns") if amount is None else amount
    if amount is None:
        return str(at(item, "what"))
    return f"{at(item, 'what')} ({f'{hours(amount)} hours' if unit == 'device_ns' else f'{amount:,}'})"


def _top(page: Page) -> str:
    run = at(page.receipt, "run") or {}
    tags, more = list((run.get("tags") or {}).items()), ""
    if len(tags) > 12:
        tags, more = tags[:12], f"<span>and {len(tags) - 12} more tags</span>"
    shown = "".join(f"<span>{esc(key)}: {esc(value)}</span>" for key, value in tags)
    return (
        f'<div class="top"><b>Cost receipt</b><span>{cell(run.get("id"))}</span>'
        f"<span>{cell(run.get('state'))}</span>{shown}{more}</div>"
    )


def render_html(receipt: Mapping[str, Any]) -> str:
    """Render a receipt as a page that needs nothing but itself.

    Args:
        receipt: The receipt as it is written to JSON.

    Returns:
        The whole HTML document.
    """
    page = Page(receipt)
    title = esc(f"Cost receipt {at(receipt, 'run', 'id') or ''}")
    body = "".join(build(page) for build in (*sections.SECTIONS, *tables.SECTIONS))
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_CSS}</style></head><body><main><header>{_top(page)}"
        f"{_headline(page)}{_unpriced(page)}</header>{body}</main></body></html>\n"
    )
