"""What ranks did, added up, and the MFU of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costguard.flops.step import Work
from costguard.ledger.activity import Counters, Warmup
from costguard.ledger.done import NOTHING_DONE, Done, done_by, mfu_by_convention, ratio, shown_convention

SECOND = 10**9
AMOUNTS = st.integers(0, 10**12)


@st.composite
def dones(draw: st.DrawFn) -> Done:
    """What a rank did; one that trained nothing knows of nothing."""
    if not draw(st.booleans()):
        return Done(train_ns=draw(AMOUNTS))
    full, warm_full = draw(AMOUNTS), draw(AMOUNTS)
    work = draw(st.none() | st.just(Work(full + warm_full, full + warm_full, 2 * (full + warm_full))))
    return Done(draw(st.none() | AMOUNTS), work, 0, Work(warm_full, warm_full, 2 * warm_full), draw(AMOUNTS), True)


@given(dones(), dones(), dones())
def test_ranks_add_up_in_any_order(a: Done, b: Done, c: Done) -> None:
    """Nothing done is nothing added."""
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + NOTHING_DONE == a


@given(dones())
def test_model_flops_are_at_most_hardware_flops(done: Done) -> None:
    """MFU <= HFU over any stretch, causal <= full."""
    flops, hardware = done.flops(100, in_train=True), done.hardware()
    if flops["full_attention"] is not None:
        assert hardware is not None
        assert flops["causal"] <= flops["full_attention"] <= hardware
        mfu = ratio(flops["full_attention"], SECOND, 1e12)
        assert mfu is None or mfu <= ratio(hardware, SECOND, 1e12)


def _counters(batches: int, work: Work | None, tokens: int | None = None, warmup: Warmup | None = None) -> Counters:
    return Counters(batches, batches, tokens, 0, batches, work, *([warmup] if warmup else []))


def test_one_rank_that_knows_nothing_makes_the_sum_unknown() -> None:
    """Unless it trained nothing: then its time counts alone."""
    known, unknown, idle = _counters(2, Work(10, 5, 20), 8), _counters(2, None), _counters(0, None)
    assert done_by([(known, 3), (unknown, 4)]).work is None
    done = done_by([(known, 3), (idle, 4), (known, 5)])
    assert (done.work, done.tokens, done.train_ns) == (Work(20, 10, 40), 16, 12)


def test_warm_up_is_left_out_of_train_and_kept_in_all() -> None:
    """A step that compiled is in no step MFU, and in what was billed."""
    warm = Warmup(1, 8, Work(10, 5, 20))
    done = done_by([(_counters(3, Work(30, 15, 60), 24, warm), SECOND)])
    assert done.flops(2, in_train=False) == {"6nd": 6 * 2 * 24, "full_attention": 30, "causal": 15}
    assert done.flops(2, in_train=True) == {"6nd": 6 * 2 * 16, "full_attention": 20, "causal": 10}
    assert done.hardware() == 40


def test_unknown_parts_are_unknown_flops() -> None:
    """Each convention by itself."""
    done = done_by([(_counters(1, Work(30, None, None)), SECOND)])
    assert done.flops(2, in_train=True) == {"6nd": None, "full_attention": 30, "causal": None}
    assert done.hardware() is None
    assert NOTHING_DONE.flops(2, in_train=False) == {"6nd": None, "full_attention": None, "causal": None}


def test_what_was_counted_is_shown_before_an_estimate() -> None:
    """The estimate stands alone only where nothing was counted."""
    assert shown_convention({"6nd": 1, "full_attention": 2, "causal": 3}) == "full_attention"
    assert shown_convention({"6nd": 1, "full_attention": None, "causal": None}) == "6nd"


def test_mfu_of_two_devices_of_a_second_each() -> None:
    """300 of 2 x 1000 FLOPs: 15%."""
    assert mfu_by_convention({"full_attention": 300, "causal": None}, 2 * SECOND, 1000) == {
        "full_attention": 0.15,
        "causal": None,
    }


@pytest.mark.parametrize(
    ("flops", "device_ns", "peak"), [(None, SECOND, 1e3), (0, SECOND, 1e3), (1, 0, 1e3), (1, SECOND, None)]
)
def test_an_unknown_part_makes_no_ratio(flops: int | None, device_ns: int, peak: float | None) -> None:
    """Nothing done, no time or no peak: unknown, never 0."""
    assert ratio(flops, device_ns, peak) is None


@given(st.integers(1, 10**6), st.integers(1, 10**9), st.integers(1, 64))
def test_mfu_does_not_depend_on_accumulation_or_layout(batches: int, flops: int, ranks: int) -> None:
    """litgpt#403, torchtitan#1989: as many FLOPs in as much device time is one MFU, whoever did which batch."""
    alone = done_by([(_counters(batches, Work(flops * batches * ranks, 0, 0)), SECOND * ranks)])
    apart = done_by([(_counters(batches, Work(flops * batches, 0, 0)), SECOND)] * ranks)
    mfus = [ratio(d.flops(None, in_train=True)["full_attention"], d.train_ns, 1e15) for d in (alone, apart)]
    assert mfus[0] == mfus[1]
