"""The HTML receipt: self-contained, escaped, small, well-formed, and its parts add up."""

from __future__ import annotations

import copy
import re
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from costguard.reports.html import render_html

NASTY = "<script>alert(\"x\")</script> & 'quoted' </title></style> \x00\ud800"
HOUR = 3600 * 10**9
VOID = {"meta", "link", "br", "hr", "img", "input"}


def _price(amounts: dict[str, int], rate: str) -> dict[str, str]:
    return {key: f"{Decimal(ns) * Decimal(rate) / HOUR:.12f}" for key, ns in amounts.items()}


def _receipt(rate: str | None = "2.49") -> dict[str, Any]:
    shares = {"startup": 31, "data_wait": 83, "train": 740, "validation": 57, "checkpoint": 29}
    shares |= {"logging": 3, "metering": 1, "idle": 0, "gap": 47, "teardown": 9}
    activities = {key: share * 59_571_428_571 for key, share in shares.items()}
    outcomes = {"rework": 3_000_000_000_001, "skipped": 7, "stalled": 0}
    outcomes["kept"] = activities["train"] - sum(outcomes.values())
    elapsed = sum(activities.values())
    spend: dict[str, Any] = {"currency": "USD", "total": None, "unpriced": [], "by_activity": {}}
    if rate is None:
        spend["unpriced"] = [{"what": "device time", "device_ns": elapsed, "remedy": "pass a price"}]
    else:
        total = _price({"device": elapsed}, rate)["device"]
        spend |= {"total": total, "device_total": total, "by_meter": {"device": total}}
        spend |= {"by_activity": _price(activities, rate), "by_outcome": _price(outcomes, rate)}
        spend |= {"usd_per_hour": rate, "per_million_tokens": "0.8306"}
    attempt = {"attempt": 1, "started_at": "2026-11-30T10:15:00.25Z", "ended_at": None, "ended": "died"}
    attempt |= {"reason": "killed", "ranks": 1, "paid_devices": 1, "idle_devices": 0, "first_step": 0}
    attempt |= {"last_step": 130, "rework_steps": 30, "elapsed_device_ns": elapsed // 2}
    attempt |= {"gap_after_ns": 4_000_000_000, "released_after_s": 7200.0}
    series = [
        {"tokens": n * 10**6, "elapsed_device_ns": n * HOUR, "spend": rate and str(2 * n), "mfu_step": 0.38}
        for n in range(1, 6)
    ]
    return {
        "schema_version": 1,
        "run": {
            "id": "20261130-101500-a1b2c3",
            "tags": {"project": "demo"},
            "state": "closed",
            "attempts": [attempt, attempt | {"attempt": 2, "gap_after_ns": None, "released_after_s": 0.0}],
        },
        "time": {
            "elapsed_device_ns": elapsed,
            "activities_ns": activities,
            "outcomes_ns": outcomes,
            "estimated_ns": {"teardown": 10**9},
        },
        "tokens": {"trained": 5_000_000, "padding": 0, "rework": 0, "samples": None},
        "flops": {"model": None, "estimate_6nd": 10**15, "convention": "6nd", "parameters": 4_200_000},
        "mfu": {"step": 0.381, "billed": 0.29, "peak_flops_per_s": 181e9, "peak_source": "measured"},
        "spend": spend,
        "plan": {"planned_tokens": 5_000_000, "progress_ratio": 1.0, "forecast_total": rate and "43"},
        "budget": {"limit": "60", "scope": "run"} if rate else None,
        "released": {"seconds": 7200.0, "money_if_held": None},
        "wastes": [
            {
                "cause": cause,
                "device_ns": ns,
                "money": rate and "1.5",
                "share_ratio": 0.05,
                "sentence": f"Lost: {cause}.",
            }
            for cause, ns in (("gap", 3), ("rework", 9), ("idle", 1), ("data_wait", 5))
        ],
        "checkpoints": [
            {"path": f"{n}.ckpt", "step": n, "attempt": 1, "bytes": None, "blocked_s": 0.3, "money": None}
            for n in range(25)
        ],
        "verdicts": [],
        "series": series,
        "provenance": [{"figure": "MFU", "how": "estimated", "text": "6ND over the time of steps."}],
        "notes": ["A note."],
    }


def _unknowns() -> dict[str, Any]:
    receipt = _receipt(None)
    receipt["tokens"] = dict.fromkeys(receipt["tokens"])
    receipt["mfu"] = dict.fromkeys(receipt["mfu"])
    receipt["plan"] = dict.fromkeys(receipt["plan"])
    for point in receipt["series"]:
        point["tokens"] = point["mfu_step"] = None
    return receipt


def _huge() -> dict[str, Any]:
    receipt = _receipt()
    run = receipt["run"]
    run["id"], run["tags"] = NASTY, {NASTY + str(n): NASTY for n in range(50)}
    run["attempts"] = [run["attempts"][0] | {"attempt": n, "reason": NASTY * 30} for n in range(400)]
    series = receipt["series"][0]
    receipt["series"] = [series | {"tokens": n * 10**6, "mfu_step": n % 7 / 10 or None} for n in range(2000)]
    receipt["checkpoints"] = [receipt["checkpoints"][0] | {"path": NASTY * 30, "step": n} for n in range(500)]
    verdict = dict.fromkeys(("kind", "action", "reason", "message"), NASTY * 30)
    receipt["verdicts"] = [verdict | {"step": 1, "spend": "1.0"}] * 300
    receipt["provenance"] = [{"figure": NASTY, "how": NASTY, "text": NASTY * 30}] * 300
    receipt["notes"] = [NASTY * 30] * 300
    receipt["wastes"][1]["sentence"] = NASTY
    return receipt


ALL = {"priced": _receipt, "unpriced": _unknowns, "huge": _huge, "empty": dict}


@pytest.fixture(params=ALL, scope="module")
def html(request: pytest.FixtureRequest) -> str:
    return render_html(ALL[request.param]())


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.urls: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.urls += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag


def _svgs(html: str) -> list[ElementTree.Element]:
    found = re.findall(r'<svg role="img".*?</svg>(?=</div>|<div)', html)
    return [ElementTree.fromstring(text) for text in found]


def _falls(html: str) -> ElementTree.Element:
    return next(svg for svg in _svgs(html) if "falls" in svg.attrib["aria-labelledby"])


def _text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.partition("</style>")[2]))


