"""Whatever happens to runs and store in whatever order, a pot's sums close and nothing is spent that is not there."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from fractions import Fraction

import hypothesis.strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from memory import MemoryStore
from racers import assert_no_voucher_won_twice

from builders import examples
from costguard.errors import PotAwayError
from costguard.pots import Credit, Pot
from costguard.testing import ManualClock

LIMIT = 100
LEASE_S = 60
AMOUNTS = st.sampled_from(["0.1", "1", "7", "33", "200"])


class Runs(RuleBasedStateMachine):
    """Runs that claim, spend, fall silent, die and come back, on a store that fails in every way."""

    soft_runs: int | None = None
    failures = ("", "away", "lost", "late")

    credits = Bundle("credits")

    @initialize()
    def make(self) -> None:
        """An empty store, a pot of 100 dollars."""
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.pot = Pot.create(
            "memory",
            limit_usd=LIMIT,
            voucher=50,
            lease_s=LEASE_S,
            soft_runs=self.soft_runs,
            store=self.store,
            clock=self.clock,
            sleep=lambda s: None,
        )
        self.alive: list[Credit] = []
        self.really: dict[int, Fraction] = {}
        self.limit = Decimal(LIMIT)
        self.presuming = False
        self.all: list[Credit] = []

    @rule(target=credits)
    def hold(self) -> Credit:
        """A run begins, in a process of its own."""
        plan, self.store.plan = self.store.plan, []
        pot = Pot.open("memory", store=self.store, clock=self.clock, sleep=lambda s: None)
        self.store.plan = plan
        credit = pot.hold("run")
        self.alive.append(credit)
        self.all.append(credit)
        self.really[id(credit)] = Fraction(0)
        return credit

    @rule(credit=credits, amount=AMOUNTS, at_least=st.sampled_from(["0", "1"]))
    def claim(self, credit: Credit, amount: str, at_least: str) -> None:
        """It claims; what it is told to have is what it has."""
        before = credit.left
        grant = credit.claim(amount, at_least=at_least)
        assert grant.left == credit.left
        if grant.outcome == "away":
            assert credit.left == before or credit.lapsed or grant.amount == 0
        else:
            assert not credit.away

    @rule(credit=credits)
    def claim_as_usual(self, credit: Credit) -> None:
        """It leaves the size to the pot."""
        credit.claim()

    @rule(credit=credits, amount=st.sampled_from(["0.1", "3", "50"]) | st.just(Fraction(1, 3)))
    def spend(self, credit: Credit, amount: str | Fraction) -> None:
        """It spends where it is allowed to."""
        if credit.allows(amount):
            credit.spend(amount)
            self.really[id(credit)] += Fraction(amount)

    @rule(credit=credits)
    def settle(self, credit: Credit) -> None:
        """It tells what it spent."""
        credit.settle()

    @rule(credit=credits)
    def beat(self, credit: Credit) -> None:
        """It gives a sign of life."""
        credit.beat()

    @rule(target=credits, credit=consumes(credits))
    def refund(self, credit: Credit) -> object:
        """It ends, where the store answers."""
        if credit.refund() is None:
            return credit
        self.alive.remove(credit)
        return multiple()

    @rule(credit=consumes(credits))
    def crash(self, credit: Credit) -> None:
        """It dies without a word."""
        self.alive.remove(credit)

    @rule(seconds=st.sampled_from([1, LEASE_S - 1, LEASE_S, LEASE_S * 4]))
    def wait(self, seconds: int) -> None:
        """Time goes by."""
        self.clock.advance(seconds)

    @rule()
    def sweep(self) -> None:
        """Somebody sweeps who knows nothing of the dead."""
        try:
            swept = self.pot.sweep()
        except PotAwayError:
            self.presuming = True
        else:
            self.presuming |= any(each.presumed for each in swept)

    @rule()
    def sweep_with_the_truth(self) -> None:
        """Somebody sweeps who knows what each has spent, so that all else goes back to the pot."""
        truth = {each.holder: each.spent_of_holder for each in self.all}
        with contextlib.suppress(PotAwayError):
            self.pot.sweep(lambda holder, run: truth.get(holder))

    @rule(by=st.sampled_from(["1", "50"]))
    def raise_limit(self, by: str) -> None:
        """Somebody raises the limit, and repeats it until it is known to be done."""
        to = self.limit + Decimal(by)
        while True:
            try:
                self.pot.raise_limit(to=to, why="more")
            except PotAwayError:
                self.store.plan = []
                self.store.arrive()
                if self.pot.status().limit == to:
                    break
            else:
                break
        self.limit = to

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """The store will fail at some of the next calls."""
        self.store.fail(*data.draw(st.lists(st.sampled_from(self.failures), min_size=1, max_size=8)))

    @rule()
    def arrive(self) -> None:
        """What was under way arrives."""
        self.store.arrive()

    @invariant()
    def holds(self) -> None:
        """The pot's figures close, and all that was ever spent is within the limit."""
        plan, self.store.plan = self.store.plan, []
        status = self.pot.status()
        assert status.claimed == status.spent + status.refunded + status.live
        assert status.claimed - status.refunded <= status.limit
        assert status.overspent == 0
        assert sum(self.really.values()) <= Fraction(status.limit)
        assert status.limit == self.limit
        self.store.plan = plan

    def teardown(self) -> None:
        """When all have ended and the dead are swept, all is spent or free, and nothing spent is missing."""
        if not hasattr(self, "store"):
            return
        self.store.plan = []
        self.store.arrive()
        for credit in self.alive:
            assert credit.refund() is not None
        self.clock.advance(LEASE_S * 4)
        swept = self.pot.sweep()
        self.presuming |= any(each.presumed for each in swept)
        status = self.pot.status()
        assert status.live == 0
        really = sum(self.really.values())
        unit = Fraction(len(self.really) + 1, 10**12)
        assert really <= Fraction(status.spent)
        if not self.presuming:
            assert Fraction(status.spent) <= really + unit
        assert Fraction(status.spent) - Fraction(status.presumed) <= really + unit
        self.check_log()
        assert not [key for key in self.store.data if key.startswith("leases/")]

    def check_log(self) -> None:
        """Computed anew from the events."""
        assert_no_voucher_won_twice(self.store)


class SoftRuns(Runs):
    """The same in soft mode, on a store that shows at once what was written."""

    soft_runs = 4
    failures = ("", "away", "lost")

    def check_log(self) -> None:
        """There is none."""


TestRuns = Runs.TestCase
TestRuns.settings = examples(120)
TestSoftRuns = SoftRuns.TestCase
TestSoftRuns.settings = examples(60)
