"""Rules and the planner: what stays, what moves, what goes, and by which rule."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costguard.errors import ConfigError
from costguard.keep import (
    DAY_NS,
    HOUR_NS,
    Checkpoint,
    History,
    Rule,
    any_of,
    before_anomaly,
    best,
    by_model_checkpoint,
    every,
    last,
    pinned,
    stage_end,
    thin,
)
from costguard.policies.retention import FOR_EVER_NS, Decision, Move, Retention, Tiers, plan
from costguard.prices.storage import StorageClass, storage_class

WEEK_1 = 3000 * 7 * DAY_NS
IR = storage_class("s3:GLACIER_IR")
STANDARD = storage_class("s3:STANDARD")


def saved(*steps: int, **more: Any) -> list[Checkpoint]:
    """One complete checkpoint an hour, at these steps."""
    return [
        Checkpoint(id=f"c{step}", step=step, order=i, saved_ns=WEEK_1 + i * HOUR_NS, **more)
        for i, step in enumerate(steps)
    ]


def kept(rule: Rule, checkpoints: list[Checkpoint], **more: Any) -> set[str]:
    return rule.kept(History(checkpoints=checkpoints, **more))


def moves(
    checkpoints: list[Checkpoint], now_ns: int = WEEK_1, tiers: Tiers | None = None, **wanted: Any
) -> dict[str, str]:
    retention = Retention(**wanted)
    return {d.id: d.move.value for d in plan(History(checkpoints=checkpoints), retention, now_ns, tiers)}


def decision(checkpoint: Checkpoint, now_ns: int, tiers: Tiers, **wanted: Any) -> Decision:
    """What becomes of a checkpoint that is neither the newest nor kept by a rule."""
    newest = Checkpoint(id="newest", step=10**9, order=10**9, saved_ns=now_ns)
    return plan(History(checkpoints=[checkpoint, newest]), Retention(keep=last(1), **wanted), now_ns, tiers)[0]


# -- rules ---------------------------------------------------------------------------------------------------------


def test_last_keeps_the_newest_by_order_whatever_the_clock_did() -> None:
    """A clock that was set back, or steps that began again, do not make an old checkpoint new."""
    checkpoints = saved(10, 20, 30)
    again = Checkpoint(id="again", step=5, order=9, saved_ns=0)
    assert kept(last(2), [again, *checkpoints]) == {"again", "c30"}


def test_nan_is_never_best() -> None:
    """A NaN, an infinity and a missing value are no best, wherever they stand among the others."""
    values = [math.nan, 2.0, None, 1.0, math.inf, 3.0, -math.inf, math.nan]
    checkpoints = [Checkpoint(id=f"v{i}", step=i, order=i, metrics={"loss": value}) for i, value in enumerate(values)]
    assert kept(best("loss", n=2), checkpoints) == {"v3", "v1"}
    assert kept(best("loss", n=2, mode="max"), checkpoints) == {"v5", "v1"}
    assert kept(best("accuracy"), checkpoints) == set()


def test_of_equal_metrics_the_older_is_best() -> None:
    """A plateau does not make the best wander."""
    assert kept(best("loss"), saved(1, 2, 3, metrics={"loss": 0.5})) == {"c1"}


def test_every_keeps_the_first_at_or_after_each_milestone() -> None:
    """Saves that miss a multiple count for it all the same, once."""
    checkpoints = saved(90, 100, 150, 210, 290, 305)
    assert kept(every(steps=100), checkpoints) == {"c100", "c210", "c305"}
    assert kept(every(steps=100, at_most=2), checkpoints) == {"c210", "c305"}


def test_every_counts_epochs_tokens_and_hours() -> None:
    """Each unit has milestones of its own; what does not know its epoch or tokens has none."""
    checkpoints = [
        Checkpoint(id=f"c{i}", step=i, order=i, epochs=i, tokens=i * 100, saved_ns=WEEK_1 + i * HOUR_NS)
        for i in range(7)
    ]
    assert kept(every(epochs=3), checkpoints) == {"c3", "c6"}
    assert kept(every(tokens=250), checkpoints) == {"c3", "c5"}
    assert kept(every(hours=4), checkpoints) == {"c0", "c4"}
    assert kept(every(epochs=1) | every(tokens=1), saved(1, 2)) == set()


def test_thin_keeps_the_newest_of_each_hour_day_and_week() -> None:
    """Dense lately, sparse long ago."""
    hours = [*range(24 * 20), 24 * 20 + 5]
    checkpoints = [Checkpoint(id=str(h), step=h, order=i, saved_ns=WEEK_1 + h * HOUR_NS) for i, h in enumerate(hours)]
    assert kept(thin(hourly=2), checkpoints) == {"485", "479"}
    assert kept(thin(daily=3), checkpoints) == {"485", "479", "455"}
    assert kept(thin(weekly=2), checkpoints) == {"485", "335"}


def test_thin_after_a_pause_of_a_month_keeps_what_it_kept() -> None:
    """Ages are counted back from the newest checkpoint: time alone takes nothing away."""
    checkpoints = saved(*range(100))
    rule = thin(hourly=4, daily=2)
    before = moves(checkpoints, now_ns=WEEK_1 + 101 * HOUR_NS, keep=rule)
    assert moves(checkpoints, now_ns=WEEK_1 + 800 * HOUR_NS, keep=rule) == before
    assert list(before.values()).count("keep") == 5


def test_thin_keeps_the_oldest_while_a_bucket_is_short() -> None:
    """The first week's checkpoint is there when the first week is over."""
    assert "c0" in kept(thin(weekly=4), saved(*range(10)))


