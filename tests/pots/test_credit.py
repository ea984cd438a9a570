"""One run's credit: claimed, spent, told, given back, kept alive, swept, and what it does while the store is away."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from memory import MemoryStore

from costguard.errors import ConfigError, CostguardWarning, PotError
from costguard.pots import Credit, Pot
from costguard.testing import ManualClock

LEASE_S = 60


class Place:
    """A pot of 100 dollars on a store in memory."""

    def __init__(self, **options: object) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        given: dict[str, object] = {"limit_usd": 100, "lease_s": LEASE_S, **options}
        self.pot = Pot.create("memory", store=self.store, clock=self.clock, sleep=lambda s: None, **given)  # type: ignore[arg-type]

    def hold(self, **options: object) -> Credit:
        """A run in a process of its own."""
        pot = Pot.open("memory", store=self.store, clock=self.clock, sleep=lambda s: None)
        return pot.hold("run", **options)  # type: ignore[arg-type]


@pytest.fixture
def place() -> Place:
    return Place()


def test_what_is_claimed_may_be_spent_and_the_rest_goes_back(place: Place) -> None:
    """Ten claimed, a third of a dollar spent: the rest is free again, exactly, the spend rounded up once."""
    credit = place.hold()
    assert (credit.left, credit.allows("0.01")) == (0, False)
    grant = credit.claim(10)
    assert (grant.outcome, grant.amount, grant.left) == ("granted", 10, 10)
    assert credit.allows(10)
    assert not credit.allows("10.000000000001")
    credit.spend(Fraction(1, 3))
    assert credit.left == Decimal("9.666666666666")
    assert credit.refund() == Decimal("9.666666666666")
    status = place.pot.status()
    assert (status.claimed, status.spent, status.live) == (10, Decimal("0.333333333334"), 0)
    assert status.free == 100 - status.spent


def test_a_pot_in_gpu_hours_needs_no_price() -> None:
    """GPU-hours are counted as dollars are."""
    place = Place(limit_usd=None, limit_gpu_hours="0.5")
    grant = place.hold().claim("0.4")
    assert (grant.amount, place.pot.status().unit) == (Decimal("0.4"), "gpu_hours")
    assert grant.message == "0.4 GPU-hours claimed from the pot."


def test_the_last_of_a_pot_is_given_in_part_but_not_below_what_is_needed(place: Place) -> None:
    """No remainder is lost, and nothing is taken that would not do."""
    first, second = place.hold(), place.hold()
    first.claim("99.5")
    refused = second.claim(5, at_least=1)
    assert (refused.outcome, refused.amount) == ("empty", 0)
    assert "cannot give $5.00; raise its limit" in refused.message
    assert (second.claim(5).outcome, second.left) == ("partial", Decimal("0.5"))
    assert second.claim(1).outcome == "empty"
    place.pot.raise_limit(by=1, why="nearly done")
    assert second.claim(1).outcome == "granted"


def test_usual_claims_leave_no_more_than_two_percent_in_all_hands() -> None:
    """A hundred runs that burn a lot hold 2% of the pot at most, and each gets something."""
    place = Place()
    holders = [place.hold(burn_per_hour=50) for _ in range(100)]
    assert all(holder.claim().amount > 0 for holder in holders)
    assert place.pot.status().live <= 2
    assert holders[0].claim().amount > 0, "no false stop"


def test_a_usual_claim_is_ten_minutes_of_burn_or_a_thousandth(place: Place) -> None:
    """The larger of the two, and what cannot be done without where that is more."""
    assert place.hold(burn_per_hour="1.2").claim().amount == Decimal("0.2")
    assert place.hold(burn_per_hour="0.1").claim().amount == Decimal("0.1")
    assert place.hold().claim().amount == Decimal("0.1")
    assert place.hold().claim(at_least=7).amount == 7


def test_a_reply_that_was_lost_does_not_lose_the_claim(place: Place) -> None:
    """The object is there with our token: the claim is won, once."""
    credit = place.hold()
    credit.claim(1)
    place.store.fail("", "lost")  # the read of the next number, and its create
    grant = credit.claim(5)
    assert (grant.outcome, grant.amount, credit.left, credit.away) == ("granted", 5, 6, False)
    assert place.pot.status().claimed == 6


def test_a_client_that_repeats_a_request_by_itself_is_told_that_it_lost_and_has_won(place: Place) -> None:
    """The store answers "is there already" to our own object: the token says whose it is."""
    credit = place.hold()
    create = place.store.create_exclusive
    place.store.create_exclusive = lambda key, data: create(key, data) and False  # type: ignore[method-assign]
    grant = credit.claim(5)
    assert (grant.outcome, grant.left) == ("granted", 5)
    assert place.pot.status().claimed == 5


def test_a_claim_that_arrives_late_is_found_by_the_next_one(place: Place) -> None:
    """No answer in time, and the request arrives after we gave up: the credit is ours, not lost and not doubled."""
    credit = place.hold()
    credit.claim(1)
    place.store.fail("", "late", "away")
    grant = credit.claim(5)
    assert (grant.outcome, credit.left, credit.away) == ("away", 1, True)
    place.store.arrive()
    assert place.pot.status().claimed == 6
    assert credit.settle()
    assert (credit.left, credit.away) == (6, False)


# -- the store is away ---------------------------------------------------------------------------------------------


def test_with_the_store_away_the_credit_in_hand_is_spent_and_then_it_stops(place: Place) -> None:
    """`stop_at_credit`: what was claimed may be spent, no more."""
    credit = place.hold()
    credit.claim(2)
    place.store.fail(*["away"] * 50)
    assert credit.claim(1).outcome == "away"
    assert not credit.settle()
    assert not credit.beat()
    assert credit.allows(2)
    credit.spend(2)
    assert not credit.allows("0.01")


def test_with_the_store_away_it_goes_on_where_the_user_asks_for_that(place: Place) -> None:
    """`continue`: warned once, and the truth is booked when the store is back, even past the limit."""
    credit = place.hold(on_store_down="continue")
    credit.claim(99)
    assert not credit.allows(150)
    place.store.fail(*["away"] * 50)
    credit.claim(1)
    with pytest.warns(CostguardWarning, match="goes on without"):
        assert credit.allows(150)
    credit.spend(150)
    place.store.plan = []
    assert credit.settle()
    status = place.pot.status()
    assert (status.spent, status.overspent, status.free) == (150, 50, 0)
    assert status.claimed == status.spent + status.refunded + status.live
    assert place.hold().claim(1).outcome == "empty"


def test_a_refund_that_found_nobody_can_be_repeated(place: Place) -> None:
    """While the store is away nothing is given back; later all is, once."""
    credit = place.hold()
    credit.claim(3)
    place.store.fail("away")
    assert credit.refund() is None
    place.store.plan = []
    assert credit.refund() == 3
    assert credit.refund() == 0
    assert place.pot.status().refunded == 3
    with pytest.raises(PotError, match="has been given back"):
        credit.claim(1)


def test_a_refund_whose_reply_was_lost_is_not_made_twice(place: Place) -> None:
    """The second attempt finds the account closed by ourselves."""
    credit = place.hold()
    credit.claim(3)
    credit.spend(1)
    place.store.fail("", "lost", "away")
    assert credit.refund() is None
    place.store.plan = []
    assert credit.refund() is not None
    status = place.pot.status()
    assert (status.spent, status.refunded, status.live) == (1, 2, 0)


# -- leases --------------------------------------------------------------------------------------------------------


def test_credit_ends_with_its_lease_and_lives_again_after_a_beat(place: Place) -> None:
    """Without a sign of life for a lease nothing may be spent; a beat goes through the pot and brings it back."""
    credit = place.hold()
    credit.claim(5)
    place.clock.advance(LEASE_S - 1)
    assert credit.beat()
    place.clock.advance(LEASE_S - 1)
    assert credit.left == 5
    place.clock.advance(1)
    assert (credit.lapsed, credit.left, credit.allows("0.01")) == (True, 0, False)
    assert credit.beat()
    assert credit.left == 5


def test_a_lease_that_is_written_late_brings_no_credit_back_by_itself(place: Place) -> None:
    """It had run out and was swept meanwhile: until the pot has answered, nothing may be spent."""
    credit = place.hold()
    credit.claim(5)
    place.clock.advance(4 * LEASE_S)
    place.pot.sweep(lambda holder, run: 0)
    place.store.fail("", "away")  # the lease is taken, the pot gives no answer
    assert not credit.beat()
    assert (credit.lapsed, credit.left) == (True, 0)


def test_a_silent_holder_is_swept_after_three_leases_and_not_before(place: Place) -> None:
    """Its credit goes back; ages are those of the store's clock."""
    credit = place.hold()
    credit.claim(5)
    credit.spend(2)
    place.clock.advance(3 * LEASE_S)
    assert place.pot.sweep() == []
    place.clock.advance(1)
    assert place.pot.status().stranded == 5
    (swept,) = place.pot.sweep(lambda holder, run: "2" if (holder, run) == (credit.holder, "run") else None)
    assert (swept.spent, swept.presumed, swept.refunded) == (2, 0, 3)
    status = place.pot.status()
    assert (status.spent, status.refunded, status.live, status.stranded) == (2, 3, 0, 0)
    assert not [key for key in place.store.data if key.startswith("leases/")]
    assert place.pot.sweep() == []


