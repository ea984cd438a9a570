"""What the receipt says of checkpoints: to the cent by hand, unknown where a price is, and never counted twice."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from builders import NS, T0, Attempt, Journal, assert_receipt_adds_up
from costguard.checkpoints.hot import FileFact, HotFiles
from costguard.checkpoints.inventory import Inventory
from costguard.checkpoints.lives import Life, life_of, lives_in
from costguard.checkpoints.record import Record
from costguard.prices import Price, PriceBook, StorageClass
from costguard.prices.storage import DAY_NS, GB, storage_class
from costguard.reports.html import render_html
from costguard.reports.receipt import receipt_of
from costguard.reports.text import render_text

PART_BYTES = 50 << 20
TWENTY = PriceBook.for_run("test", "2.50", None)
"""$20 an hour for eight GPUs."""
HOT, COLD = storage_class("s3:STANDARD"), storage_class("s3:GLACIER_IR")
NOTED: dict[str, Any] = {"run": "training", "hot": HOT.to_json(), "cold": COLD.to_json(), "part_bytes": PART_BYTES}
SIZE = 84 * GB


def attempt_of(journal: Journal, **header: Any) -> Attempt:
    """Eight GPUs with one process."""
    return journal.attempt(**{"book": TWENTY, "paid_devices": 8, "idle_devices": 7, **header})


def save(attempt: Attempt, blocked_s: float = 30, path: str | None = None, *, weights_only: bool = False) -> None:
    """Write a checkpoint while all devices stand still."""
    number = None if weights_only else attempt.save()
    attempt.spend("checkpoint", blocked_s)
    attempt.writer.saved(
        save=number,
        path=path or f"/run/step={attempt.step}.ckpt",
        step=attempt.step,
        bytes=SIZE,
        blocked_ns=round(blocked_s * NS),
        mark=None,
    )
    attempt.meter.enter(5)


def life(step: int, saved_days: float, **more: Any) -> Life:
    """A checkpoint that was saved so many days after `T0`."""
    saved_ns = T0 + round(saved_days * DAY_NS)
    facts = {"id": f"id{step}", "path": f"/run/step={step}.ckpt", "run": "training", "size_bytes": SIZE, "tier": "hot"}
    return Life(**{**facts, "step": step, "saved_ns": saved_ns, **more})


def cold_life(step: int, saved_days: float, **more: Any) -> Life:
    """One that was moved at once."""
    saved_ns = T0 + round(saved_days * DAY_NS)
    return life(step, saved_days, tier="cold", cold_since_ns=saved_ns, hot_before_ns=0, requests=1606, **more)


def told(*lives: Life, now_days: float = 30, folder: str = "/nowhere", **noted: Any) -> dict[str, Any]:
    """The receipt of a run that has told its journal of these."""
    journal = Journal()
    attempt = attempt_of(journal)
    attempt.train(600)
    save(attempt)
    attempt.writer.fact("checkpoints", **{"list": folder, **NOTED, **noted})
    for each in lives:
        attempt.writer.checkpoint(**each.to_json())
    attempt.train(600)
    attempt.close()
    receipt = receipt_of(journal.account(), "/run", T0 + round(now_days * DAY_NS))
    assert_receipt_adds_up(receipt)
    json.dumps(receipt, allow_nan=False)
    return receipt


def cents(amount: str | None) -> str | None:
    return None if amount is None else str(round(Decimal(amount), 2))


# -- saves ------------------------------------------------------------------------------------------------------------


def test_blocked_time_has_median_and_p95_and_is_part_of_the_total() -> None:
    """Twenty saves of 1 to 20 s on devices of $20 an hour: 210 s are $1.17, once."""
    journal = Journal()
    attempt = attempt_of(journal)
    for seconds in range(1, 21):
        attempt.train(100)
        save(attempt, seconds)
    attempt.close()
    receipt = receipt_of(journal.account(), "/run")
    saves = receipt["checkpoint_costs"]["saves"]
    assert (saves["count"], saves["bytes"], saves["blocked_s"]) == (20, 20 * SIZE, 210)
    assert (saves["blocked_median_s"], saves["blocked_p95_s"]) == (10.5, 19)
    assert cents(saves["money"]) == "1.17"
    # One process of eight paid devices: its own save time is an eighth, the other seven are idle meanwhile.
    assert Decimal(saves["money"]) == pytest.approx(8 * Decimal(receipt["spend"]["by_activity"]["checkpoint"]))
    assert_receipt_adds_up(receipt)
    assert receipt["checkpoint_costs"]["storage"] is None
    assert "storage " not in render_text(receipt)


def test_a_run_without_a_save_has_no_costs_of_checkpoints() -> None:
    """Nothing is made up, and no section is shown."""
    journal = Journal()
    attempt_of(journal).train(10).close()
    receipt = receipt_of(journal.account(), "/run")
    costs = receipt["checkpoint_costs"]
    assert (costs["saves"]["count"], costs["saves"]["blocked_median_s"]) == (0, None)
    assert (costs["storage"], costs["each"], costs["interval"]) == (None, [], None)
    assert "CHECKPOINTS" not in render_text(receipt)
    assert "What checkpoints cost" not in render_html(receipt)


# -- storage ----------------------------------------------------------------------------------------------------------


def test_each_checkpoint_and_the_sums_to_the_cent() -> None:
    """Hot for a week and deleted: $0.45. Thirty days in Glacier IR, restored once: see each figure."""
    deleted = life(1, 0, ended_ns=T0 + 7 * DAY_NS)
    cold = cold_life(2, 0, restores=1)
    receipt = told(deleted, cold)
    first, second = receipt["checkpoint_costs"]["each"]
    assert (first["tier"], cents(first["hot"]), first["cold"], first["per_month"]) == ("deleted", "0.45", "0", "0")
    assert (first["one_restore"], first["restore_hours"]) == (None, None)
    assert second["tier"] == "cold"
    figures = {name: cents(second[name]) for name in ("requests", "hot", "cold", "reads", "early", "per_month")}
    assert figures == {
        "requests": "0.03",
        "hot": "0.00",
        "cold": "0.34",
        "reads": "2.52",
        "early": "0.67",
        "per_month": "0.34",
    }
    assert cents(second["one_restore"]) == "2.52"
    storage = receipt["checkpoint_costs"]["storage"]
    assert (storage["there"], storage["deleted"], storage["unseen"]) == (1, 1, 0)
    assert storage["gb_months"] == {"hot": pytest.approx(84 * 7 / 30), "cold": pytest.approx(84)}
    assert (storage["requests"], storage["restores"], storage["checks"]) == (1606, 1, 0)
    assert {name: cents(amount) for name, amount in storage["money"].items()} == {
        "hot": "0.45",
        "cold": "0.34",
        "requests": "0.03",
        "reads": "2.52",
        "early": "0.00",
        "total": "3.34",
    }
    assert (cents(storage["money_per_month"]), cents(storage["money_if_deleted_now"])) == ("0.34", "0.67")


def test_what_a_save_held_up_is_the_journals_figure() -> None:
    """The row of a checkpoint shows what its save cost in the sum, not another measurement of it."""
    receipt = told(life(1, 0))
    (row,) = receipt["checkpoint_costs"]["each"]
    assert (row["blocked_s"], cents(row["blocked"])) == (30, "0.17")
    assert row["blocked"] == receipt["checkpoint_costs"]["saves"]["money"]


def test_what_was_made_of_another_checkpoint_held_nothing_up() -> None:
    """A stripped copy has the step and the name of the full one: the save is shown once, with what was saved."""
    full = life(1, 0, blocked_ns=29 * NS, ended_ns=T0 + DAY_NS)
    stripped = cold_life(1, 0, id="stripped", blocked_ns=0)
    rows = {row["id"]: row for row in told(full, stripped)["checkpoint_costs"]["each"]}
    assert (rows["id1"]["blocked_s"], rows["stripped"]["blocked_s"], rows["stripped"]["blocked"]) == (30, 0, "0")


def test_a_deletion_before_the_minimum_was_billed() -> None:
    """Moved and deleted the same minute: all 90 days, $1.01, which what is there now adds nothing to."""
    regret = cold_life(1, 0, ended_ns=T0)
    storage = told(regret)["checkpoint_costs"]["storage"]
    assert (cents(storage["money"]["early"]), storage["money"]["cold"]) == ("1.01", "0")
    assert (storage["money_per_month"], storage["money_if_deleted_now"]) == ("0", "0")


def test_storage_is_in_no_total() -> None:
    """The device money is the same with it and without."""
    with_it, without = told(cold_life(1, 0)), told()
    assert with_it["spend"] == without["spend"]
    assert "beside the total" in render_text(with_it)


@pytest.mark.parametrize(
    ("noted", "known", "unknown"),
    [
        ({"hot": None}, {"cold", "requests", "reads", "early"}, {"hot", "total"}),
        ({"cold": None}, {"hot"}, {"cold", "requests", "reads", "total"}),
        ({"cold": storage_class("az:Cool").to_json()}, {"hot", "cold"}, {"requests", "reads", "total"}),
        ({"cold": {"of": "another version"}}, {"hot"}, {"cold", "total"}),
    ],
)
def test_a_price_that_is_unknown_makes_unknown_what_needs_it(
    noted: dict[str, Any], known: set[str], unknown: set[str]
) -> None:
    """And nothing else; the sentence says which class to name, and no zero stands for what is unknown."""
    receipt = told(cold_life(1, 0, restores=1), life(2, 0), **noted)
    money = receipt["checkpoint_costs"]["storage"]["money"]
    assert {name for name in money if money[name] is None} >= unknown
    assert {name for name in money if money[name] is not None} >= known
    text = render_text(receipt)
    assert "unknown" in text
    if noted.get("hot", 0) is None:
        assert 'CheckpointTiering(hot_class="ebs:gp3")' in text
    assert "unknown    checkpoint storage" in text
    render_html(receipt)


def test_nothing_cold_costs_nothing_cold_whatever_the_class() -> None:
    """A run whose checkpoints all stayed needs no price of a cold store."""
    money = told(life(1, 0), cold=None)["checkpoint_costs"]["storage"]["money"]
    assert (money["cold"], money["requests"], money["reads"]) == ("0", "0", "0")
    assert cents(money["total"]) == "1.93"


def test_a_users_own_prices_go_along() -> None:
    """A contract's price of a gigabyte is the receipt's, with its source in the provenance."""
    own = StorageClass(name="IR", usd_per_gb_month="0.0033", minimum_days=90, source="contract 7", as_of="2026-10")
    receipt = told(cold_life(1, 0), cold=own.to_json())
    assert cents(receipt["checkpoint_costs"]["storage"]["money_per_month"]) == "0.28"
    (row,) = [row for row in receipt["provenance"] if row["figure"] == "checkpoint storage"]
    assert "IR: contract 7, 2026-10" in row["text"]


def test_the_later_word_of_a_checkpoint_holds_over_attempts() -> None:
    """A restart moves what the first attempt saved: one checkpoint, as it was last told of."""
    journal = Journal()
    for number, each in ((1, life(1, 0)), (2, cold_life(1, 0))):
        attempt = attempt_of(journal)
        attempt.writer.fact("checkpoints", list="/nowhere", **NOTED)
        attempt.writer.checkpoint(**each.to_json())
        attempt.train(10).close()
        assert attempt.seat.attempt == number
    rows = receipt_of(journal.account(), "/run", T0 + DAY_NS)["checkpoint_costs"]["each"]
    assert [(row["id"], row["tier"]) for row in rows] == [("id1", "cold")]


# -- the list ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    (tmp_path / "list").mkdir()
    return Inventory(str(tmp_path / "list"), HotFiles())


def listed(inventory: Inventory, each: Life, state: str, **facts: Any) -> None:
    """Put a checkpoint on the list as it is now."""
    files = (FileFact("", "file", each.size_bytes),)
    facts = {"step": each.step, "saved_ns": each.saved_ns, "cold_since_ns": each.cold_since_ns, **facts}
    record = Record(
        id=each.id, path=each.path, order=each.step, fingerprint=files, state=state, run="training", **facts
    )  # type: ignore[arg-type]
    inventory.save(record)


def test_the_list_says_what_was_done_after_training(inventory: Inventory) -> None:
    """Moved, taken up by an attempt that died before it told, deleted by hand, unreadable: each as it is now."""
    moved, new, gone, torn, other = life(1, 0), life(2, 0), cold_life(3, 0), life(4, 0), life(5, -1)
    listed(inventory, cold_life(1, 0), "cold", hot_before_ns=0, reads=2)
    listed(inventory, new, "hot")
    Path(inventory.folder, "id4.json").write_text("{")
    listed(inventory, other, "hot")  # saved before this run began: of one that it was resumed from
    receipt = told(moved, gone, torn, folder=inventory.folder)
    costs = receipt["checkpoint_costs"]
    assert {row["id"]: row["tier"] for row in costs["each"]} == {
        "id1": "cold",
        "id2": "hot",
        "id3": "unseen",
        "id4": "hot",
    }
    assert costs["storage"]["source"] == "list"
    assert (costs["storage"]["there"], costs["storage"]["unseen"], costs["storage"]["restores"]) == (3, 1, 2)
    (unseen,) = [row for row in costs["each"] if row["tier"] == "unseen"]
    assert (unseen["cold"], unseen["per_month"], unseen["early"]) == (None, None, None)
    assert cents(costs["storage"]["money"]["total"]) is not None
    assert "1 more were deleted when nobody looked" in render_text(receipt)


def test_without_the_list_the_journal_alone_is_said_to_be_the_source(inventory: Inventory) -> None:
    """On another machine the receipt is as training left it, and says so."""
    folder = inventory.folder
    listed(inventory, life(1, 0), "hot")
    assert set(lives_in(folder, PART_BYTES) or {}) == {"id1"}
    shutil.rmtree(folder)
    assert lives_in(folder, PART_BYTES) is None
    receipt = told(cold_life(1, 0), folder=folder)
    assert receipt["checkpoint_costs"]["storage"]["source"] == "journal"
    assert "what was moved or deleted after training is not known" in " ".join(render_text(receipt).split())


# -- a life -----------------------------------------------------------------------------------------------------------


def test_time_on_the_hot_disk_adds_up_over_moves() -> None:
    """Hot, let go, brought back, let go: every stay counts once; one that nobody saw end ends with its copy."""
    day = DAY_NS
    record = Record(id="a", path="/a", order=1, saved_ns=T0)
    assert life_of(record, PART_BYTES).hot_ns(T0 + 3 * day) == 3 * day
    record = replace(record, state="cold", cold_since_ns=T0 + 2 * day, **record.hot_ended(T0 + 3 * day))
    assert life_of(record, PART_BYTES).hot_ns(T0 + 9 * day) == 3 * day
    record = replace(record, state="both", hot_since_ns=T0 + 10 * day)
    assert life_of(record, PART_BYTES).hot_ns(T0 + 12 * day) == 5 * day
    record = replace(record, state="cold", **record.hot_ended(T0 + 14 * day))
    assert life_of(record, PART_BYTES).hot_ns(T0 + 99 * day) == 7 * day
    assert life_of(record, PART_BYTES).cold_ns(T0 + 99 * day) == 97 * day
    unseen = Record(id="a", path="/a", order=1, saved_ns=T0, state="cold", cold_since_ns=T0 + 2 * day)
    assert life_of(unseen, PART_BYTES).hot_ns(T0 + 9 * day) == 2 * day
    back = replace(unseen, state="both", hot_since_ns=T0 + 9 * day)
    assert life_of(back, PART_BYTES).hot_ns(T0 + 10 * day) == 3 * day


def test_a_life_survives_json() -> None:
    """With what a later version adds left out."""
    each = cold_life(1, 0, due_ns=T0, restores=3)
    assert Life.from_json({**json.loads(json.dumps(each.to_json())), "k": "checkpoint", "new": 1}) == each


# -- how often to save ------------------------------------------------------------------------------------------------


def failing_run(train_s: int = 600, saves: int = 6, then: int = 300, **header: Any) -> Journal:
    """Saves every ten minutes for 30 s, fails five minutes after the last, and is done again from there to its end."""
    journal = Journal()
    first = attempt_of(journal, **header)
    for _ in range(saves):
        first.train(train_s)
        save(first)
        save(first, 0.5, "/run/last.ckpt")  # beside another at one step: no second interval
    first.train(then)
    first.close(reason="RuntimeError: CUDA error")
    second = attempt_of(journal, **header)
    second.resume(1, 2 * saves, first.step - 1)
    second.train(then)
    save(second, 30, weights_only=True)  # nothing can go on from it
    second.close()
    return journal


def test_the_interval_of_a_run_that_failed_once() -> None:
    """Every ten minutes, 30.5 s a save, one failure in 8.7 device-hours on the prior; what it lost, to the cent."""
    receipt = receipt_of(failing_run().account(), "/run")
    interval = receipt["checkpoint_costs"]["interval"]
    assert (interval["observed_s"], interval["gaps"], interval["blocked_s"]) == (600, 5, 30.5)
    assert (interval["failures"], interval["money_per_hour"], interval["money_per_checkpoint"]) == (1, "20", None)
    assert interval["trained_s"] == 6 * 600 + 2 * 300
    # (6 x 30.5 s + 30 s) of eight devices stood still, and for 300 s they did the same again.
    assert interval["lost"]["device_hours"] == pytest.approx(8 * (6 * 30.5 + 30 + 300) / 3600)
    assert cents(interval["lost"]["money"]) == "2.85"
    seconds = [interval["failure_s"][name] for name in ("low", "middle", "high")]
    assert seconds == sorted(seconds)
    assert seconds[1] == pytest.approx(3600 * (50_677 + interval["device_hours"]) / 2 / 8, rel=1e-5)
    assert interval["advised_s"]["middle"] == pytest.approx((2 * seconds[1] * 30.5) ** 0.5)
    # One failure loses half of what was trained, since no save would have been made by then.
    hours = interval["lost_at_advised"]["device_hours"]
    assert hours == dict.fromkeys(("low", "middle", "high"), pytest.approx(8 * 4200 / 2 / 3600))
    assert cents(interval["lost_at_advised"]["money"]["middle"]) == "11.67"
    text = " ".join(render_text(receipt).split())
    assert "every 10 min 0 s at the median of 5; advised is every" in text
    assert "1 failure that lost work" in text
    assert "Failures are not the risk of this run" in text
    assert "it would have been 4.667 = $11.67" in text


def test_money_of_the_interval_is_a_range_and_unknown_without_a_price() -> None:
    """Hours are known all the same."""
    priced = receipt_of(failing_run().account(), "/run")["checkpoint_costs"]["interval"]
    now, best = priced["money_per_hour_now"], priced["money_per_hour_advised"]
    assert Decimal(now["low"]) < Decimal(now["middle"]) < Decimal(now["high"])
    assert Decimal(best["high"]) < Decimal(now["low"])
    unpriced = receipt_of(failing_run(book=PriceBook()).account(), "/run")
    interval = unpriced["checkpoint_costs"]["interval"]
    assert interval["lost"]["device_hours"] == priced["lost"]["device_hours"]
    assert interval["advised_s"] == priced["advised_s"]
    for name in ("money_per_hour", "money_per_hour_now", "money_per_hour_advised"):
        assert interval[name] is None
    assert (interval["lost"]["money"], interval["lost_at_advised"]["money"]) == (None, None)
    render_html(unpriced)


@pytest.mark.parametrize(
    ("lives", "usd"),
    [
        # Deleted after a week: storage on the hot disk alone.
        ([life(n, 0, ended_ns=T0 + 7 * DAY_NS) for n in (1, 2, 3)], "0.45"),
        # To be deleted after a year in Glacier IR: 12 1/6 months, and the requests.
        ([cold_life(n, 0, due_ns=T0 + 365 * DAY_NS) for n in (1, 2, 3)], "4.12"),
        # Two of three stay for ever, whatever the third cost.
        ([life(1, 0, ended_ns=T0 + 7 * DAY_NS), life(2, 0), life(3, 0)], None),
        # Two of three go: the one that stays is dearer than either.
        ([life(1, 0, ended_ns=T0 + 7 * DAY_NS), life(2, 0, ended_ns=T0 + 9 * DAY_NS), life(3, 0)], "0.58"),
    ],
)
def test_what_one_checkpoint_costs_until_it_is_deleted(lives: list[Life], usd: str | None) -> None:
    """The median over those whose end is known or due; a dear checkpoint is advised more seldom."""
    receipt = told(*lives)
    interval = receipt["checkpoint_costs"]["interval"]
    assert cents(interval["money_per_checkpoint"]) == usd
    own_s = float(interval["money_per_checkpoint"] or 0) / 20 * 3600
    advised = (2 * interval["failure_s"]["middle"] * (30 + own_s)) ** 0.5
    assert interval["advised_s"]["middle"] == pytest.approx(advised)


def test_dollars_of_storage_are_not_added_to_another_currency() -> None:
    """A run in euros: a checkpoint's own price is left out of the advice, and its storage stays in dollars."""
    book = PriceBook(prices=(Price(amount="2.50"),), currency="EUR")
    journal = Journal()
    attempt = attempt_of(journal, book=book)
    attempt.train(600)
    save(attempt)
    attempt.writer.fact("checkpoints", list="/nowhere", **NOTED)
    attempt.writer.checkpoint(**life(1, 0, ended_ns=T0 + 7 * DAY_NS).to_json())
    attempt.close()
    receipt = receipt_of(journal.account(), "/run", T0 + 30 * DAY_NS)
    assert receipt["checkpoint_costs"]["interval"]["money_per_checkpoint"] is None
    text = render_text(receipt)
    assert "€0.1667, in the total above" in text
    assert "= hot $0.4508" in text


def test_a_run_that_only_saves_weights_gets_no_advice() -> None:
    """Nothing can go on from them, so that no interval saves any work."""
    journal = Journal()
    attempt = attempt_of(journal)
    attempt.train(600)
    save(attempt, weights_only=True)
    attempt.close()
    assert receipt_of(journal.account(), "/run")["checkpoint_costs"]["interval"] is None


def test_the_page_shows_what_the_text_says() -> None:
    """Every sentence, and a row for each of the last checkpoints."""
    receipt = told(*(cold_life(n, 0) for n in range(1, 26)))
    html = render_html(receipt)
    assert "What checkpoints cost" in html
    assert "How often to save" in html
    assert "5 earlier checkpoints not shown." in html
    assert "and 13 earlier ones" in render_text(receipt)
    for sentence in receipt["checkpoint_costs"]["interval"]["sentences"][1:]:
        assert sentence.replace("'", "&#x27;") in html
