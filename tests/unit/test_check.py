"""What is said of two counts of one step."""

from __future__ import annotations

import pytest

from costguard.flops.check import Check


@pytest.mark.parametrize(("torch", "agrees"), [(100, True), (90, True), (110, True), (89, False), (111, False)])
def test_counts_agree_within_a_tenth(torch: int, agrees: bool) -> None:
    """Of the own one, in both directions."""
    assert Check(100, torch).agrees is agrees


def test_agreement_says_how_much_torch_sees() -> None:
    """Of the small GPT on a CPU 92.9%."""
    check = Check(88_080_384, 81_788_928, ["aten::fused"])
    assert check.agrees is True
    seen = "cross-checked: torch's FLOP counter sees 92.9% of what is counted here"
    assert check.sentence == f"{seen} (it has no formula for aten::fused)"


def test_what_torch_does_not_see_is_named() -> None:
    """And which count is shown."""
    sentence = Check(100, 40, ["flash_attn::_flash_attn_forward", "other::op"]).sentence
    assert "sees 40.0%" in sentence
    assert "no formula for flash_attn::_flash_attn_forward, other::op" in sentence
    assert sentence.endswith("shown is the count here")


def test_less_for_no_known_reason_is_said_so() -> None:
    """No cause is made up."""
    assert "why is not known" in Check(100, 40).sentence


def test_more_than_is_counted_is_a_lower_bound() -> None:
    """With the operators that nobody counted, if there are any."""
    assert "not counted here: own::op" in Check(100, 150, [], ["own::op"]).sentence
    assert "more is executed than its layers need" in Check(100, 150).sentence
    assert all("lower bound" in Check(100, 150, [], unseen).sentence for unseen in ([], ["own::op"]))


@pytest.mark.parametrize("counted", [None, 0])
def test_nothing_to_compare_is_no_agreement(counted: int | None) -> None:
    """Unknown, neither agreed nor not."""
    check = Check(counted, 100)
    assert (check.ratio, check.agrees) == (None, None)
    assert "not cross-checked" in check.sentence