def test_of_a_crashed_run_no_more_is_presumed_than_it_could_have_spent_in_a_lease(place: Place) -> None:
    """It burns 6 dollars an hour: in one lease of a minute 10 cents, told spend aside."""
    credit = place.hold(burn_per_hour=6)
    credit.claim(5)
    credit.spend(1)
    credit.beat()
    place.clock.advance(4 * LEASE_S)
    (swept,) = place.pot.sweep()
    assert (swept.spent, swept.presumed, swept.refunded) == (Decimal("1.1"), Decimal("0.1"), Decimal("3.9"))
    assert place.pot.status().stranded == Decimal("0.1")


def test_of_a_crashed_run_of_unknown_burn_all_is_presumed_spent(place: Place) -> None:
    """Unknown is not zero."""
    place.hold().claim(5)
    place.clock.advance(4 * LEASE_S)
    (swept,) = place.pot.sweep()
    assert (swept.spent, swept.presumed, swept.refunded) == (5, 5, 0)


def test_a_restarted_run_sweeps_its_own_dead_at_once(place: Place) -> None:
    """The next attempt knows from its journal what the dead one spent, and need not wait for the lease."""
    dead = place.hold()
    dead.claim(5)
    (swept,) = place.pot.sweep(lambda holder, run: Fraction(1, 3), dead=[dead.holder])
    assert swept.spent == Decimal("0.333333333334")