def test_stage_ends_anomalies_and_pins_are_kept() -> None:
    """What a stage, a detector or a user marked stays."""
    checkpoints = saved(10, 20, 30, 40)
    marked = Checkpoint(id="cooldown", step=50, order=9, stage_end="warmup", pinned=True)
    assert kept(stage_end(), [*checkpoints, marked]) == {"cooldown"}
    assert kept(pinned(), [*checkpoints, marked]) == {"cooldown"}
    assert kept(before_anomaly(2), checkpoints, anomaly_steps={"": [30, 45]}) == {"c10", "c20", "c30", "c40"}


def test_rules_join_and_the_first_that_keeps_is_named() -> None:
    """`|` keeps what either keeps, and the plan says which one."""
    rule = last(1) | best("loss") | every(steps=20)
    checkpoints = saved(10, 20, 30)
    assert rule.label == "last(1) | best('loss', n=1, mode='min') | every(steps=20)"
    decided = plan(History(checkpoints=checkpoints), Retention(keep=rule), WEEK_1)
    assert [(d.id, d.move, d.rule) for d in decided] == [
        ("c10", Move.DEMOTE, "rest"),
        ("c20", Move.KEEP, "every(steps=20)"),
        ("c30", Move.KEEP, "newest"),
    ]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: last(0), "last(n=0)"),
        (lambda: best("loss", mode="least"), "best(mode='least')"),  # type: ignore[arg-type]
        (lambda: best(""), "best(metric='')"),
        (every, "exactly one of"),
        (lambda: every(steps=1, epochs=2), "exactly one of"),
        (lambda: every(steps=-1), "every(steps=-1)"),
        (lambda: every(steps=5, at_most=0), "at_most=0"),
        (thin, "thin()"),
        (lambda: thin(daily=-1), "daily=-1"),
        (lambda: before_anomaly(0), "before_anomaly(n=0)"),
        (lambda: any_of([]), "at least one rule"),
        (lambda: Retention(demote="all"), "demote='all'"),  # type: ignore[arg-type]
        (lambda: Retention(keep_hot=0), "keep_hot=0"),
        (lambda: Retention(strip_after_ns=-1), "strip_after_ns=-1"),
    ],
)
def test_a_bad_rule_is_said_in_one_sentence(make: Any, says: str) -> None:
    """Who, what and the remedy."""
    with pytest.raises(ConfigError, match=r"expected") as raised:
        make()
    assert says in str(raised.value)


