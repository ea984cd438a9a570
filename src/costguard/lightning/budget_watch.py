"""Rank 0's look at the budgets of a run: what each is judged by, what it says, and when to look again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from costguard.days import day_of, zone_argument
from costguard.errors import config_error
from costguard.ledger.account import RunAccount
from costguard.ledger.control import ControlLog, Decision, raised_limit, standing_stop
from costguard.ledger.spending import Neighbours, Spent
from costguard.lightning.pot_watch import PotWatch
from costguard.lightning.run import Run
from costguard.plan.forecast import Forecast
from costguard.policies.budget import Budget, Facts, Mark, admit, check_enforceable, evaluate_all
from costguard.policies.progress import progress_of
from costguard.policies.reserve import QUANTILE, Reserve, StopPriors, StopSamples, price_of_stopping, upper_bound
from costguard.records import Action, Amount, Verdict
from costguard.units import NS_PER_S, parse_money, plain, round_money

LOOK_EVERY_NS = 5 * NS_PER_S
"""Longest time between two looks."""
CLOSE_STEPS = 10
"""So many steps before the limit every step is looked at."""
RESTART_PAUSE_NS = NS_PER_S
"""From the end of a process to the start of the next by a launcher: chosen."""
NEIGHBOURS_EVERY_NS = 30 * NS_PER_S
STEPS_KEPT = 512
_STARTING = ("startup", "restore", "compile")


class BudgetWatch:
    """Judges the budgets of one run.

    Args:
        run: The run, its journal open.
        budgets: What is limited.
        priors: What is assumed of stopping until it is measured.
        pot: A pot that it shares with other runs.
        on_store_down: What to do when the pot's store is away.
    """

    def __init__(
        self,
        run: Run,
        budgets: Sequence[Budget],
        priors: StopPriors,
        pot: str | None = None,
        on_store_down: str = "stop_at_credit",
    ) -> None:
        self._run = run
        self._priors = priors
        self._control = ControlLog(run.writer.folder, run.files)
        self._decisions = self._control.decisions()
        self.budgets = [self._as_raised(budget) for budget in budgets]
        self._account = run.account()
        state = self._account.fact("budget") or {}
        self.alerts: dict[str, Any] | None = state.get("alerts")
        self._fired = frozenset(Mark.from_json(mark) for mark in state.get("marks", ()))
        self._neighbours = Neighbours(run.config.root, run.run_id, run.files)
        self._neighbours_at_ns = 0
        self._steps_ns: deque[int] = deque(maxlen=STEPS_KEPT)
        self._earlier = _earlier_stops(self._account, run.writer.seat.attempt)
        self._validation_ns: deque[int] = deque(maxlen=STEPS_KEPT)
        self.saves_routinely = False
        self.ahead_ns = 0
        self.restarts = 0
        self._lifted_by: str | None = None
        self._admission_ns = 0
        self.delay_steps = 0
        self.planned_steps: int | None = None
        self.next_look_ns = 0
        self.foreseen: Callable[[], Forecast | None] = _unforeseen
        self.pot = PotWatch(pot, run, on_store_down) if pot is not None else None

    def _as_raised(self, budget: Budget) -> Budget:
        raised = raised_limit(self._decisions, budget.key, budget.limit)
        if raised == budget.limit:
            return budget
        text = plain(round_money(raised))
        return replace(budget, limit_usd=text) if budget.in_money else replace(budget, limit_gpu_hours=text)

    # -- before the start -------------------------------------------------------------------------------------

    def refusal(self) -> Verdict | None:
        """Why the run must not start; `None` if it may.

        Raises:
            ConfigError: If a budget cannot be enforced with the prices there are.
        """
        meter, book = self._run.meter, self._run.config.book
        self._admission_ns = meter.now_ns() - meter.state.start_ns
        for budget in self.budgets:
            check_enforceable(budget, priced=bool(book.prices), currency=book.currency)
            _check_tagged(budget, self._run.config.tags)
        stop = standing_stop(self._decisions)
        facts, start = self.facts(), self._start_amount()
        for budget in self.budgets:
            verdict = admit(budget, facts[budget.key], start)
            if verdict is not None:
                return verdict
        self._lifted_by = self._what_lifts(stop, facts) if stop is not None else None
        if stop is not None and self._lifted_by is None:
            return _still_stopped(stop, self._run)
        if self.pot is not None:
            return self.pot.refusal(self._amount(self.reserve().ns + max(self._earlier.starts_ns, default=0)))
        return None

    def _what_lifts(self, stop: Decision, facts: Mapping[str, Facts]) -> str | None:
        """Why an earlier stop no longer holds: its limit was raised in the code, its day is over, its pot decides."""
        evidence = stop.fields.get("evidence", {})
        budget = next((b for b in self.budgets if b.key == evidence.get("budget")), None)
        if budget is not None and evidence.get("limit") is not None and budget.limit > Fraction(evidence["limit"]):
            return "the limit was raised in the code"
        if budget is not None and evidence.get("window") not in (None, facts[budget.key].window):
            return "the day of that budget is over"
        if self.pot is not None and evidence.get("pot") == self.pot.url:
            return "the pot has credit again"
        return None

    def lift(self) -> None:
        """Note why an earlier stop no longer holds, so that it stays so."""
        stop = standing_stop(self._decisions)
        if stop is None or self._lifted_by is None:
            return
        evidence = stop.fields.get("evidence", {})
        budget = next((b for b in self.budgets if b.key == evidence.get("budget")), None)
        said = {} if budget is None else {"budget": budget.key, "from": evidence.get("limit")}
        to = {} if budget is None else {"to": plain(round_money(budget.limit))}
        self._control.append("resume", why=self._lifted_by, **said, **to)

    def _start_amount(self) -> Amount | None:
        if not self._earlier.starts_ns:
            return None
        return self._amount(max(self._earlier.starts_ns))

    # -- while it runs ----------------------------------------------------------------------------------------

    def step_took(self, ns: int) -> None:
        """Note how long an optimizer step took, with the wait for its data."""
        self._steps_ns.append(ns)

    def validation_took(self, ns: int, batches: int) -> None:
        """Note how long a validation took; its batches are as many samples of their mean."""
        self._validation_ns.extend([ns // batches] * min(batches, STEPS_KEPT) if batches else ())

    def validation_ns(self, batches: int) -> int:
        """How long a validation may take; before there was one, each of its batches counts as a whole step."""
        seen = upper_bound(self._validation_ns, QUANTILE)
        each = max(self._steps_ns, default=self._priors.step_ns) if seen is None else seen
        return each * batches

    @property
    def step_s(self) -> float | None:
        """Mean time of a step, `None` before there was one."""
        return sum(self._steps_ns) / len(self._steps_ns) / NS_PER_S if self._steps_ns else None

    def reserve(self) -> Reserve:
        """What stopping costs, from what has been measured."""
        samples = StopSamples(
            step_ns=list(self._steps_ns),
            save_ns=[*self._earlier.saves_ns, *self._run.save_times_ns],
            teardown_ns=self._earlier.teardowns_ns,
            exit_ns=self._earlier.exits_ns,
        )
        reserve = price_of_stopping(samples, priors=self._priors, agreement_steps=1 + self.delay_steps)
        parts = dict(reserve.parts_ns)
        # A checkpoint of the user's may fall between this look and the stop.
        parts["agreement"] += self.ahead_ns + (parts["save"] if self.saves_routinely else 0)
        if self.restarts:
            # Each start that the launcher makes after the stop costs what it took here until it was admitted.
            parts["restarts"] = self.restarts * (self._admission_ns + parts["exit"] + RESTART_PAUSE_NS)
        return replace(reserve, parts_ns=parts)

    def facts(self, step: int | None = None) -> dict[str, Facts]:
        """What each budget is judged by now, by its key.

        Args:
            step: Optimizer step; the metered one, which may be of the batch before, if `None`.
        """
        run, wall_ns = self._run, self._run.wall_ns()
        self._look_around(wall_ns)
        reserve = self._amount(self.reserve().ns)
        counters = run.meter.state.counters
        figures = run.figures()
        progress = progress_of(
            tokens=figures.tokens if figures else None,
            planned_tokens=run.config.planned_tokens,
            steps=counters.step,
            planned_steps=self.planned_steps,
        )
        made = self.foreseen()
        devices = run.paid.total
        forecast, high = (None, None) if made is None or figures is None else made.amounts(figures.device_ns, devices)
        found: dict[str, Facts] = {}
        for budget in self.budgets:
            window, begin_ns = _window(budget, wall_ns)
            spent = self._spent(budget, begin_ns, wall_ns)
            found[budget.key] = Facts(
                spent=spent.amount,
                reserve=reserve,
                step=counters.step if step is None else step,
                window=window,
                forecast=forecast if budget.scope == "run" else None,
                forecast_high=high if budget.scope == "run" else None,
                progress=None if progress is None else float(progress),
                warm_steps=counters.batches - counters.warmup.batches,
                unpriced_device_ns=spent.unpriced_ns,
                prepaid=any(price.mode in ("reserved", "owned") for price in run.config.book.prices),
            )
        return found

    def judge(self, step: int) -> tuple[Verdict, ...]:
        """Judge all budgets at an optimizer step, and choose when to look again."""
        facts = self.facts(step)
        before = self._fired
        evaluation = evaluate_all(self.budgets, facts, before)
        self._fired = evaluation.fired
        if evaluation.fired != before:
            self.write()
        pause_ns = self._pause_ns(facts)
        self.next_look_ns = self._run.meter.now_ns() + pause_ns
        if self.pot is None:
            return evaluation.verdicts
        step_ns = max(self._steps_ns, default=self._priors.step_ns)
        reserve = self._amount(self.reserve().ns)
        empty = self.pot.judge(reserve, self._amount(step_ns), step)
        left_ns = max(0, self.pot.lasts_ns(reserve) - CLOSE_STEPS * step_ns) // 2
        self.next_look_ns = self._run.meter.now_ns() + min(pause_ns, left_ns)
        return evaluation.verdicts if empty is None else (*evaluation.verdicts, empty)

    def write(self) -> None:
        """Keep what must outlive this process."""
        marks = [mark.to_json() for mark in sorted(self._fired, key=lambda m: (m.budget, m.window, m.reason))]
        limits = {budget.key: plain(round_money(budget.limit)) for budget in self.budgets}
        rates = {b.key: str(Fraction(parse_money(b.usd_rate))) for b in self.budgets if b.usd_rate is not None}
        self._run.writer.fact("budget", marks=marks, limits=limits, rates=rates, alerts=self.alerts)

    def stop(self, verdict: Verdict) -> Verdict:
        """Write down that the run is stopped for good, with what stopping is expected to take."""
        reserve = self.reserve()
        evidence = {**verdict.evidence, "reserve_parts": reserve.to_json(), "decided_ns": self._run.meter.now_ns()}
        verdict = replace(verdict, evidence=evidence)
        self._control.append(
            "stop",
            **{name: getattr(verdict, name) for name in ("reason", "message", "step", "spend")},
            judged=verdict.kind,
            action=verdict.action.value,
            evidence=dict(verdict.evidence),
        )
        self._run.writer.verdict(verdict)
        return verdict

    def patience_ns(self) -> int:
        """How long a stop may wait for loggers and webhooks: what the money lasts, less the end of the process."""
        facts, per_ns, parts = self.facts(), self._amount(1), self.reserve().parts_ns
        left = [
            int((budget.limit - spent) / rate)
            for budget in self.budgets
            if (rate := budget.measure(per_ns)) and (spent := budget.measure(facts[budget.key].spent)) is not None
        ]
        if self.pot is not None:
            left.append(self.pot.lasts_ns(Amount(money=Fraction(0))))
        return max(0, min(left, default=0) - parts["teardown"] - parts["exit"] - parts.get("restarts", 0))

    def _pause_ns(self, facts: Mapping[str, Facts]) -> int:
        """Half of the time until the first limit could be reached, less some steps; at most `LOOK_EVERY_NS`."""
        margin = CLOSE_STEPS * max(self._steps_ns, default=self._priors.step_ns)
        pause = LOOK_EVERY_NS
        per_ns = self._amount(1)
        for budget in self.budgets:
            fact = facts[budget.key]
            rate, spent, reserve = budget.measure(per_ns), budget.measure(fact.spent), budget.measure(fact.reserve)
            if rate and spent is not None and reserve is not None:
                left_ns = int((budget.stop_line - spent - reserve) / rate)
                pause = min(pause, max(0, left_ns - margin) // 2)
        return pause

    def _amount(self, ns: int) -> Amount:
        """What so much time from now on costs at most, over all paid devices."""
        devices, wall_ns = self._run.paid.total, self._run.wall_ns()
        rates = [
            rate.per_unit
            for rate in self._run.config.book.device_rates(wall_ns, wall_ns + max(1, ns), devices)
            if rate.per_unit is not None
        ]
        money = max(rates) * ns * devices if rates else None
        return Amount(money=money, device_ns=ns * devices)

    def _spent(self, budget: Budget, begin_ns: int, wall_ns: int) -> Spent:
        run = self._run
        assert run.live is not None, "budgets are judged on rank 0"
        own = run.live.spent(run.meter.state, run.meter.now_ns(), begin_ns)
        if budget.scope == "run":
            return own
        return own.plus(
            self._neighbours.spent(_shares(budget, run.config.tags), begin_ns, wall_ns, run.config.book.currency)
        )

    def _look_around(self, wall_ns: int) -> None:
        if wall_ns >= self._neighbours_at_ns and any(budget.scope != "run" for budget in self.budgets):
            self._neighbours_at_ns = wall_ns + NEIGHBOURS_EVERY_NS
            self._neighbours.look()


def _unforeseen() -> Forecast | None:
    """Nobody forecasts."""
    return None


class _Earlier:
    """What earlier attempts have shown of starting and stopping, in nanoseconds of wall time."""

    def __init__(self, starts: Iterable[int], saves: Iterable[int], teardowns: Iterable[int], exits: Iterable[int]):
        self.starts_ns, self.saves_ns = list(starts), list(saves)
        self.teardowns_ns, self.exits_ns = list(teardowns), list(exits)


def _earlier_stops(account: RunAccount, attempt: int) -> _Earlier:
    firsts = [r for r in account.ranks if r.seat.rank == 0 and r.seat.attempt < attempt]
    trained = [r for r in firsts if r.final.counters.batches]
    closed = [r for r in trained if r.status == "closed"]
    return _Earlier(
        starts=(sum(r.final.activities_ns.get(name, 0) for name in _STARTING) for r in trained),
        # Of what was written on a thread beside, and not to the end, nobody knows how long it takes.
        saves=(
            ns
            for r in firsts
            for e in r.events
            if e["k"] == "saved" and (ns := e.get("written_ns", e["blocked_ns"])) is not None
        ),
        teardowns=(r.final.activities_ns.get("teardown", 0) - r.estimated_ns for r in closed),
        exits=(r.estimated_ns for r in closed),
    )


def _window(budget: Budget, wall_ns: int) -> tuple[str, int]:
    if budget.scope != "day":
        return "total", 0
    day = day_of(wall_ns, zone_argument("Budget", "time_zone", budget.time_zone))
    return day.label, day.start_ns


def _shares(budget: Budget, tags: Mapping[str, str]) -> Callable[[RunAccount], bool]:
    """Which other runs count: those of the same stage, project or tag; for a day all of them."""
    if budget.scope == "day":
        return lambda account: True
    tag = budget.scope.removeprefix("tag:")
    return lambda account: account.ranks[-1].header.get("tags", {}).get(tag) == tags[tag]


def _check_tagged(budget: Budget, tags: Mapping[str, str]) -> None:
    tag = budget.scope.removeprefix("tag:")
    if budget.scope not in ("run", "day") and tag not in tags:
        raise config_error(
            f"Budget(scope={budget.scope!r}): this run has no tag {tag!r}, so which runs share the budget is unknown; "
            f"add CostMonitor(tags={{{tag!r}: ...}})."
        )


def _still_stopped(stop: Decision, run: Run) -> Verdict:
    """A stop holds until its limit is raised, here or by command."""
    message = (
        f"Not started: this run was stopped for good at {stop.fields['at']} ({stop.fields.get('message', 'stopped')}) "
        f"Raise the limit in the code, or by `costguard budget raise {run.writer.folder} --to LIMIT --why REASON`, or "
        f"let it go on with `costguard budget resume {run.writer.folder} --why REASON`."
    )
    return Verdict(
        kind="budget",
        action=Action.REFUSE,
        reason="stopped_before",
        message=message,
        step=run.meter.state.counters.step,
        spend=stop.fields.get("spend"),
        evidence={"decision": stop.number},
    )