def test_a_run_that_was_taken_for_dead_finds_its_credit_gone_and_books_the_difference(place: Place) -> None:
    """It was swept while it was cut off: what it holds is nothing, and what it spent is booked once, all of it."""
    credit = place.hold()
    credit.claim(5)
    credit.spend(1)
    credit.settle()
    credit.spend(3)
    place.clock.advance(4 * LEASE_S)
    place.pot.sweep(lambda holder, run: 1)
    assert place.pot.status().spent == 1
    assert credit.left == 0
    grant = credit.claim(2)
    assert (grant.amount, credit.left) == (2, 2)
    status = place.pot.status()
    assert (status.spent, status.live) == (4, 2)
    assert credit.refund() == 2
    assert place.pot.status().spent == 4


def test_a_sweep_and_a_holder_that_comes_back_cannot_both_win(place: Place) -> None:
    """The holder renews between the sweeper's look and its entry: the sweeper loses the number and looks again."""
    credit = place.hold()
    credit.claim(5)
    place.clock.advance(4 * LEASE_S)
    create = place.store.create_exclusive

    def meanwhile(key: str, data: bytes) -> bool:
        place.store.create_exclusive = create  # type: ignore[method-assign]
        assert credit.beat()
        return create(key, data)

    place.store.create_exclusive = meanwhile  # type: ignore[method-assign]
    assert place.pot.sweep() == []
    assert credit.left == 5
    assert place.pot.status().live == 5


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["abc", -1, float("nan"), float("inf"), None, True])
def test_an_amount_that_is_none_is_refused_in_one_sentence(place: Place, value: object) -> None:
    """Claims and spends say who, what, why and the remedy."""
    credit = place.hold()
    with pytest.raises(ConfigError, match=r"^Credit\.spend\(amount=.*; expected US dollars such as"):
        credit.spend(value)  # type: ignore[arg-type]
    if value is not None:
        with pytest.raises(ConfigError, match=r"^Credit\.claim\(amount=.*; expected US dollars such as"):
            credit.claim(value)  # type: ignore[arg-type]


def test_a_negative_fraction_is_no_spend(place: Place) -> None:
    """Neither by itself nor as a total."""
    credit = place.hold()
    with pytest.raises(ConfigError, match="negative"):
        credit.spend(Fraction(-1, 3))
    credit.spend_to(3)
    credit.spend_to(Fraction(1, 2))
    assert credit.spent_of_holder == 3


@pytest.mark.parametrize("run", ["", " ", None, 7])
def test_a_run_without_a_name_is_refused(place: Place, run: object) -> None:
    """Its claims could not be told from others'."""
    with pytest.raises(ConfigError, match="expected the name of the run"):
        place.pot.hold(run)  # type: ignore[arg-type]


def test_an_unknown_policy_is_refused(place: Place) -> None:
    """The two that there are are named."""
    with pytest.raises(ConfigError, match="'stop_at_credit' or 'continue'"):
        place.hold(on_store_down="panic")


def test_a_holder_that_begins_again_has_a_lease_of_its_own() -> None:
    """A refund whose reply was lost, then another claim: when the run dies its credit is swept like any other."""
    clock = ManualClock()
    store = MemoryStore(clock)
    pot = Pot.create("memory", limit_usd=100, lease_s=60, store=store, clock=clock, sleep=lambda s: None)
    credit = Pot.open("memory", store=store, clock=clock, sleep=lambda s: None).hold("run")
    assert credit.beat()
    first = credit.holder
    store.fail("", "lost", "away")
    assert credit.refund() is None
    assert credit.claim().amount > 0
    assert credit.holder != first
    assert f"leases/{credit.holder}.json" in store.data
    clock.advance(240)
    assert [swept.holder for swept in pot.sweep()] == [credit.holder]
    assert pot.status().live == 0