def test_yaml_builds_the_same_rules(tmp_path: Path) -> None:
    """`class_path` and `init_args` give the very dataclasses that Python does, nested too."""
    from jsonargparse import ArgumentParser

    config = tmp_path / "c.yaml"
    config.write_text(
        "keep:\n  class_path: costguard.keep.any_of\n  init_args:\n    rules:\n"
        "    - {class_path: costguard.keep.last, init_args: {n: 3}}\n"
        "    - {class_path: costguard.keep.best, init_args: {metric: val_loss, n: 2}}\n"
        "    - {class_path: costguard.keep.every, init_args: {steps: 5000, at_most: 20}}\n"
        "    - {class_path: costguard.keep.pinned}\n"
    )
    parser = ArgumentParser()
    parser.add_argument("--config", action="config")
    parser.add_argument("--keep", type=Rule)
    built = parser.instantiate(parser.parse_args(["--config", str(config)])).keep
    assert list(built.parts()) == [last(3), best("val_loss", n=2), every(steps=5000, at_most=20), pinned()]


# -- the planner ---------------------------------------------------------------------------------------------------


def test_what_may_never_go_never_goes() -> None:
    """Newest, resumed from, pinned, unfinished and foreign stay, though a rule keeps nothing and all is old."""
    marks = ({"pinned": True}, {"resumed_from": True}, {"complete": False}, {"ours": False}, {})
    checkpoints = [
        Checkpoint(id=str(i), step=i, order=i, saved_ns=0, size_bytes=1, **mark)  # type: ignore[arg-type]
        for i, mark in enumerate(marks * 2)
    ]
    decided = moves(checkpoints, now_ns=WEEK_1, keep=before_anomaly(1), expire_after_ns=1, hot_quota_bytes=0)
    assert [id for id, move in decided.items() if move != "keep"] == ["4"]


def test_an_unfinished_newer_save_does_not_count_as_the_one_to_keep() -> None:
    """NVIDIA-NeMo/Megatron-Bridge#4678: the newest complete one stays while a newer is being written."""
    checkpoints = [*saved(10, 20), Checkpoint(id="writing", step=30, order=7, complete=False)]
    assert moves(checkpoints, keep=last(1)) == {"c10": "demote", "c20": "keep", "writing": "keep"}


def test_without_a_rule_nothing_moves() -> None:
    """A first run deletes nothing."""
    assert set(moves(saved(1, 2, 3)).values()) == {"keep"}


def test_what_expires_is_only_what_no_rule_keeps() -> None:
    """Age takes the rest, hot or cold."""
    checkpoints = saved(10, 20, 30, 40)
    now_ns = WEEK_1 + 90 * DAY_NS
    assert moves(checkpoints, now_ns, keep=every(steps=20), expire_after_ns=30 * DAY_NS) == {
        "c10": "expire",
        "c20": "keep",
        "c30": "expire",
        "c40": "keep",
    }


def test_a_failed_run_expires_sooner_where_asked_to() -> None:
    """`on_failed_run` has a life of its own."""
    history = History(checkpoints=saved(1, 2), failed={""})
    retention = Retention(keep=last(1), expire_after_ns=90 * DAY_NS, failed_expire_after_ns=7 * DAY_NS)
    now_ns = WEEK_1 + 8 * DAY_NS
    assert [d.move for d in plan(history, retention, now_ns)] == [Move.EXPIRE, Move.KEEP]


def test_a_move_that_costs_more_than_it_saves_is_not_made() -> None:
    """Glacier IR bills 90 days: below 17.2 days left, requests included, it is cheaper to stay."""
    tiers = Tiers(hot=STANDARD, cold=IR)
    old = Checkpoint(id="old", step=1, saved_ns=WEEK_1, size_bytes=84 * 10**9)
    wanted = {"expire_after_ns": 30 * DAY_NS}
    staying = decision(old, WEEK_1 + 15 * DAY_NS, tiers, **wanted)
    assert (staying.move, staying.rule) == (Move.KEEP, "break_even")
    assert "GLACIER_IR would not pay within the 15.0 days it has left; it would take 17.2 days" in staying.reason
    assert decision(old, WEEK_1 + 12 * DAY_NS, tiers, **wanted).move is Move.DEMOTE
    forever = decision(old, WEEK_1, tiers)
    assert forever.move is Move.DEMOTE
    assert forever.usd_saved_per_month == 84 * (STANDARD.month_usd(10**9) - IR.month_usd(10**9))