def test_page_is_self_contained(html: str) -> None:
    """The page asks for nothing: no script, no link, no URL in its style."""
    page = _Balance()
    page.feed(html)
    style = html[html.index("<style>") : html.index("</style>")]
    assert not page.urls
    assert not page.tags & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert "url(" not in style
    assert "@import" not in style
    assert "<script" not in html.lower()
    assert not re.search(r"https?://", html)


def test_page_is_well_formed(html: str) -> None:
    """Every tag is closed in order."""
    page = _Balance()
    page.feed(html)
    page.close()
    assert not page.open


def test_svgs_are_xml_with_title_and_description(html: str) -> None:
    """Every drawing parses as XML and says in words what it shows."""
    svgs = _svgs(html)
    assert len(svgs) == html.count('<svg role="img"') >= 2
    for svg in svgs:
        assert svg.findtext("title")
        assert svg.find("desc") is not None


def test_page_is_small(html: str) -> None:
    """Even a long run's page stays below 300 KB and can be written as UTF-8."""
    assert len(html.encode("utf-8")) < 300_000


def test_texts_of_the_receipt_are_escaped() -> None:
    """Markup in a tag, a path, a note or a sentence is shown, not obeyed."""
    html = render_html(_huge())
    assert "alert(&quot;x&quot;)" in html
    assert 'alert("x")' not in html
    assert html.count("</style>") == html.count("</title></head>") + html.count("</style></head>") == 1
    assert "\x00" not in html


@pytest.mark.parametrize("name", ["priced", "unpriced", "huge"])
def test_waterfall_bars_add_up_to_the_total(name: str) -> None:
    """Each bar begins where the one before ended, and the last ends where the total does."""
    bars = [
        (float(rect.attrib["x"].rstrip("%")), float(rect.attrib["width"].rstrip("%")))
        for rect in _falls(render_html(ALL[name]())).iter("rect")
    ]
    at = 0.0
    for x, width in bars[:-1]:
        assert x == pytest.approx(at, abs=1e-3)
        at = x + width
    assert bars[-1][0] == 0
    assert bars[-1][1] == pytest.approx(at, abs=1e-3)
    assert at == pytest.approx(100, abs=1e-3)


@pytest.mark.parametrize("name", ["priced", "unpriced"])
def test_waterfall_amounts_add_up_to_the_total(name: str) -> None:
    """What is printed beside the bars adds up to the total that is printed, to the last digit."""
    texts = [t for t in _falls(render_html(ALL[name]())).iter("text") if "value" in t.attrib["class"]]
    amounts = [Decimal(re.sub(r"[^0-9.]", "", text.text or "")) for text in texts]
    assert len(amounts) > 3
    assert sum(amounts[:-1]) == amounts[-1]


def test_small_parts_are_folded_into_other() -> None:
    """Parts below half a percent share one bar, and the page says which."""
    text = _text(render_html(_receipt()))
    assert "Other: logging, metering, skipped; each below 0.5%." in text


def test_a_part_without_explanation_is_still_in_the_waterfall() -> None:
    """Money that no activity explains gets its own bar."""
    receipt = _receipt()
    receipt["spend"]["total"] = str(Decimal(receipt["spend"]["total"]) + 10)
    assert "not broken down" in _text(render_html(receipt))


def test_other_meters_are_parts_of_the_total() -> None:
    """A meter beside the devices has its own bar and row."""
    receipt = _receipt()
    receipt["spend"]["total"] = str(Decimal(receipt["spend"]["total"]) + 10)
    receipt["spend"]["by_meter"]["storage"] = "10"
    text = _text(render_html(receipt))
    assert "storage: $10.00" in text
    assert "not broken down" not in text


