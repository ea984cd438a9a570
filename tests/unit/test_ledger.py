"""Money made of quantities: exact sums, breakdowns that add up, and a replay that equals the live ledger."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import (
    HOUR_NS,
    NS,
    T0,
    TWO_DOLLARS,
    Attempt,
    Journal,
    assert_closes,
    assert_receipt_adds_up,
    examples,
    random_journal,
)
from costguard.ledger.devices import Paid
from costguard.ledger.fold import fold
from costguard.ledger.forecast import forecast_total
from costguard.ledger.ledger import Entry, Ledger, ledger_of, outcome_spend, price_ledger
from costguard.ledger.live import LiveAttempt
from costguard.ledger.page import read_page
from costguard.prices import Price, PriceBook
from costguard.reports.receipt import receipt_of
from costguard.testing import ManualClock
from costguard.units import round_money, round_shares

MILLIONTH = PriceBook(prices=(Price(amount="0.000001", unit="token"),))


def device(ns: int, start: int = 0, **fields: Any) -> Entry:
    return Entry(meter="device", quantity=ns, start_ns=T0 + start, end_ns=T0 + start + ns, **fields)


def test_a_million_millionths_are_one() -> None:
    """1,000,000 entries of a millionth of a dollar sum to exactly 1."""
    kinds = [
        Entry(meter="tokens", unit="token", quantity=1, start_ns=T0 + n, end_ns=T0 + n + 1, tags=(("n", str(n % 7)),))
        for n in range(1000)
    ]
    spend = price_ledger(Ledger(kinds * 1000, {1: MILLIONTH}))
    assert spend.total == 1
    assert sum(spend.by_tag["n"].values()) == 1
    assert sum(round_shares(spend.by_tag["n"]).values()) == Decimal(1)


def test_a_thousand_millionths_of_device_time_are_a_thousandth() -> None:
    """Device time sums as exactly: at $3.60 an hour a millisecond is a millionth of a dollar."""
    prices = PriceBook(prices=(Price(amount="3.6"),))
    entries = [device(1_000_000, n * 1_000_000, activity="train") for n in range(1000)]
    assert price_ledger(Ledger(entries, {1: prices})).total == Fraction(1, 1000)


def test_thirds_of_a_dollar_are_a_dollar() -> None:
    """What no decimal can hold is exact inside: an hour's price over three devices sums to the price."""
    entries = [device(HOUR_NS, activity="train", paid_devices=3) for _ in range(3)]
    spend = price_ledger(Ledger(entries, {1: PriceBook(prices=(Price(amount=1, unit="hour"),))}))
    assert spend.total == 1


# -- breakdowns ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_every_breakdown_of_random_ledgers_adds_up(seed: int) -> None:
    """Fifty runs of any shape a seed, a thousand in all: every table of every receipt adds up to its total exactly."""
    for number in range(50):
        random = Random(f"{seed}.{number}")
        account = random_journal(random).account()
        assert_closes(account)
        assert_receipt_adds_up(receipt_of(account, "/folder"))


ENTRIES = st.lists(
    st.builds(
        Entry,
        meter=st.sampled_from(["device", "tokens", "bytes"]),
        unit=st.sampled_from(["device_ns", "token", "byte"]),
        quantity=st.integers(0, 10**15),
        start_ns=st.integers(T0 - 10**12, T0 + 10**12),
        end_ns=st.integers(T0 + 10**12, T0 + 10**13),
        attempt=st.integers(1, 3),
        activity=st.sampled_from(["train", "idle", "validation"]),
        paid_devices=st.integers(1, 7),
        tags=st.sampled_from([(), (("team", "a"),), (("stage", "x"), ("team", "b"))]),
    ),
    max_size=12,
)
BOOKS = {
    1: PriceBook(prices=(Price(amount="2.49"), Price(amount="0.00001", unit="token"))),
    2: PriceBook(
        prices=(
            Price(amount="31.07", unit="hour"),
            Price(amount="7", unit="hour", valid_from="2024-01-15T08:10:00Z"),
            Price(amount="0.0000001", unit="byte", valid_from="2024-01-15T08:00:00Z"),
        )
    ),
    3: PriceBook(),
}