def test_a_colder_class_that_is_dearer_is_refused() -> None:
    """Moving to where it costs more never pays."""
    dear = StorageClass(name="DEAR", usd_per_gb_month="0.05")
    old = Checkpoint(id="old", step=1, saved_ns=WEEK_1, size_bytes=10**9)
    assert decision(old, WEEK_1, Tiers(hot=STANDARD, cold=dear)).rule == "break_even"


def test_what_requests_cost_is_said_to_be_unknown_and_not_taken_for_free() -> None:
    """Coldline's request price is not known: the fee is None, the break-even a least, and both sentences say so."""
    tiers = Tiers(hot=storage_class("gs:STANDARD"), cold=storage_class("gs:COLDLINE"))
    old = Checkpoint(id="old", step=1, saved_ns=WEEK_1, size_bytes=84 * 10**9)
    moved = decision(old, WEEK_1, tiers)
    assert (moved.move, moved.usd_fee) == (Move.DEMOTE, None)
    assert moved.reason == "no rule keeps it hot; what COLDLINE asks for its 5009 requests is unknown"
    staying = decision(old, WEEK_1 + 13 * DAY_NS, tiers, expire_after_ns=30 * DAY_NS)
    assert (staying.move, staying.rule) == (Move.KEEP, "break_even")
    assert staying.reason == (
        "moving it to COLDLINE would not pay within the 17.0 days it has left; it would take at least 18.0 days; "
        "what COLDLINE asks for its 5009 requests is unknown"
    )


def test_an_early_expiry_is_put_off_to_the_free_date_and_says_so() -> None:
    """Deleting before the minimum is over bills the rest of it, so it waits and names the day and the money."""
    tiers = Tiers(hot=STANDARD, cold=IR)
    put_ns = 1_767_225_600 * 10**9  # 2026-01-01
    cold = Checkpoint(id="cold", step=1, saved_ns=put_ns, size_bytes=84 * 10**9, tier="cold", cold_since_ns=put_ns)
    early = decision(cold, put_ns + 30 * DAY_NS, tiers, expire_after_ns=10 * DAY_NS)
    assert (early.move, early.rule, early.free_at_ns) == (Move.KEEP, "deferred", put_ns + 90 * DAY_NS)
    assert early.reason == "put off: deleted on 2026-04-01 it is free, now it costs $0.6720"
    due = decision(cold, put_ns + 90 * DAY_NS, tiers, expire_after_ns=10 * DAY_NS)
    assert (due.move, due.usd_fee) == (Move.EXPIRE, 0)


def test_a_hot_quota_demotes_the_oldest_first() -> None:
    """What a rule keeps moves too when the disk is used up, but never the newest."""
    checkpoints = saved(1, 2, 3, 4, size_bytes=10)
    decided = moves(checkpoints, keep=last(4), hot_quota_bytes=25)
    assert decided == {"c1": "demote", "c2": "demote", "c3": "keep", "c4": "keep"}
    assert moves(checkpoints, keep=last(4), hot_quota_bytes=0)["c4"] == "keep"


def test_with_no_cold_store_nothing_is_demoted() -> None:
    """There must be somewhere to go."""
    assert set(moves(saved(1, 2, 3), tiers=Tiers(has_cold=False), keep=last(1)).values()) == {"keep"}


# -- without optimizer state ---------------------------------------------------------------------------------------

PUT_NS = 1_767_225_600 * 10**9  # 2026-01-01
FORTNIGHT = {"strip_after_ns": 14 * DAY_NS}


def aged(tier: str, **more: Any) -> Checkpoint:
    """84 GB, saved and, unless hot, demoted on the first of January."""
    since = None if tier == "hot" else PUT_NS
    facts = {"saved_ns": PUT_NS, "size_bytes": 84 * 10**9, "tier": tier, "cold_since_ns": since}
    return Checkpoint(id="old", step=1, **{**facts, **more})