def test_headline_is_one_sentence() -> None:
    """The headline says cost, plan, rate, MFU and waste."""
    heading = re.search(r"<h1>(.*?)</h1>", render_html(_receipt()))
    assert heading
    assert re.sub("<[^>]+>", "", heading[1]) == (
        "This run cost $41.20 of a planned $60.00: $0.83 per million tokens, MFU 38.1% (6ND); 25% of it was waste."
    )


def test_unpriced_run_says_how_to_price_it() -> None:
    """Without a price the page counts device-hours and shows the line to add."""
    text = _text(render_html(_receipt(None)))
    assert "This run used 16.55 device-hours , unpriced" in text
    assert "CostMonitor(usd_per_gpu_hour=&quot;2.49&quot;)" in text
    assert "$" not in text


def test_unknown_is_shown_as_unknown() -> None:
    """What the receipt does not know is called unknown and never zero."""
    text = _text(render_html(_unknowns()))
    for name in ("Tokens trained", "Samples", "MFU of steps", "Price per million tokens", "Peak per device"):
        assert f"{name} unknown" in text
    assert "MFU per step: unknown at every point." in text
    assert "MFU 0" not in text
    assert "None" not in text


def test_waste_is_what_the_metric_calls_waste() -> None:
    """Device time that was neither kept nor validation is waste, as in costguard/waste_ratio."""
    receipt = _receipt(None)
    time = receipt["time"]
    useful = time["outcomes_ns"]["kept"] + time["activities_ns"]["validation"]
    waste = 100 * (1 - useful / time["elapsed_device_ns"])
    assert f"waste {waste:.1f}%" in _text(render_html(receipt))


def test_quantities_without_a_price_are_named() -> None:
    """What is in no total is named with its amount and its remedy."""
    receipt = _receipt()
    item = {"what": "tokens <b>", "unit": "token", "quantity": 12_000, "remedy": 'CostMonitor(prices="x")'}
    receipt["spend"]["unpriced"] = [item]
    html = render_html(receipt)
    assert "Not priced and in no total: tokens &lt;b&gt; (12,000)." in html
    assert "<code>CostMonitor(prices=&quot;x&quot;)</code>" in html


def test_three_largest_wastes_are_shown() -> None:
    """Only the three largest wastes get a card, largest first."""
    text = _text(render_html(_receipt()))
    assert re.findall(r"Lost: (\w+)\.", text) == ["rework", "data_wait", "gap"]


def test_only_the_last_checkpoints_are_listed() -> None:
    """Twenty checkpoints are listed and the others counted."""
    html = render_html(_receipt())
    assert "5 earlier checkpoints not shown." in html
    assert "4.ckpt<" not in html.replace("14.ckpt", "").replace("24.ckpt", "")
    assert "24.ckpt" in html


def test_released_time_is_shown_as_not_counted() -> None:
    """Time in which devices were given back stands between the attempts, as not counted."""
    assert "Devices released for 2 h 0 min, not counted." in render_html(_receipt())


def test_budget_overrun_stays_inside_the_bar() -> None:
    """A run above its budget fills the bar and the mark of the budget moves left."""
    receipt = _receipt()
    receipt["budget"]["limit"] = "20.60"
    html = render_html(receipt)
    bar = next(svg for svg in _svgs(html) if "bar-title" in svg.attrib["aria-labelledby"])
    mark = bar.find("line")
    assert mark is not None
    assert float(mark.attrib["x1"].rstrip("%")) == pytest.approx(50, abs=0.01)
    assert "200% of the budget of the run" in html


def test_rendering_is_pure() -> None:
    """Rendering changes nothing in the receipt and gives the same page again."""
    receipt = _receipt()
    before = copy.deepcopy(receipt)
    assert render_html(receipt) == render_html(receipt)
    assert receipt == before


def _luminance(colour: str) -> float:
    def linear(part: str) -> float:
        value = int(part, 16) / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    return 0.2126 * linear(colour[1:3]) + 0.7152 * linear(colour[3:5]) + 0.0722 * linear(colour[5:7])


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_readable_contrast(scheme: int) -> None:
    """Text has a contrast of at least 4.5 and drawings of at least 3, in light and in dark."""
    block = re.findall(r":root\{([^}]*--ink[^}]*)\}", render_html(_receipt()))[scheme]
    colours = dict(re.findall(r"--(\w+):(#[0-9a-f]{6})", block))
    for name, least in {"ink": 4.5, "muted": 4.5, "useful": 3, "overhead": 3, "waste": 3, "spend": 3}.items():
        for ground in ("paper", "card") if least > 3 else ("paper",):
            low, high = sorted((_luminance(colours[name]), _luminance(colours[ground])))
            assert (high + 0.05) / (low + 0.05) >= least, (name, ground)