@given(ENTRIES)
@examples(150)
def test_every_meter_and_tag_adds_up(entries: list[Entry]) -> None:
    """Whatever is metered, exact sums and rounded ones agree with the total, and no quantity is lost."""
    spend = price_ledger(Ledger(entries, BOOKS))
    assert sum(spend.by_meter.values()) == spend.total
    assert sum(spend.by_activity.values()) == spend.device_total
    for parts in spend.by_tag.values():
        assert sum(parts.values()) == spend.total
        assert sum(map(Fraction, round_shares(parts).values())) == Fraction(round_money(spend.total))
    assert all(quantity >= 0 for quantity in spend.unpriced.values())


@given(ENTRIES, st.randoms(use_true_random=False))
@examples(100)
def test_the_order_of_entries_does_not_matter(entries: list[Entry], random: Random) -> None:
    """Merged in any order and in any grouping, a ledger costs the same."""
    expected = price_ledger(Ledger(entries, BOOKS))
    shuffled = random.sample(entries, len(entries))
    cut = random.randrange(len(entries) + 1)
    a, b = Ledger(shuffled[:cut], BOOKS), Ledger(shuffled[cut:], BOOKS)
    for merged in (a | b, b | a):
        assert price_ledger(merged) == expected


@pytest.mark.parametrize("seed", range(30))
def test_the_order_of_ranks_does_not_matter(seed: int) -> None:
    """The files of all ranks and attempts, in any order, make the same receipt to the last digit."""
    random = Random(f"order {seed}")
    journal = random_journal(random)
    files = journal.seat_files()
    expected = receipt_of(fold("r", files), "/f")
    for _ in range(3):
        assert receipt_of(fold("r", random.sample(files, len(files))), "/f") == expected


@pytest.mark.parametrize("seed", range(30))
def test_ranks_priced_apart_sum_to_the_run(seed: int) -> None:
    """Each rank's own ledger, added up in any order, is the run's."""
    random = Random(f"apart {seed}")
    account = random_journal(random).account()
    whole = ledger_of(account)
    parts = [Ledger([e], account.books) for e in whole.entries]
    random.shuffle(parts)
    merged = Ledger([], {})
    for part in parts:
        merged = part | merged
    assert price_ledger(merged) == price_ledger(whole) or not parts
    assert sum(price_ledger(part).total for part in parts) == price_ledger(whole).total


@pytest.mark.parametrize("seed", range(30))
def test_outcomes_are_priced_like_the_training_they_are(seed: int) -> None:
    """Kept and rework money add up to the money of training, neither negative."""
    account = random_journal(Random(f"outcomes {seed}")).account()
    outcomes = outcome_spend(account)
    assert sum(outcomes.values()) == price_ledger(ledger_of(account)).by_activity.get("train", 0)
    assert all(amount >= 0 for amount in outcomes.values())


@pytest.mark.parametrize("seed", range(30))
def test_the_ledger_has_every_second(seed: int) -> None:
    """The entries of a run are all of its device time, by activity."""
    account = random_journal(Random(f"seconds {seed}")).account()
    sums: dict[str | None, int] = {}
    for entry in ledger_of(account).entries:
        assert entry.quantity > 0
        sums[entry.activity] = sums.get(entry.activity, 0) + entry.quantity
    assert sums == {k: v for k, v in account.activities_ns().items() if v}


# -- prices that change, and prices that are not there -------------------------------------------------------------


