"""One run's credit in hand: claimed before it is spent, kept alive by leases, given back at the end."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from types import TracebackType

from costguard.clock import Clock
from costguard.errors import PotAwayError, PotError, warn
from costguard.pots.amounts import PARTS, Amount, argument, decimal_of, parts_of, shown
from costguard.pots.book import Book
from costguard.pots.lease import Lease, key_of
from costguard.pots.sizing import grant, usual_amount
from costguard.pots.state import Account, Claim, Close, Event, State, Terms, apply
from costguard.pots.store import Store

STOP_AT_CREDIT = "stop_at_credit"
CONTINUE = "continue"

GRANTED = "granted"
PARTIAL = "partial"
EMPTY = "empty"
AWAY = "away"


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """What came of a claim.

    Args:
        outcome: `granted`, `partial` (the pot had less left), `empty`, or `away` (no answer; it may have been granted,
            which the next call finds out).
        amount: What was added to the credit by this claim.
        left: The credit in hand now.
        message: One sentence for the user.
    """

    outcome: str
    amount: Decimal
    left: Decimal
    message: str


class _GoneError(Exception):
    """The account is no longer in the pot."""


class Credit:
    """What one process of one run may spend of a pot.

    `spend`, `left` and `allows` are quick and touch no store: they are for the step path, the others for a background
    thread. All may be called from several threads.

    Args:
        store: Where the pot lies.
        book: Its state.
        terms: What was agreed.
        run: Name of the run, for the audit.
        burn_per_hour: The most that it spends in an hour, in parts, `None` if unknown.
        on_store_down: `stop_at_credit` or `continue`.
        clock: Measures the lease.
    """

    def __init__(
        self,
        store: Store,
        book: Book,
        terms: Terms,
        run: str,
        burn_per_hour: int | None,
        on_store_down: str,
        clock: Clock,
    ) -> None:
        self.holder = secrets.token_hex(8)
        self.run = run
        self.away = False
        self._store, self._book, self._terms, self._clock = store, book, terms, clock
        self._burn = burn_per_hour
        self._policy = on_store_down
        self._lock = threading.RLock()
        self._spending = threading.Lock()  # its own, so that no step waits for a store
        self._spent = Fraction(0)
        self._elsewhere = 0  # booked for us under an earlier holder, which was swept
        self._claimed = 0
        self._opened = False
        self._closed = False
        self._warned = False
        self._lease_ns = terms.lease_s * 10**9
        self._lease_ends_ns = 0

    @property
    def left(self) -> Decimal:
        """What may be spent now, negative where more was spent; nothing once the lease has run out."""
        return decimal_of(self._left)

    @property
    def lapsed(self) -> bool:
        """Whether the lease has run out, so that others may count this holder as dead."""
        return self._clock.now_ns() >= self._lease_ends_ns

    @property
    def spent_of_holder(self) -> Decimal:
        """What was spent under the present holder's id: what a sweep of it should be told."""
        return decimal_of(self._spent_here)

    @property
    def beat_every_s(self) -> float:
        """Seconds between two calls of `beat` with which a lost one does no harm."""
        return self._terms.lease_s / 4

    def allows(self, amount: Amount) -> bool:
        """Whether so much more may be spent: by the credit in hand or, while the store is away, by policy.

        Args:
            amount: In the pot's unit, at least 0, the price of stopping included.
        """
        if self._left >= parts_of(amount, up=True):
            return True
        if not self.away or self._policy != CONTINUE:
            return False
        if not self._warned:
            self._warned = True
            warn(
                f"the pot at {self._store.url} is away and the credit in hand is spent; the run goes on without, as "
                "on_store_down='continue' asks, and its spend is booked when the store is back."
            )
        return True

    def spend(self, amount: Amount) -> None:
        """Count something as spent; it is told to the pot with the next claim, beat or refund.

        Args:
            amount: In the pot's unit, at least 0.

        Raises:
            ConfigError: If it is not a finite amount of at least 0.
        """
        exact = amount if isinstance(amount, Fraction) else Fraction(self._read("spend", "amount", amount), PARTS)
        if exact < 0:
            self._read("spend", "amount", exact)
        with self._spending:
            self._spent += exact

    def spend_to(self, total: Amount) -> None:
        """Count all that was spent since this credit was opened; a smaller figure than before changes nothing."""
        exact = total if isinstance(total, Fraction) else Fraction(self._read("spend_to", "total", total), PARTS)
        with self._spending:
            self._spent = max(self._spent, exact)

    def claim(self, amount: Amount | None = None, *, at_least: Amount = 0) -> Grant:
        """Take more credit from the pot, and tell it what has been spent.

        Args:
            amount: How much, in the pot's unit; by default ten minutes of burn or a thousandth of the limit, the
                larger, and less where all holders together would have more than 1% of the limit in hand.
            at_least: What the run cannot do without: with less in the pot nothing is taken.

        Returns:
            What came of it. A store that gives no answer is an outcome, not an error.

        Raises:
            ConfigError: If an amount cannot be used.
            PotError: If the credit has been given back, or a file of the pot cannot be read.
        """
        wanted = None if amount is None else self._read("claim", "amount", amount)
        least = self._read("claim", "at_least", at_least, up=True)
        with self._lock:
            self._check_open()
            given: list[int] = []

            def make(state: State) -> Event | None:
                telling, account, told = self._told(state)
                asked = usual_amount(told, self._burn, least) if wanted is None else max(wanted, least)
                given[:] = [grant(told, asked, least), asked, told.accounts[self.holder].claimed]
                nothing = given[0] == 0 and account == told.accounts[self.holder] and not self.lapsed
                return None if nothing else replace(telling, amount=given[0])

            try:
                self._contact(make)
            except PotAwayError as error:
                self.away = True
                return Grant(outcome=AWAY, amount=Decimal(0), left=self.left, message=str(error))
            return self._granted(max(0, self._claimed - given[2]), given[1])

    def settle(self) -> bool:
        """Tell the pot what has been spent; returns whether it answered."""
        with self._lock:
            self._check_open()
            return self._reached(lambda: self._contact(lambda state: self._told(state)[0]))

    def beat(self) -> bool:
        """Give a sign of life; returns whether the store took it.

        To be called about every `beat_every_s`. After a lease that has run out it goes through the pot itself, since
        another run may have swept this one's credit meanwhile.
        """
        with self._lock:
            self._check_open()
            return self.settle() if self.lapsed else self._reached(self._renew)

    def refund(self) -> Decimal | None:
        """End: tell what was spent and give back the rest.

        Returns:
            What went back, `None` if the store gave no answer: then it is swept when the lease is long over. It may
            be called again.
        """
        with self._lock:
            if self._closed:
                return Decimal(0)
            back: list[int] = [0]

            def make(state: State) -> Event | None:
                telling, account, told = self._told(state)
                if account is None and not telling.spent:
                    return None
                back[0] = told.accounts[self.holder].live
                return Close(holder=self.holder, run=self.run, spent=telling.spent)

            if not self._reached(lambda: self._contact(make)):
                return None
            self._closed = True
            self._reached(lambda: self._store.delete(key_of(self.holder)))
            return decimal_of(back[0])

    def __enter__(self) -> Credit:
        """Use it in a `with` block, which gives back what is left at its end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        """Give back what is left."""
        self.refund()

    @property
    def _spent_here(self) -> int:
        return max(0, parts_of(self._spent, up=True) - self._elsewhere)

    @property
    def _left(self) -> int:
        left = self._claimed - self._spent_here
        return min(left, 0) if self.lapsed or self._closed else left

    def _told(self, state: State) -> tuple[Claim, Account | None, State]:
        """What tells the pot our spend, our account as the pot has it, and the pot once it is told."""
        account = state.accounts.get(self.holder)
        if account is None and self._opened:
            raise _GoneError
        telling = Claim(holder=self.holder, run=self.run, amount=0, spent=self._spent_here)
        return telling, account, apply(state, telling)

    def _contact(self, make: Callable[[State], Event | None]) -> None:
        try:
            self._append(make)
        except _GoneError:
            self._begin_again()
            self._append(make)

    def _append(self, make: Callable[[State], Event | None]) -> None:
        # While the lease is young a claim needs no new one; it tells the pot what was spent as well.
        young = self._clock.now_ns() < self._lease_ends_ns - self._lease_ns * 3 // 4
        began_ns = self._lease_ends_ns - self._lease_ns if young else self._renew()
        state = self._book.append(make)
        account = state.accounts.get(self.holder)
        self._opened = self._opened or account is not None
        self._claimed = account.claimed if account else 0
        self._lease_ends_ns = began_ns + self._lease_ns
        self.away = False

    def _renew(self) -> int:
        began_ns = self._clock.now_ns()
        lapsed = self.lapsed
        lease = Lease(holder=self.holder, run=self.run, spent=self._spent_here, burn_per_hour=self._burn)
        lease.write(self._store)
        # Where it had run out only the pot itself can say that the credit is still ours.
        if not lapsed:
            self._lease_ends_ns = began_ns + self._lease_ns
        return began_ns

    def _begin_again(self) -> None:
        """We were swept: what was booked for us stays booked, and what we spent beyond it is booked anew."""
        closing = self._book.closing(self.holder)
        self._elsewhere += closing.spent if closing else 0
        self.holder = secrets.token_hex(8)
        # The lease that is young is the old holder's: without one of its own the new one could never be swept.
        self._lease_ends_ns = self._clock.now_ns()
        self._opened, self._claimed = False, 0

    def _reached(self, work: Callable[[], object]) -> bool:
        try:
            work()
        except PotAwayError:
            self.away = True
            return False
        self.away = False
        return True

    def _granted(self, amount: int, asked: int) -> Grant:
        outcome = GRANTED if amount >= asked else PARTIAL if amount else EMPTY
        unit, runs = self._terms.unit, self._terms.soft_runs
        among = f" (in soft mode at most {runs} runs may hold credit at once)" if runs else ""
        message = {
            GRANTED: f"{shown(amount, unit)} claimed from the pot.",
            PARTIAL: f"the pot had {shown(amount, unit)} left of the {shown(asked, unit)} asked for.",
            EMPTY: f"the pot at {self._store.url} cannot give {shown(asked, unit)}; raise its limit to go on{among}.",
        }[outcome]
        return Grant(outcome=outcome, amount=decimal_of(amount), left=self.left, message=message)

    def _read(self, method: str, option: str, value: Amount, *, up: bool = False) -> int:
        return argument(f"Credit.{method}", option, value, self._terms.unit, up=up)

    def _check_open(self) -> None:
        if self._closed:
            raise PotError(f"the credit of run {self.run!r} has been given back; hold a new one.")
