"""Whether the time between two attempts was paid for: the whole truth table."""

from __future__ import annotations

from itertools import product

import pytest

from costguard.policies.gap import GAP_MODES, SAME_BOOT_LIMIT_NS, GapMode, Tenure, decide_gap

A = Tenure(allocation="slurm:1.0", host="a", boot="x")
REQUEUED = Tenure(allocation="slurm:1.1", host="a", boot="x")
ELSEWHERE = Tenure(allocation="slurm:1.0", host="b", boot="y")
BARE = Tenure(allocation=None, host="a", boot="x")
REBOOTED = Tenure(allocation=None, host="a", boot="z")
OTHER_HOST = Tenure(allocation=None, host="b", boot="x")
NO_BOOT = Tenure(allocation=None, host="a", boot=None)
ALL = (A, REQUEUED, ELSEWHERE, BARE, REBOOTED, OTHER_HOST, NO_BOOT)
PAIRS = list(product(ALL, ALL))
SHORT, LONG = SAME_BOOT_LIMIT_NS - 1, SAME_BOOT_LIMIT_NS

# Of attempts that died unclosed.
TABLE = [
    (A, A, SHORT, True),
    (A, A, LONG * 100, True),
    (A, ELSEWHERE, LONG, True),
    (A, REQUEUED, SHORT, False),
    (BARE, BARE, SHORT, True),
    (BARE, BARE, LONG, False),
    (BARE, REBOOTED, SHORT, False),
    (BARE, OTHER_HOST, SHORT, False),
    (NO_BOOT, NO_BOOT, SHORT, False),
    (NO_BOOT, NO_BOOT, 0, False),
    (BARE, A, SHORT, True),
    (A, BARE, SHORT, True),
    (A, BARE, LONG, False),
    (A, REBOOTED, SHORT, False),
]


@pytest.mark.parametrize(("earlier", "later", "gap_ns", "billed"), TABLE)
def test_a_gap_is_billed_only_on_proof(earlier: Tenure, later: Tenure, gap_ns: int, billed: bool) -> None:
    """The same allocation, or else the same boot within 30 minutes; all else is released. The reason is said."""
    decision = decide_gap(earlier, later, closed=False, gap_ns=gap_ns)
    assert decision.billed is billed
    assert decision.reason


@pytest.mark.parametrize(("earlier", "later"), PAIRS)
@pytest.mark.parametrize("gap_ns", [0, SHORT, LONG])
def test_a_clean_end_bills_no_gap(earlier: Tenure, later: Tenure, gap_ns: int) -> None:
    """An attempt that ended in order gave its machine back, whatever the allocation says."""
    decision = decide_gap(earlier, later, closed=True, gap_ns=gap_ns)
    assert not decision.billed
    assert "order" in decision.reason


@pytest.mark.parametrize(("earlier", "later"), PAIRS)
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("mode", [m for m in GAP_MODES if m != "auto"])
def test_the_users_word_counts(earlier: Tenure, later: Tenure, closed: bool, mode: GapMode) -> None:
    """`held` bills and `released` does not, whatever is known."""
    decision = decide_gap(earlier, later, closed=closed, gap_ns=LONG * 9, mode=mode)
    assert decision.billed is (mode == "held")
    assert mode in decision.reason


@pytest.mark.parametrize(("earlier", "later"), PAIRS)
def test_a_longer_gap_is_never_billed_where_a_shorter_is_not(earlier: Tenure, later: Tenure) -> None:
    """Waiting longer proves nothing."""
    short, long = (decide_gap(earlier, later, closed=False, gap_ns=ns).billed for ns in (SHORT, LONG))
    assert short or not long