def test_a_change_of_price_splits_an_entry() -> None:
    """An hour over a change at its middle costs half of each price, and no nanosecond is lost to rounding."""
    prices = PriceBook(prices=(Price(amount=1), Price(amount=3, valid_from="2024-01-15T08:30:00Z")))
    spend = price_ledger(Ledger([device(HOUR_NS, activity="train")], {1: prices}))
    assert spend.total == 2
    odd = Entry(meter="device", quantity=3, start_ns=T0 + HOUR_NS // 2 - 1, end_ns=T0 + HOUR_NS // 2 + 1)
    assert price_ledger(Ledger([odd], {1: prices})).total in (Fraction(1 + 2 * 3, HOUR_NS), Fraction(2 + 3, HOUR_NS))


def test_a_change_in_the_middle_of_a_run_knows_what_was_done_before_and_after() -> None:
    """With a line at the change, each activity is paid at the price of its own time."""
    book = PriceBook(prices=(Price(amount=1), Price(amount=3, valid_from="2024-01-15T09:00:00Z")))
    journal = Journal()
    attempt = journal.attempt(book=book)
    attempt.spend("data_wait", 3600)
    attempt.writer.tick()
    attempt.train(3600)
    attempt.close()
    spend = price_ledger(ledger_of(journal.account()))
    assert spend.by_activity == {"data_wait": 1, "train": 3}


def test_without_a_price_everything_is_metered_and_money_is_unknown() -> None:
    """No price: the quantities are all there, money is `None` and never zero, and the line to add is shown."""
    journal = Journal()
    attempt = journal.attempt(book=PriceBook())
    attempt.train(3600, 10)
    attempt.close()
    spend = price_ledger(ledger_of(journal.account()))
    assert (spend.priced, dict(spend.unpriced)) == (False, {("device", "device_ns"): 3600 * NS})
    receipt = receipt_of(journal.account(), "/f")
    money = receipt["spend"]
    assert (money["total"], money["device_total"], money["usd_per_hour"], money["per_million_tokens"]) == (None,) * 4
    assert money["unpriced"][0]["quantity"] == 3600 * NS
    assert "usd_per_gpu_hour" in money["unpriced"][0]["remedy"]
    assert receipt["time"]["elapsed_device_ns"] == 3600 * NS


def test_a_price_of_zero_is_zero_and_not_unknown() -> None:
    """One's own machine may cost nothing, and that is known."""
    journal = Journal()
    attempt = journal.attempt(book=PriceBook.for_run("x", 0, None))
    attempt.train(3600)
    attempt.close()
    money = receipt_of(journal.account(), "/f")["spend"]
    assert (money["total"], money["unpriced"]) == ("0", [])


@pytest.mark.parametrize("first", [True, False])
def test_a_run_that_is_priced_in_part_says_which(first: bool) -> None:
    """An attempt without a price is in no total and stands in `unpriced`, beside the money that is known."""
    journal = Journal()
    for book in (TWO_DOLLARS, PriceBook()) if first else (PriceBook(), TWO_DOLLARS):
        attempt = journal.attempt(book=book)
        attempt.train(3600)
        attempt.close()
    receipt = receipt_of(journal.account(), "/f")
    assert_receipt_adds_up(receipt)
    assert receipt["spend"]["total"] == "2"
    assert [u["quantity"] for u in receipt["spend"]["unpriced"]] == [3600 * NS]
    assert any(row["figure"] == "unpriced" for row in receipt["provenance"])


def test_a_price_that_begins_later_leaves_the_time_before_it_unpriced() -> None:
    """Time before the first price is unknown, not free."""
    book = PriceBook(prices=(Price(amount=2, valid_from="2024-01-15T09:00:00Z"),))
    journal = Journal()
    attempt = journal.attempt(book=book)
    attempt.train(2 * 3600)
    attempt.close()
    spend = price_ledger(ledger_of(journal.account()))
    assert spend.total == 2
    assert dict(spend.unpriced) == {("device", "device_ns"): HOUR_NS}


def test_two_currencies_are_not_added_up() -> None:
    """Two dollars and three euros are not five of anything: what is in no total is named."""
    journal = Journal()
    for amount, currency in (("2", "USD"), ("3", "EUR")):
        attempt = journal.attempt(book=PriceBook(prices=(Price(amount=amount),), currency=currency))
        attempt.train(3600)
        attempt.close()
    money = receipt_of(journal.account(), "/f")["spend"]
    assert (money["total"], money["currency"]) in ((None, "USD"), ("2", "USD"), ("3", "EUR"))


def test_last_months_run_can_be_priced_again() -> None:
    """Money is never stored as truth: another book tells what the same run would have cost."""
    journal = Journal()
    attempt = journal.attempt()
    attempt.train(3600)
    attempt.close()
    ledger = ledger_of(journal.account())
    assert price_ledger(ledger).total == 2
    assert price_ledger(ledger, PriceBook.for_run("x", "0.5", None)).total == Fraction(1, 2)


# -- the replay equals the live ledger -----------------------------------------------------------------------------

CHANGES = PriceBook(
    prices=(
        Price(amount="2.49"),
        Price(amount="1.03", valid_from="2024-01-15T08:00:07.000001Z", valid_until="2024-01-15T08:01:00Z"),
        Price(amount="3.333333", valid_from="2024-01-15T08:02:00Z"),
    )
)
WHOLE = PriceBook(prices=(Price(amount="7", unit="hour"), Price(amount="0.1", unit="hour", valid_from="2024-01-15")))
LATE = PriceBook(prices=(Price(amount="2", valid_from="2024-01-15T08:00:20Z"),))


def live_of(attempt: Attempt, journal: Journal, book: PriceBook, paid: Paid, world: int = 1) -> LiveAttempt:
    return LiveAttempt(
        journal.account(),
        book,
        paid,
        journal.folder,
        attempt.seat,
        world,
        journal.files,
        wall_offset_ns=journal.clock.wall_ns() - journal.clock.now_ns(),
    )


def replayed(journal: Journal) -> Fraction:
    return price_ledger(ledger_of(journal.account())).total


def work(attempt: Attempt, clock: ManualClock) -> None:
    """An odd number of nanoseconds of this and that, over every change of price."""
    for n in range(7):
        attempt.train(1.000000001 + n * 7.7, 10)
        attempt.spend("validation", 0.3333333)
        attempt.writer.tick()
        clock.jump_wall(n - 3)


@pytest.mark.parametrize("book", [TWO_DOLLARS, CHANGES, WHOLE], ids=["one", "changes", "whole"])
@pytest.mark.parametrize("idle", [0, 2])
def test_the_replay_of_one_attempt_equals_the_live_ledger(book: PriceBook, idle: int) -> None:
    """To the last digit, with prices that change in the middle, unused devices, and a wall clock that is set."""
    journal = Journal()
    attempt = journal.attempt(book=book, idle_devices=idle, paid_devices=1 + idle)
    live = live_of(attempt, journal, book, Paid(1 + idle, idle))
    work(attempt, journal.clock)
    at_the_end = live.spend_at(attempt.meter.state, journal.clock.now_ns())
    attempt.close()
    assert at_the_end == replayed(journal)


@pytest.mark.parametrize("before", [TWO_DOLLARS, CHANGES, WHOLE, PriceBook()], ids=["one", "changes", "whole", "none"])
@pytest.mark.parametrize("gap", ["held", "released"])
@pytest.mark.parametrize("end", ["die", "close"])
def test_the_replay_of_a_resumed_run_equals_the_live_ledger(before: PriceBook, gap: str, end: str) -> None:
    """With an attempt before it and a gap between them, billed or not, over changes of price."""
    journal = Journal()
    first = journal.attempt(book=before, gap=gap)
    work(first, journal.clock)
    first.save()
    first.train(3)
    first.close(exit_s=1) if end == "close" else first.die()
    journal.wait(77.000000007)
    attempt = journal.attempt(book=CHANGES, gap=gap)
    attempt.writer.resumed(1, 1)
    live = live_of(attempt, journal, CHANGES, Paid(1, 0))
    work(attempt, journal.clock)
    at_the_end = live.spend_at(attempt.meter.state, journal.clock.now_ns())
    attempt.close()
    assert [g.billed for g in journal.account().gaps] == [gap == "held"]
    assert at_the_end == replayed(journal)


@pytest.mark.parametrize("book", [TWO_DOLLARS, CHANGES, WHOLE], ids=["one", "changes", "whole"])
def test_the_replay_of_several_ranks_equals_the_live_ledger(book: PriceBook) -> None:
    """Ranks that began at different instants, two devices idle: the first rank's live figure is the receipt's."""
    journal = Journal()
    common = {"book": book, "world_size": 3, "paid_devices": 5}
    first = journal.attempt(idle_devices=2, **common)
    journal.wait(2.5)
    others = [journal.attempt(rank=r, **common) for r in (1, 2)]
    live = live_of(first, journal, book, Paid(5, 2), world=3)
    work(first, journal.clock)
    for other in others:
        other.train(4, 20)
    now = journal.clock.now_ns()
    pages = [p for f in journal.seat_files() if f.seat.rank and (p := read_page(f.page or b""))]
    assert len(pages) == 2
    at_the_end = live.spend_at(first.meter.state, now, pages)
    figures = live.figures(first.meter.state, now)
    for rank in (first, *others):
        rank.close()
    assert at_the_end == figures.spend == replayed(journal)
    account = journal.account()
    assert figures.device_ns == account.elapsed_device_ns
    assert figures.tokens == sum(r.final.counters.tokens or 0 for r in account.ranks) == 70 + 40


def test_the_replay_of_a_run_priced_in_part_equals_the_live_ledger() -> None:
    """A price that begins in the middle: what is known of the spend is the same, live and read back."""
    journal = Journal()
    attempt = journal.attempt(book=LATE)
    live = live_of(attempt, journal, LATE, Paid(1, 0))
    attempt.train(60)
    at_the_end = live.spend_at(attempt.meter.state, journal.clock.now_ns())
    attempt.close()
    assert at_the_end == replayed(journal)


def test_live_money_is_unknown_without_a_price() -> None:
    """The live figures leave out what is unknown; device time is there all the same."""
    journal = Journal()
    attempt = journal.attempt(book=PriceBook())
    live = live_of(attempt, journal, PriceBook(), Paid(1, 0))
    attempt.train(3600, 10)
    figures = live.figures(attempt.meter.state, journal.clock.now_ns())
    attempt.close()
    assert (figures.spend, figures.per_hour, figures.forecast, figures.mfu) == (None, None, None, None)
    metrics = figures.metrics()
    assert metrics["costguard/device_hours"] == 1
    assert not {"costguard/spend_usd", "costguard/usd_per_hour", "costguard/mfu_ratio"} & metrics.keys()


@pytest.mark.parametrize("seed", range(20))
def test_the_live_ledger_can_be_asked_at_any_time(seed: int) -> None:
    """At every tick of a run with a history of any shape, live money is what a reader finds at that instant."""
    random = Random(f"live {seed}")
    journal = random_journal(random)
    number = journal.account().attempts[-1] + 1
    attempt = journal.attempt(book=TWO_DOLLARS, gap=random.choice(["held", "released", "auto"]))
    live = live_of(attempt, journal, TWO_DOLLARS, Paid(1, 0))
    for _ in range(5):
        attempt.train(random.randrange(1, 10**10) / NS, 5)
        attempt.writer.tick()
        spend = live.spend_at(attempt.meter.state, journal.clock.now_ns())
        assert attempt.seat.attempt == number
        assert spend == replayed(journal)
    attempt.close()


# -- what a run will have cost -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ((10, Fraction(1, 2), 0, 0), 20),
        ((10, Fraction(1, 2), 4, Fraction(1, 4)), 22),
        ((10, Fraction(1), 4, 0), 10),
        ((10, Fraction(3, 2), 4, 0), 10),
        ((10, Fraction(0), 4, 0), None),
        ((10, Fraction(1, 4), 4, Fraction(1, 4)), None),
    ],
)
def test_the_forecast_goes_on_at_the_pace_of_this_attempt(now: Sequence[Any], expected: int | None) -> None:
    """What it took to begin comes once; without a pace there is no forecast."""
    spent, progress, begin_spent, begin_progress = (Fraction(x) for x in now)
    assert forecast_total(spent, progress, begin_spent, begin_progress) == expected