@pytest.mark.parametrize("tier", ["hot", "both", "cold"])
@pytest.mark.parametrize(
    "tiers", [Tiers(), Tiers(hot=storage_class("ebs:gp3"), cold=STANDARD)], ids=["unpriced", "priced"]
)
def test_what_no_rule_keeps_is_stripped_when_it_is_old_enough(tier: str, tiers: Tiers) -> None:
    """To the nanosecond, in whatever tier it is; before, it is demoted or stays as ever."""
    young = decision(aged(tier), PUT_NS + 14 * DAY_NS - 1, tiers, **FORTNIGHT)
    assert young.move is (Move.KEEP if tier == "cold" else Move.DEMOTE)
    due = decision(aged(tier), PUT_NS + 14 * DAY_NS, tiers, **FORTNIGHT)
    assert (due.move, due.rule) == (Move.STRIP, "strip_optimizer_after")
    assert due.usd_fee == (None if tiers.cold is None else STANDARD.put_usd(5009))


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({"stripped": True}, {}),
        ({"strippable": False}, {}),
        ({"pinned": True}, {}),
        ({"resumed_from": True}, {}),
        ({"complete": False}, {}),
        ({"ours": False}, {}),
        ({}, {"strip_after_ns": None}),
        ({}, {"demote": "none"}),
    ],
    ids=str,
)
def test_what_is_never_stripped(facts: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Not again, not in vain, not what a guard holds, and not unasked."""
    for tier in ("hot", "cold"):
        c = aged(tier, **facts)
        made = decision(c, PUT_NS + 400 * DAY_NS, Tiers(), **{**FORTNIGHT, **wanted})
        assert made.move is not Move.STRIP


def test_only_where_there_is_a_cold_store_and_no_rule_keeps_it() -> None:
    """What a rule keeps, the newest, and what has nowhere to go keep their optimizer state."""
    checkpoints = saved(10, 20, 30)
    now_ns = WEEK_1 + 30 * DAY_NS
    assert moves(checkpoints, now_ns, keep=every(steps=20), **FORTNIGHT) == {
        "c10": "strip",
        "c20": "keep",
        "c30": "keep",
    }
    alone = moves(checkpoints, now_ns, Tiers(has_cold=False), keep=every(steps=20), **FORTNIGHT)
    assert set(alone.values()) == {"keep"}


def test_expiring_comes_before_stripping() -> None:
    """What is to go is not made smaller first, also where its going is put off."""
    wanted = {**FORTNIGHT, "expire_after_ns": 14 * DAY_NS}
    assert decision(aged("cold"), PUT_NS + 14 * DAY_NS, Tiers(), **wanted).move is Move.EXPIRE
    put_off = decision(aged("cold"), PUT_NS + 14 * DAY_NS, Tiers(cold=IR), **wanted)
    assert (put_off.rule, put_off.reason) == (
        "deferred",
        "put off: deleted on 2026-04-01 it is free, now it costs $0.8512",
    )


def test_stripping_waits_until_the_full_copy_may_go_for_nothing() -> None:
    """The rest of the minimum is billed whether it goes or stays: the free day and both prices are named."""
    tiers = Tiers(hot=STANDARD, cold=IR)
    early = decision(aged("cold"), PUT_NS + 30 * DAY_NS, tiers, **FORTNIGHT)
    read = 84 * (IR.read_usd(10**9) or 0) + (IR.put_usd(5009) or 0)
    assert (early.move, early.rule, early.free_at_ns) == (Move.KEEP, "deferred", PUT_NS + 90 * DAY_NS)
    assert early.usd_fee == read + 84 * IR.month_usd(10**9) * 2
    assert early.reason == "put off: stripped on 2026-04-01 it costs $2.62, now $3.29"
    due = decision(aged("cold"), PUT_NS + 90 * DAY_NS, tiers, **FORTNIGHT)
    assert (due.move, due.usd_fee) == (Move.STRIP, read)


def test_what_is_put_off_and_still_hot_is_let_go_there() -> None:
    """In both tiers: the hot copy goes as ever, and the cold one is stripped when that is free."""
    tiers = Tiers(hot=STANDARD, cold=IR)
    assert decision(aged("both"), PUT_NS + 30 * DAY_NS, tiers, **FORTNIGHT).move is Move.DEMOTE
    assert decision(aged("both"), PUT_NS + 90 * DAY_NS, tiers, **FORTNIGHT).move is Move.STRIP


def test_stripping_that_costs_more_than_all_that_is_left_to_pay_is_not_done() -> None:
    """Reading 84 GB back is 7.8 months of their storage: with less life left it never pays, however small it gets."""
    tiers = Tiers(hot=STANDARD, cold=IR)
    now_ns = PUT_NS + 90 * DAY_NS
    short = decision(aged("cold"), now_ns, tiers, **FORTNIGHT, expire_after_ns=(90 + 233) * DAY_NS)
    assert (short.move, short.rule) == (Move.KEEP, "break_even")
    assert (
        short.reason
        == "leaving its optimizer state away costs $2.62 and would not pay within the 233.0 days it has left"
    )
    longer = decision(aged("cold"), now_ns, tiers, **FORTNIGHT, expire_after_ns=(90 + 234) * DAY_NS)
    assert longer.move is Move.STRIP
    # While it waits for the free day it is billed in full, so that time does not count.
    waiting = decision(aged("cold"), PUT_NS + 30 * DAY_NS, tiers, **FORTNIGHT, expire_after_ns=(90 + 233) * DAY_NS)
    assert waiting.rule == "break_even"


def test_what_is_known_of_the_fees_is_a_lower_bound_where_a_price_is_unknown() -> None:
    """Google's requests are unknown to the table: it says so, and what can not pay by the rest alone is not done."""
    tiers = Tiers(hot=STANDARD, cold=storage_class("gs:COLDLINE"))
    early = decision(aged("cold"), PUT_NS + 30 * DAY_NS, tiers, **FORTNIGHT)
    assert early.reason == "put off: stripped on 2026-04-01 it costs at least $1.68, now at least $2.35"
    assert early.usd_fee is None
    due = decision(aged("cold"), PUT_NS + 90 * DAY_NS, tiers, **FORTNIGHT)
    assert (due.move, due.usd_fee) == (Move.STRIP, None)
    short = decision(aged("cold"), PUT_NS + 90 * DAY_NS, tiers, **FORTNIGHT, expire_after_ns=(90 + 150) * DAY_NS)
    assert (short.rule, short.usd_fee) == ("break_even", None)


def test_what_must_be_thawed_first_is_not_stripped() -> None:
    """An archive is not read on the way; what is still hot may be."""
    tiers = Tiers(hot=STANDARD, cold=storage_class("s3:DEEP_ARCHIVE"))
    asleep = decision(aged("cold"), PUT_NS + 400 * DAY_NS, tiers, **FORTNIGHT)
    assert (asleep.move, asleep.rule) == (Move.KEEP, "archived")
    assert decision(aged("hot"), PUT_NS + 400 * DAY_NS, tiers, **FORTNIGHT).move is Move.STRIP


RULES = st.one_of(
    st.builds(last, st.integers(1, 4)),
    st.builds(best, st.just("loss"), st.integers(1, 3), st.sampled_from(["min", "max"])),
    st.builds(lambda n, m: every(steps=n, at_most=m), st.integers(1, 30), st.none() | st.integers(1, 3)),
    st.builds(lambda h: every(hours=h), st.integers(1, 30)),
    st.builds(
        lambda h, d, w: thin(hourly=h, daily=d, weekly=w), st.integers(1, 5), st.integers(0, 3), st.integers(0, 2)
    ),
    st.builds(before_anomaly, st.integers(1, 2)),
    st.just(stage_end()),
    st.just(pinned()),
)
FACTS = st.lists(
    st.builds(
        lambda step, hours, loss, marks, tier: {
            "step": step,
            "saved_ns": WEEK_1 + hours * HOUR_NS,
            "metrics": {"loss": loss},
            "tier": tier,
            **dict.fromkeys(marks, True),
        },
        st.integers(0, 100),
        st.integers(0, 500),
        st.floats(allow_nan=True) | st.none(),
        st.sets(st.sampled_from(["pinned", "resumed_from"])),
        st.sampled_from(["hot", "cold", "both"]),
    ),
    max_size=12,
)
UNFINISHED = st.sets(st.integers(0, 11))


@given(FACTS, UNFINISHED, st.lists(RULES, min_size=1, max_size=3), st.integers(0, 2000), st.integers(0, 400))
def test_whatever_the_rules_the_newest_complete_one_and_the_pinned_stay(
    facts: list[dict[str, Any]], unfinished: set[int], rules: list[Rule], hours: int, life: int
) -> None:
    """transformers#25129, #11748: no combination of rules, ages and order deletes the newest or what is protected."""
    checkpoints = [
        Checkpoint(id=f"c{i}", order=i, complete=i not in unfinished, size_bytes=10, **fact)
        for i, fact in enumerate(facts)
    ]
    history = History(checkpoints=checkpoints, anomaly_steps={"": [50]})
    retention = Retention(
        keep=any_of(rules), expire_after_ns=life * HOUR_NS, strip_after_ns=life * HOUR_NS // 2, hot_quota_bytes=20
    )
    decided = plan(history, retention, WEEK_1 + hours * HOUR_NS)
    assert [d.id for d in decided] == [c.id for c in checkpoints]
    assert all(d.rule and d.reason for d in decided)
    gone = {d.id for d in decided if d.move is not Move.KEEP}
    protected = {c.id for c in checkpoints if c.pinned or c.resumed_from or not c.complete}
    complete = history.candidates()
    assert not gone & (protected | {c.id for c in complete[-1:]})
    expired = {d.id for d in decided if d.move in (Move.EXPIRE, Move.STRIP)}
    assert not expired & any_of(rules).kept(history)


@given(FACTS, st.lists(RULES, min_size=1, max_size=3))
def test_what_is_kept_is_kept_again_when_the_rest_is_gone(facts: list[dict[str, Any]], rules: list[Rule]) -> None:
    """Applying a plan changes nothing about the next one: no rule leans on what it lets go."""
    checkpoints = [Checkpoint(id=f"c{i}", order=i, **fact) for i, fact in enumerate(facts)]
    rule = any_of(rules)
    first = rule.kept(History(checkpoints=checkpoints, anomaly_steps={"": [50]}))
    left = [c for c in checkpoints if c.id in first]
    assert rule.kept(History(checkpoints=left, anomaly_steps={"": [50]})) == first


@pytest.mark.parametrize(
    ("wanted", "has_cold", "moves"),
    [
        ({}, True, ["expire", "keep", "keep"]),
        ({}, False, ["expire", "keep", "keep"]),
        ({"keep": by_model_checkpoint()}, True, ["demote", "keep", "keep"]),
        ({"keep": by_model_checkpoint(), "expire_after_ns": 0}, True, ["expire", "keep", "keep"]),
        ({"keep": by_model_checkpoint(), "demote": "none"}, True, ["expire", "keep", "keep"]),
        ({"keep": by_model_checkpoint()}, False, ["expire", "keep", "keep"]),
        ({"keep": every(steps=10)}, False, ["keep", "keep", "keep"]),
    ],
)
def test_what_model_checkpoint_has_let_go(wanted: dict[str, Any], has_cold: bool, moves: list[str]) -> None:
    """Without rules it is deleted; by its own rule it alone is moved, or deleted where nothing can be moved."""
    first, *others = saved(10, 20, 30)
    history = History(checkpoints=[replace(first, released=True), *others])
    decided = plan(history, Retention(**wanted), WEEK_1 + DAY_NS, Tiers(has_cold=has_cold))
    assert [d.move.value for d in decided] == moves


def test_each_run_is_measured_by_itself() -> None:
    """Two experiments in one folder have a newest, rules and a failure of their own; the quota is for both."""
    one, two = ([replace(c, id=f"{run}{c.step}", run=run, size_bytes=10) for c in saved(10, 20, 30)] for run in "ab")
    history = History(checkpoints=[*one, *two], failed={"b"})
    wanted = Retention(keep=last(2), failed_expire_after_ns=0)
    now_ns = WEEK_1 + DAY_NS
    moves = {d.id: d.move.value for d in plan(history, wanted, now_ns)}
    assert [moves[f"a{step}"] for step in (10, 20, 30)] == ["demote", "keep", "keep"]
    assert [moves[f"b{step}"] for step in (10, 20, 30)] == ["expire", "keep", "keep"]
    tight = {d.id: d.move.value for d in plan(history, replace(wanted, hot_quota_bytes=30), now_ns)}
    assert sorted(id for id, move in tight.items() if move == "keep") in (["a20", "a30", "b30"], ["a30", "b20", "b30"])
    none = {d.id: d.move.value for d in plan(history, replace(wanted, hot_quota_bytes=0), now_ns)}
    assert sorted(id for id, move in none.items() if move == "keep") == ["a30", "b30"]


def test_one_runs_rules_delete_nothing_of_anothers() -> None:
    """They may move it; deleting and stripping is for its own run's rules, unless they are meant for all."""
    theirs = [replace(c, id=f"a{c.step}", run="a", released=True) for c in saved(1, 2, 3)]
    ours = [replace(c, run="b", released=True) for c in saved(1, 2, 3)]
    history, now_ns = History(checkpoints=[*theirs, *ours]), WEEK_1 + 400 * DAY_NS
    for wanted, of_theirs, of_ours in (
        ({}, "keep", "expire"),
        ({"keep": last(1), "expire_after_ns": DAY_NS}, "keep", "expire"),
        ({"keep": last(1), "strip_after_ns": DAY_NS}, "keep", "strip"),
        ({"keep": last(1)}, "demote", "demote"),
    ):
        decided = [d.move.value for d in plan(history, Retention(run="b", **wanted), now_ns)]  # type: ignore[arg-type]
        assert decided == [of_theirs] * 2 + ["keep"] + [of_ours] * 2 + ["keep"], wanted
    assert [d.rule for d in plan(history, Retention(run="b"), now_ns)][:2] == ["other_run"] * 2
    for_all = plan(history, Retention(keep=last(1), expire_after_ns=DAY_NS), now_ns)
    assert [d.move.value for d in for_all] == ["expire", "expire", "keep"] * 2


def test_a_failed_run_may_keep_for_ever() -> None:
    """Whatever others lose; a tag says more than that."""
    of_failed = Retention(keep=last(1), expire_after_ns=DAY_NS, failed_expire_after_ns=FOR_EVER_NS)
    (first, *_) = saved(1, 2)
    assert of_failed.life_ns(first, failed=True) is None
    assert of_failed.life_ns(first, failed=False) == DAY_NS
    tagged = replace(of_failed, tagged_expire_after_ns={"debug": 5})
    assert tagged.life_ns(replace(first, tags={"debug": "yes"}), failed=True) == 5
    assert Retention.from_json(of_failed.to_json()) == of_failed


def test_two_files_of_one_save_take_one_place() -> None:
    """`last.ckpt` beside `step=3.ckpt` is no second best, and no second last."""
    one, two, three = (replace(c, metrics={"loss": 3.0 - c.order}) for c in saved(1, 2, 3))
    beside = replace(three, id="last", order=3)
    assert kept(best("loss", n=2), [one, two, three, beside]) == {"c3", "last", "c2"}
    assert kept(last(2), [one, two, three, beside]) == {"c3", "last", "c2"}
    again = replace(two, id="again", order=4, metrics={"loss": 9.0})  # another life of a step
    assert kept(best("loss", n=1), [one, two, again]) == {"c2"}
    assert kept(last(2), [one, two, three, again]) == {"c3", "again"}


def test_an_expiry_that_is_put_off_does_not_keep_the_hot_copy() -> None:
    """What is billed in the cold tier anyway need not be paid for on the hot disk too."""
    old, new = saved(1, 2)
    both = replace(old, tier="both", cold_since_ns=WEEK_1, size_bytes=10**9)
    tiers = Tiers(hot=storage_class("s3:STANDARD"), cold=storage_class("s3:DEEP_ARCHIVE"))
    wanted = Retention(keep=last(1), expire_after_ns=30 * DAY_NS)
    first, _ = plan(History(checkpoints=[both, new]), wanted, WEEK_1 + 40 * DAY_NS, tiers)
    assert (first.move.value, first.rule) == ("demote", "deferred")
    assert "put off" in first.reason
