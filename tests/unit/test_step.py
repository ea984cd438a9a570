"""How the calls of a step add up to its work, and to its gap to 6ND."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costguard.flops.operators import RecurrentLayer, recurrent
from costguard.flops.step import NO_WORK, Call, Work, gap_to_6nd, step_flops

SHARES = st.fractions(0, 1, max_denominator=64)
AMOUNTS = st.integers(0, 10**9).map(lambda n: 64 * n)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """A product with none, one or both of its gradients, behind any mask."""
    forward, gradients = draw(AMOUNTS), draw(st.integers(0, 2))
    full = draw(SHARES)
    causal = draw(st.none() | SHARES.map(lambda part: part * full))
    kind = draw(st.sampled_from(["linear", "convolution", "attention", "recurrent"]))
    return Call(kind, forward, gradients * forward, 3 * forward, full, causal)


STEPS = st.lists(calls(), max_size=6)
WORKS = st.builds(Work, AMOUNTS, st.none() | AMOUNTS, st.none() | AMOUNTS)


@given(STEPS, AMOUNTS)
def test_model_flops_are_at_most_executed_ones(step: list[Call], recomputed: int) -> None:
    """MFU <= HFU, causal <= full, and what is trained <= what could be."""
    done = step_flops(step, recomputed=recomputed)
    full, causal, hardware = done.work
    assert hardware is not None
    assert full <= hardware
    assert causal is None or causal <= full
    assert full <= done.whole
    assert done.attention.full <= full


@given(STEPS)
def test_frozen_costs_at_most_what_trained_costs(step: list[Call]) -> None:
    """Taking gradients away takes work away."""
    frozen = [call._replace(backward=0) for call in step]
    assert step_flops(frozen).work.full <= step_flops(step).work.full
    assert step_flops(frozen).whole == step_flops(step).whole


@given(STEPS, STEPS)
def test_experts_that_run_cost_at_most_all_of_them(active: list[Call], others: list[Call]) -> None:
    """Calls that are not made cost nothing."""
    assert step_flops(active).work.full <= step_flops([*active, *others]).work.full


def test_unknown_recomputation_is_unknown_hardware() -> None:
    """The model's FLOPs are known all the same."""
    done = step_flops([Call("linear", 10, 20, 30)], recomputed=None)
    assert done.work == (30, 30, None)


def test_one_unread_mask_makes_causal_unknown() -> None:
    """And nothing else."""
    done = step_flops([Call("attention", 10, 20, 30, Fraction(1), None), Call("linear", 1, 2, 3)])
    assert done.work == (33, None, 33)
    assert done.attention.full == 30


def test_unseen_operators_are_named_once_in_order() -> None:
    """By name."""
    assert step_flops([], unseen=["b", "a", "b"]).unseen == ("a", "b")


# -- work -------------------------------------------------------------------------------------------------------------


@given(WORKS, WORKS, WORKS)
def test_work_adds_over_batches_in_any_order(a: Work, b: Work, c: Work) -> None:
    """Also where a convention is unknown."""
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + NO_WORK == a


@given(WORKS, WORKS)
def test_work_that_is_taken_away_was_there(a: Work, b: Work) -> None:
    """What is unknown stays unknown."""
    back = (a + b) - b
    assert back.full == a.full
    assert back.causal == (None if b.causal is None else a.causal)
    assert back.hardware == (None if b.hardware is None else a.hardware)


# -- the gap to 6ND ---------------------------------------------------------------------------------------------------


@given(STEPS, st.integers(1, 10**6), st.integers(1, 10**4), st.integers(0, 10**3), st.integers(0, 10**5), st.booleans())
def test_parts_of_the_gap_add_up_to_it(
    calls: list[Call], parameters: int, tokens: int, padding: int, lookups: int, frozen: bool
) -> None:
    """Nothing is explained twice, and what is not explained is `other`."""
    step = step_flops(calls, lookup_parameters=lookups)
    gap = gap_to_6nd(step, parameters, tokens, padding, frozen=frozen)
    assert gap is not None
    total = step.work.full / (6 * parameters * tokens) - 1
    assert gap["total"] == pytest.approx(total)
    parts = [gap[name] for name in ("embeddings", "attention", "frozen", "padding", "other")]
    assert sum(parts) == pytest.approx(total, rel=1e-6, abs=1e-6 * max(map(abs, parts)))


def test_the_gap_of_a_small_model_by_hand() -> None:
    """10 tokens and 2 of padding on a layer of 100 parameters, and a lookup of 50: 6ND is 9,000."""
    linear = Call("linear", 2 * 100 * 12, 2 * 2 * 100 * 12, 3 * 2 * 100 * 12)
    attention = Call("attention", 300, 600, 900)
    gap = gap_to_6nd(step_flops([linear, attention], recomputed=450, lookup_parameters=50), 150, 10, 2, frozen=False)
    assert gap == pytest.approx(
        {
            "total": (7200 + 900 - 9000) / 9000,
            "embeddings": -6 * 50 * 12 / 9000,
            "attention": 900 / 9000,
            "frozen": 0,
            "padding": 6 * 150 * 2 / 9000,
            "other": 0,
            "recompute": 450 / 9000,
        }
    )


def test_without_tokens_there_is_no_gap() -> None:
    """Nor with an unknown recomputation a share of it."""
    assert gap_to_6nd(step_flops([]), 100, 0, 0, frozen=False) is None
    gap = gap_to_6nd(step_flops([], recomputed=None), 100, 1, 0, frozen=False)
    assert gap is not None
    assert "recompute" not in gap


def test_adapters_of_a_large_model_cost_two_thirds() -> None:
    """Automodel#786: 70.55e9 frozen and 175.6e6 trained parameters: 4 N + 6 n over 6 (N + n) is 0.6675."""
    frozen, trained = 70_550_000_000, 175_600_000
    step = step_flops(
        [Call("linear", 2 * frozen, 2 * frozen, 6 * frozen), Call("linear", 2 * trained, 4 * trained, 6 * trained)]
    )
    assert step.work.full / step.whole == pytest.approx(0.6675, abs=5e-5)
    gap = gap_to_6nd(step, frozen + trained, 1, 0, frozen=True)
    assert gap is not None
    assert gap["frozen"] == pytest.approx(gap["total"])


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 9), st.booleans(), st.booleans(), st.booleans())
def test_a_recurrent_layer_costs_at_most_three_forwards(
    wide: int, hidden: int, first: int, input_needs: bool, trained: bool, hidden_needs: bool
) -> None:
    """Frozen at most as much as trained, and both at most as much as if every gradient flowed."""
    sizes = {"from_input": wide, "from_hidden": hidden}

    def cost(trains: bool) -> tuple[int, int]:
        flags = dict.fromkeys(sizes, trains)
        layer = RecurrentLayer(**sizes, trained=flags, input_needs=input_needs, hidden_needs=hidden_needs)
        return recurrent(layer, 10 * first, first)

    forward, backward = cost(trained)
    assert forward == 2 * 10 * first * (wide + hidden)
    assert cost(False)[1] <= backward <= cost(True)[1] <= 2 * forward
