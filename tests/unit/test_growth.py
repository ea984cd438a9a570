"""Abnormal growth: an hour far above the hours before it, on three conditions at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import examples
from costguard.errors import ConfigError
from costguard.policies.growth import Bucket, Meter, judge_growth, robust_z
from costguard.records import Action

MONEY = Meter(name="money")
NOISY = [20.0, 21.0, 19.0, 20.5, 19.5, 20.0, 21.5, 18.5, 20.0, 20.2]


def hours(*amounts: float | None, setting: str = "") -> list[Bucket]:
    return [Bucket(amount, setting) for amount in amounts]


@pytest.mark.parametrize(
    ("latest", "alarms"),
    [
        (20.0, False),
        (24.0, False),  # z > 3.5, but not 25% more
        (25.0, False),  # exactly 25% more
        (25.5, True),
        (1.0, False),  # shrinking is no growth
    ],
)
def test_an_outlier_upward_alarms(latest: float, alarms: bool) -> None:
    """Far out and more than a quarter above what is usual."""
    verdict = judge_growth(MONEY, hours(*NOISY, latest))
    assert (verdict is not None) is alarms


def test_what_is_within_its_own_noise_is_silent() -> None:
    """A meter that always swings between 10 and 30 may reach 31."""
    assert judge_growth(MONEY, hours(*[10.0, 30.0] * 6, 31.0)) is None


def test_an_increase_below_the_floor_is_silent() -> None:
    """Cents that double are cents; with a floor of 0 they are said."""
    cents = hours(*[0.10] * 12, 0.50)
    assert judge_growth(MONEY, cents) is None
    assert judge_growth(Meter(name="money", floor=0), cents) is not None


def test_a_constant_meter_is_held_by_the_floors() -> None:
    """With no spread at all each change is infinitely far out: 25% and the floor decide, and the evidence is JSON."""
    assert judge_growth(MONEY, hours(*[20.0] * 12, 20.01)) is None
    verdict = judge_growth(MONEY, hours(*[20.0] * 12, 30.0))
    assert verdict is not None
    assert verdict.evidence["z"] is None
    json.dumps(dict(verdict.evidence), allow_nan=False)


def test_a_change_of_setting_begins_anew() -> None:
    """After a stage with eight times the devices, its dearer hours are not compared with those before."""
    small, large = hours(*NOISY, setting="debug/1"), hours(160.0, setting="pretrain/8")
    assert judge_growth(MONEY, [*small, *large]) is None
    assert judge_growth(MONEY, [*small, *hours(*[160.0] * 8, 320.0, setting="pretrain/8")]) is not None


@pytest.mark.parametrize(
    ("latest", "planned", "alarms"),
    [(31.0, 20.0, True), (30.0, 20.0, False), (500.0, None, False), (0.9, 0.1, False)],
)
def test_the_first_hours_are_held_to_the_plan(latest: float, planned: float | None, alarms: bool) -> None:
    """With fewer than eight hours before it: more than 1.5 times the plan and the floor; without a plan, nothing."""
    verdict = judge_growth(MONEY, hours(*NOISY[:7], latest), planned)
    assert (verdict is not None) is alarms


def test_only_the_last_24_hours_count() -> None:
    """What was usual two days ago is not usual any more."""
    assert judge_growth(MONEY, hours(*[5.0] * 100, *[20.0] * 24, 21.0)) is None
    assert judge_growth(MONEY, hours(*[20.0] * 100, *[5.0] * 24, 20.0)) is not None


def test_unknown_hours_are_neither_zero_nor_judged() -> None:
    """An hour without a figure does not lower what is usual, and is not judged itself."""
    assert judge_growth(MONEY, hours(*NOISY, None)) is None
    assert judge_growth(MONEY, hours(*NOISY[:7], *[None] * 10, 500.0)) is None
    assert judge_growth(MONEY, []) is None


@pytest.mark.parametrize(
    ("meter", "usual", "latest", "sentence"),
    [
        (MONEY, 20.0, 50.0, "Money grew by $50.00 in the last hour, where $20.00 was usual in the 12 hours before."),
        (
            Meter(name="checkpoint_bytes", unit="bytes"), 1e9, 5e9,
            "Checkpoint bytes grew by 5 G bytes in the last hour, where 1 G bytes was usual in the 12 hours before.",
        ),
        (
            Meter(name="agent_tokens", unit="tokens"), 2e5, 9e5,
            "Agent tokens grew by 900 k tokens in the last hour, where 200 k tokens was usual in the 12 hours before.",
        ),
        (
            Meter(name="log_bytes", unit="bytes", floor=1e6), 1e6, 9e6,
            "Log bytes grew by 9 M bytes in the last hour, where 1 M bytes was usual in the 12 hours before.",
        ),
    ],
)  # fmt: skip
def test_each_meter_has_its_words(meter: Meter, usual: float, latest: float, sentence: str) -> None:
    """Money, agent tokens, checkpoint bytes and log bytes, each in its unit."""
    verdict = judge_growth(meter, hours(*[usual] * 12, latest))
    assert verdict is not None
    assert verdict.message == sentence
    assert (verdict.kind, verdict.action, verdict.reason) == ("growth", Action.ALERT, f"abnormal_{meter.name}")


@pytest.mark.parametrize("arguments", [{"unit": "apples"}, {"floor": -1.0}, {"floor": float("nan")}])
def test_a_meter_that_cannot_be_watched_is_refused(arguments: dict[str, Any]) -> None:
    """An unknown unit or a floor below 0 is a mistake."""
    with pytest.raises(ConfigError, match=r"^Meter\("):
        Meter(name="money", **arguments)


def test_the_robust_z_score_is_the_published_one() -> None:
    """0.6745 times the distance from the median over the median absolute deviation."""
    assert robust_z(10.0, [1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(0.6745 * 7 / 1)
    assert robust_z(3.0, [3.0, 3.0]) == 0
    assert robust_z(2.0, [3.0, 3.0]) == float("-inf")


AMOUNT = st.floats(0, 1e6)


@given(before=st.lists(AMOUNT, min_size=8, max_size=40), latest=AMOUNT, more=AMOUNT)
@examples(200)
def test_more_growth_never_says_less(before: list[float], latest: float, more: float) -> None:
    """What alarms at an amount alarms above it; and never without a quarter and the floor more than usual."""
    low, high = (judge_growth(MONEY, hours(*before, amount)) for amount in (latest, latest + more))
    assert low is None or high is not None
    if low is not None:
        usual = low.evidence["usual"]
        assert latest > usual * 1.25
        assert latest - usual > 1
