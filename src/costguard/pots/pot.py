"""A budget that many runs share with no server: made, opened, claimed from, raised, swept, shown."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection
from datetime import datetime, timezone

from costguard.clock import Clock, SystemClock
from costguard.errors import PotError, config_error
from costguard.pots.amounts import Amount, argument, shown
from costguard.pots.book import HEAD, Book
from costguard.pots.credit import CONTINUE, STOP_AT_CREDIT, Credit
from costguard.pots.lease import STALE, age_s
from costguard.pots.log import Entry, LogBook, decode, encode
from costguard.pots.making import LEASE_S, check_exclusive, terms_of
from costguard.pots.soft import SoftBook
from costguard.pots.state import HARD, Event, Raise, State, Terms
from costguard.pots.status import PotStatus, Raised, status_of
from costguard.pots.store import Store, open_store
from costguard.pots.sweeper import Figure, Sweeper, Swept


class Pot:
    """One budget for many runs, in a folder or bucket that all of them reach.

    Made by `Pot.create` or `Pot.open`. One process of a run holds credit for all its ranks.

    Args:
        store: Where it lies.
        book: Its state.
        terms: What was agreed.
        clock: Measures leases and names instants.

    Example:
        >>> pot = Pot.create("memory://thesis", limit_usd=100)
        >>> with pot.hold("run-7", burn_per_hour=3) as credit:
        ...     print(credit.claim().message, credit.allows("0.4"))
        ...     credit.spend("0.2")
        $0.5000 claimed from the pot. True
        >>> str(pot.status().free)
        '99.800000000000'
    """

    def __init__(self, store: Store, book: Book, terms: Terms, clock: Clock) -> None:
        self._store, self._book, self._clock = store, book, clock
        self.terms = terms
        self.url = store.url

    @staticmethod
    def create(
        url: str,
        *,
        limit_usd: Amount | None = None,
        limit_gpu_hours: Amount | None = None,
        voucher: Amount | None = None,
        lease_s: int = LEASE_S,
        soft_runs: int | None = None,
        exist_ok: bool = False,
        deadline_s: float = 10.0,
        store: Store | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Pot:
        """Make a pot.

        Args:
            url: A folder that all runs share, or any URL that fsspec knows, such as `s3://bucket/pots/thesis`.
            limit_usd: US dollars that all runs together may spend, above 0.
            limit_gpu_hours: GPU-hours instead.
            voucher: Usual size of one claim; by default a thousandth of the limit.
            lease_s: Seconds without a sign of life after which a run's credit ends; at least 1.
            soft_runs: Soft mode, for a store without exclusive create: how many runs may hold credit at once, at least
                2. The limit may then be passed by up to one voucher of each other run.
            exist_ok: Open the pot that is there, if it has the same first limit.
            deadline_s: Seconds that one call to the store may take.
            store: Used in place of the URL.
            clock: Measures leases.
            sleep: Waits between tries.

        Raises:
            ConfigError: If an argument cannot be used, or the store cannot keep a hard limit and `soft_runs` is not
                given.
            PotError: If there is a pot already, or it cannot be read.
            PotAwayError: If the store gives no answer.
        """
        clock = clock or SystemClock()
        terms = terms_of(limit_usd, limit_gpu_hours, voucher, lease_s, soft_runs)
        store = store or open_store(url, deadline_s)
        if terms.mode == HARD:
            check_exclusive(store, terms)
        head = encode(
            0,
            secrets.token_hex(8),
            {"kind": "create", "who": _me()},
            State(terms=terms, limit=terms.limit),
            _stamp(clock),
        )
        if terms.mode == HARD:
            made = store.create_exclusive(HEAD, head)
        else:
            made = store.read(HEAD) is None
            if made:
                store.put(HEAD, head)
        if not made and store.read(HEAD) != head:
            return _same(Pot.open(url, store=store, clock=clock, sleep=sleep), terms, exist_ok)
        return _opened(store, decode(head, f"{store.url}/{HEAD}"), clock, sleep)

    @staticmethod
    def open(
        url: str,
        *,
        unit: str | None = None,
        deadline_s: float = 10.0,
        store: Store | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Pot:
        """Open a pot that is there.

        Args:
            url: Where it lies.
            unit: `usd` or `gpu_hours` where the caller can count only in one of them.
            deadline_s: Seconds that one call to the store may take.
            store: Used in place of the URL.
            clock: Measures leases.
            sleep: Waits between tries.

        Raises:
            ConfigError: If the pot is in another unit, or its store no longer keeps exclusive create.
            PotError: If there is no pot, or it cannot be read, or it was made by a newer costguard.
            PotAwayError: If the store gives no answer.
        """
        store = store or open_store(url, deadline_s)
        data = store.read(HEAD)
        if data is None:
            raise PotError(f"there is no pot at {store.url}; make it with Pot.create(url, limit_usd=...).")
        head = decode(data, f"{store.url}/{HEAD}")
        terms = head.state.terms
        if unit is not None and unit != terms.unit:
            raise config_error(
                f"Pot(unit={unit!r}): the pot at {store.url} counts in {terms.unit}; use it or another pot."
            )
        if terms.mode == HARD:
            check_exclusive(store, terms)
        return _opened(store, head, clock or SystemClock(), sleep)

    def hold(self, run: str, *, burn_per_hour: Amount | None = None, on_store_down: str = STOP_AT_CREDIT) -> Credit:
        """Begin to hold credit; nothing is claimed yet.

        Args:
            run: Name of the run, for the audit.
            burn_per_hour: The most that the run spends in an hour, in the pot's unit: sizes its claims, and what is
                presumed of it if it crashes (all that it held, where this is unknown).
            on_store_down: When the store is away and the credit in hand is spent: `stop_at_credit` or `continue`.

        Raises:
            ConfigError: If an argument cannot be used.
        """
        if not isinstance(run, str) or not run.strip():
            raise config_error(f"Pot.hold(run={run!r}): expected the name of the run, which is kept with its claims.")
        if on_store_down not in (STOP_AT_CREDIT, CONTINUE):
            raise config_error(
                f"Pot.hold(on_store_down={on_store_down!r}): expected {STOP_AT_CREDIT!r} or {CONTINUE!r}."
            )
        burn = None
        if burn_per_hour is not None:
            burn = argument("Pot.hold", "burn_per_hour", burn_per_hour, self.terms.unit, up=True)
        return Credit(self._store, self._book, self.terms, run, burn, on_store_down, self._clock)

    def raise_limit(
        self, *, by: Amount | None = None, to: Amount | None = None, why: str, who: str | None = None
    ) -> Raised:
        """Raise the limit, and leave a line that says who, when, why, from and to.

        After a `PotAwayError` it may be done or not: with `to` it can be repeated without harm.

        Args:
            by: How much more, above 0; or
            to: the new limit, above the present one.
            why: The reason, in words.
            who: Who decides; by default the user and host of this process.

        Raises:
            ConfigError: If an argument cannot be used.
            PotAwayError: If the store gives no answer.
        """
        if not why.strip():
            raise config_error(f"Pot.raise_limit(why={why!r}): expected a reason, which is kept with the pot.")
        if (by is None) == (to is None):
            raise config_error(f"Pot.raise_limit(by={by!r}, to={to!r}): expected one of the two.")
        option, value = ("by", by) if by is not None else ("to", to)
        parts = argument("Pot.raise_limit", option, value or 0, self.terms.unit)
        made: list[Raise] = []

        def make(state: State) -> Event:
            target = state.limit + parts if by is not None else parts
            if target <= state.limit:
                raise config_error(
                    f"Pot.raise_limit({option}={value!r}): the limit is {shown(state.limit, self.terms.unit)} already; "
                    "expected more."
                )
            made[:] = [Raise(start=state.limit, to=target, who=who or _me(), why=why, at=_stamp(self._clock))]
            return made[0]

        self._book.append(make)
        return status_of(self.url, State(terms=self.terms, limit=0, raises=(made[0],)), {}, 0).raises[0]

    def sweep(self, figure: Figure | None = None, *, dead: Collection[str] = ()) -> list[Swept]:
        """Give back what crashed runs had in hand.

        Args:
            figure: Called with holder and run; returns what the holder really spent of its credit, in the pot's unit,
                or `None`. Where nobody knows, what it told counts, and what it may have spent in one more lease.
            dead: Holders that are known to be dead, such as the earlier attempts of a run that was restarted; others
                only after three leases of silence.

        Returns:
            What was closed.

        Raises:
            PotAwayError: If the store gives no answer.
        """
        return Sweeper(self._store, self._book, figure, dead).sweep()

    def status(self) -> PotStatus:
        """Figures of the pot now; writes nothing.

        Raises:
            PotAwayError: If the store gives no answer.
            PotError: If a file cannot be read.
        """
        state, now = self._book.refresh(), self._clock.wall_ns()
        silent = {holder: age_s(self._store, holder, now) for holder in state.accounts}
        return status_of(self.url, state, silent, STALE * state.terms.lease_s)


def _opened(store: Store, head: Entry, clock: Clock, sleep: Callable[[float], None]) -> Pot:
    terms = head.state.terms
    if terms.mode != HARD:
        return Pot(store, SoftBook(store, terms, sleep), terms, clock)
    book = LogBook(store, head, lambda: _stamp(clock), sleep)
    book.check()
    return Pot(store, book, terms, clock)


def _same(pot: Pot, asked: Terms, exist_ok: bool) -> Pot:
    limit = shown(pot.terms.limit, pot.terms.unit)
    if not exist_ok:
        raise PotError(f"there is a pot at {pot.url} already (first limit {limit}); open it with Pot.open(url).")
    if (asked.unit, asked.limit) != (pot.terms.unit, pot.terms.limit):
        raise config_error(
            f"Pot(limit_{asked.unit}={shown(asked.limit, asked.unit)!r}): the pot at {pot.url} was made with {limit}; "
            "give that, and raise it with Pot.raise_limit."
        )
    return pot


def _stamp(clock: Clock) -> str:
    instant = datetime.fromtimestamp(clock.wall_ns() / 1e9, tz=timezone.utc)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _me() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number that has no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
