"""Keeps credit of a shared pot in hand while a run trains, and says when there is no more."""

from __future__ import annotations

import threading
from fractions import Fraction

from costguard.errors import PotAwayError, PotError, config_error, warn
from costguard.ledger.spending import Spent, spent_by
from costguard.lightning.run import Run
from costguard.pots import Credit, Grant, Pot
from costguard.records import Action, Amount, Verdict
from costguard.units import NS_PER_HOUR, format_money, plain, round_money

LOOK_EVERY_S = 1.0
AHEAD_S = 10
"""So many seconds of burn are kept in hand above what stopping costs, as far as the pot gives them."""


class PotWatch:
    """One run's side of a pot; only rank 0 has one.

    Args:
        url: Where the pot lies.
        run: The run, its journal open.
        on_store_down: What to do when the store is away and the credit is spent: `stop_at_credit` or `continue`.

    Raises:
        ConfigError: If the pot cannot be used with the prices there are.
        PotError: If there is no such pot.
    """

    def __init__(self, url: str, run: Run, on_store_down: str) -> None:
        self._run = run
        self._pot = Pot.open(url)
        if self._pot.terms.unit == "usd" and not run.config.book.prices:
            raise config_error(
                f"BudgetStopping(pot={url!r}): the pot counts US dollars and what a GPU costs is unknown; give a "
                "price, or use a pot of GPU-hours."
            )
        # From the end of the attempt before on, so that a gap between the two that is billed is in the pot as well.
        begin_ns = run.wall_ns() - (run.meter.now_ns() - run.meter.state.start_ns)
        ends_ns = (r.end_wall_ns for r in run.account().ranks if r.seat.attempt < run.writer.seat.attempt)
        self.url = self._pot.url
        if self._pot.terms.unit == "usd" and run.config.book.currency != "USD":
            raise config_error(
                f"BudgetStopping(pot={url!r}): the pot counts US dollars and the prices are in "
                f"{run.config.book.currency}; use a pot of GPU-hours."
            )
        self._begin_wall_ns = min(begin_ns, max(ends_ns, default=begin_ns))
        self._sweep_own()
        self._credit: Credit = self._pot.hold(
            run.run_id, burn_per_hour=self._in_unit(_hour(run)), on_store_down=on_store_down
        )
        run.writer.fact("pot", url=self._pot.url, holder=self._credit.holder)
        self._wanted = Fraction(0)
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def refusal(self, needed: Amount) -> Verdict | None:
        """Claim what it takes to start and to stop again; `None` if that is in hand now."""
        amount, so_far = self._in_unit(needed), self._in_unit(self._spent())
        grant = self._credit.claim(at_least=amount + so_far)
        self._credit.spend_to(so_far)
        if self._credit.allows(amount):
            self._begin()
            return None
        return self._verdict(Action.REFUSE, "pot_empty", f"Not started: {self._why(grant, amount)}.")

    def judge(self, reserve: Amount, step_cost: Amount, step: int) -> Verdict | None:
        """Count what was spent; a stop if the credit does not last for another step.

        Args:
            reserve: What stopping costs.
            step_cost: What an optimizer step costs at most.
            step: Optimizer step.
        """
        spent = self._since_start()
        if self._pot.terms.unit == "usd" and spent.unpriced_ns:
            message = f"Some device time has no price, so what the pot {self._pot.url} pays for is unknown."
            return self._verdict(Action.STOP, "price_unknown", message, step)
        self._credit.spend_to(self._in_unit(spent.amount))
        needed, more = self._in_unit(reserve), self._in_unit(step_cost)
        self._wanted = needed + more + AHEAD_S * self._in_unit(_hour(self._run)) / 3600
        if not self._credit.allows(self._wanted):
            self._wake.set()
        if self._credit.allows(needed + more):
            return None
        # The thread beside has not kept up, or there is nothing to be had: it is asked once more before a stop.
        self._credit.claim(at_least=max(Fraction(0), needed + more - Fraction(self._credit.left)))
        if self._credit.allows(needed + more):
            return None
        message = f"The credit of the pot {self._pot.url} is spent but for what stopping costs ({self._show(needed)})."
        return self._verdict(Action.STOP, "pot_empty", message, step)

    def lasts_ns(self, reserve: Amount) -> int:
        """How long the credit in hand lasts until only the reserve is left, at the present burn."""
        left = Fraction(self._credit.left) - self._in_unit(reserve)
        burn = self._in_unit(_hour(self._run))
        return int(left / burn * NS_PER_HOUR) if burn else NS_PER_HOUR

    def close(self) -> None:
        """Give back what is left."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(10)
        try:
            self._credit.spend_to(self._in_unit(self._spent()))
            if self._credit.refund() is None:
                warn(f"the pot {self._pot.url} is away: what this run has in hand goes back when its lease ends.")
        except PotError as error:
            warn(f"the pot {self._pot.url} did not take back what is left ({error}).")

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._keep, name="costguard-pot", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        last_beat = 0.0
        while not self._stop.is_set():
            self._wake.wait(LOOK_EVERY_S)
            self._wake.clear()
            last_beat += LOOK_EVERY_S
            try:
                if not self._credit.allows(self._wanted):
                    self._credit.claim()
                elif last_beat >= self._credit.beat_every_s:
                    last_beat = 0.0
                    self._credit.beat()
            except Exception as error:  # the store may raise anything; the credit in hand is what counts
                warn(f"the pot {self._pot.url}: {type(error).__name__}: {error}")
                self._stop.wait(LOOK_EVERY_S)

    def _sweep_own(self) -> None:
        """What earlier attempts of this run had in hand is settled by what the journal says that they spent."""
        account = self._run.account()
        dead = {
            rank.facts["pot"]["holder"]: rank
            for rank in account.ranks
            if "pot" in rank.facts and rank.seat.attempt < self._run.writer.seat.attempt
        }

        def figure(holder: str, run: str) -> Fraction | None:
            rank = dead.get(holder)
            if rank is None:
                return None
            ranks = account.of_attempt(rank.seat.attempt)
            begin, end = min(r.wall_ns for r in ranks), max(r.end_wall_ns for r in ranks)
            return self._in_unit(spent_by(account, begin, end).amount)

        try:
            self._pot.sweep(figure, dead=list(dead))
        except PotAwayError:
            return  # the next attempt or any other run does it

    def _spent(self) -> Amount:
        return self._since_start().amount

    def _since_start(self) -> Spent:
        assert self._run.live is not None, "pots are held by rank 0"
        meter = self._run.meter
        return self._run.live.spent(meter.state, meter.now_ns(), self._begin_wall_ns)

    def _in_unit(self, amount: Amount) -> Fraction:
        if self._pot.terms.unit == "gpu_hours":
            return Fraction(amount.device_ns, NS_PER_HOUR)
        return amount.money or Fraction(0)

    def _show(self, amount: Fraction) -> str:
        return format_money(amount) if self._pot.terms.unit == "usd" else f"{float(amount):.4g} GPU-hours"

    def _why(self, grant: Grant, needed: Fraction) -> str:
        return f"{grant.message.rstrip('.')}; starting and stopping again cost up to {self._show(needed)}"

    def _verdict(self, action: Action, reason: str, message: str, step: int | None = None) -> Verdict:
        money = self._spent().money
        return Verdict(
            kind="budget",
            action=action,
            reason=reason,
            message=message,
            step=step,
            spend=None if money is None else plain(round_money(money)),
            evidence={"budget": f"pot/{self._pot.terms.unit}/billed", "pot": self._pot.url},
        )


def _hour(run: Run) -> Amount:
    devices, wall_ns = run.paid.total, run.wall_ns()
    money = run.config.book.device_money(wall_ns, wall_ns + NS_PER_HOUR, devices, devices)
    return Amount(money=money, device_ns=devices * NS_PER_HOUR)
