"""The price of stopping: measured parts, priors until then, and a score afterwards."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import NS, examples
from costguard.errors import ConfigError
from costguard.policies.reserve import (
    EXIT_PRIOR_NS,
    Reserve,
    StopPriors,
    StopSamples,
    price_of_stopping,
    save_prior_ns,
    score_reserve,
    upper_bound,
)

NAMES = ("step", "save", "upload", "flush", "teardown", "exit")


def test_priors_hold_until_something_is_measured() -> None:
    """Without samples each part is its prior, the interpreter's exit 1 s; a sample takes its place."""
    bare = price_of_stopping(StopSamples())
    assert bare.parts_ns["exit"] == EXIT_PRIOR_NS == NS
    assert bare.parts_ns["save"] == StopPriors().save_ns
    assert bare.measured == frozenset()
    seen = price_of_stopping(StopSamples(save_ns=[3 * NS]))
    assert seen.parts_ns["save"] == 6 * NS
    assert seen.measured == {"save"}


def test_all_parts_add_up() -> None:
    """Step, save, upload, flush, teardown, exit, agreement and one quantum: the sum, times the devices."""
    priors = StopPriors(step_ns=2, save_ns=30, upload_ns=40, flush_ns=5, teardown_ns=6, exit_ns=7)
    reserve = price_of_stopping(StopSamples(), priors=priors, agreement_steps=3, agreement_ns=10, quantum_ns=60)
    assert reserve.parts_ns == {
        **{"step": 2, "save": 30, "upload": 40, "flush": 5, "teardown": 6, "exit": 7},
        **{"agreement": 3 * 2 + 10, "quantum": 60},
    }
    assert (reserve.ns, reserve.device_ns(8)) == (166, 1328)
    assert reserve.amount(8, Fraction(1, 1000)).money == Fraction(1328, 1000)
    assert reserve.amount(8, None).money is None
    assert reserve.amount(8, None).device_ns == 1328
    assert Reserve.from_json(reserve.to_json()) == reserve


def test_many_samples_give_the_quantile() -> None:
    """Of 100 steps the second largest, of 20 saves too: one slow step in a hundred does not set the reserve."""
    assert upper_bound(range(1, 101), 0.99) == 99
    assert upper_bound(range(1, 21), 0.95) == 19
    assert upper_bound(range(1, 1001), 0.99) == 990


def test_few_samples_take_the_largest_and_more() -> None:
    """One sample is doubled, ten get a tenth on top: the next may be the largest yet."""
    assert upper_bound([], 0.95) is None
    assert upper_bound([100], 0.95) == 200
    assert upper_bound([10, 100] * 5, 0.95) == 110
    assert upper_bound([10] * 98 + [100], 0.99) == 102


@pytest.mark.parametrize(
    ("size", "rate", "expected"),
    [(10**9, 1e9, 2 * NS), (10**9, None, None), (10**9, 0.0, None), (10**9, float("nan"), None), (0, 1e9, 0)],
)
def test_a_first_save_is_twice_its_bytes_by_the_bandwidth(size: int, rate: float | None, expected: int | None) -> None:
    """An unknown bandwidth gives no prior, rather than none to pay."""
    assert save_prior_ns(size, rate) == expected


@pytest.mark.parametrize("arguments", [{"agreement_steps": -1}, {"agreement_ns": -1}, {"quantum_ns": -1}])
def test_negative_delays_are_refused(arguments: dict[str, Any]) -> None:
    """A delay below 0 is a mistake that would let a run overshoot."""
    with pytest.raises(ConfigError, match="negative; expected 0 or more"):
        price_of_stopping(StopSamples(), **arguments)


def test_the_score_compares_each_part_with_what_it_took() -> None:
    """A receipt shows predicted and real; what was not measured is unknown, and so is then the total."""
    reserve = Reserve(parts_ns={"step": 5, "save": 10})
    rows = {row.part: row for row in score_reserve(reserve, {"step": 6, "save": 9, "signal": 1})}
    assert (rows["step"].covered, rows["save"].covered, rows["signal"].covered) == (False, True, False)
    assert (rows["total"].predicted_ns, rows["total"].real_ns, rows["total"].covered) == (15, 16, False)
    partly = {row.part: row for row in score_reserve(reserve, {"save": 9})}
    assert partly["step"].covered is None
    assert partly["total"].real_ns is None


SAMPLES = st.lists(st.integers(0, 10**12), min_size=1, max_size=150)


@given(samples=SAMPLES, quantile=st.sampled_from([0.95, 0.99]))
@examples(200)
def test_a_bound_covers_its_share_of_the_samples(samples: list[int], quantile: float) -> None:
    """At least the quantile's share of what was seen lies at or under it."""
    bound = upper_bound(samples, quantile)
    assert bound is not None
    assert sum(s <= bound for s in samples) >= quantile * len(samples)


@given(samples=SAMPLES, name=st.sampled_from(NAMES), steps=st.integers(0, 20), quantum=st.integers(0, 3600 * NS))
@examples(100)
def test_a_slower_part_never_makes_stopping_cheaper(samples: list[int], name: str, steps: int, quantum: int) -> None:
    """The reserve grows with each part, the agreement's steps and the quantum."""

    def reserve(factor: int, **more: int) -> int:
        measured = StopSamples(**{f"{name}_ns": [s * factor for s in samples]})  # type: ignore[arg-type]
        return price_of_stopping(measured, **{"agreement_steps": steps, "quantum_ns": quantum, **more}).ns

    assert reserve(1) <= reserve(2)
    assert reserve(1) <= reserve(1, agreement_steps=steps + 1)
    assert reserve(1, quantum_ns=quantum + 1) == reserve(1) + 1
