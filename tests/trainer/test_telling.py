"""Who is told of a budget, how often, and that nobody who does not answer holds up training."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loggers import Logger

from budgeted import DOLLAR_A_SECOND, Ticking, guard, kept, metered_from_now, moved_by_hand, stop_checkpoint, train
from costguard import Budget, CostguardWarning, Threshold
from costguard.lightning.telling import Teller
from costguard.policies.alerts import AlertState
from costguard.records import Action, Verdict
from costguard.testing import ManualClock
from helpers import LIGHTNING_WARNINGS, NS_PER_S, monitor

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore::costguard.errors.CostguardWarning"),
]
HOUR_NS = 3600 * NS_PER_S


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    with moved_by_hand() as moved:
        yield moved


class Hook:
    """A webhook's other end: a real HTTP server that keeps what is posted.

    Args:
        status: What it answers.
        hangs: Whether it answers at all.
    """

    def __init__(self, status: int = 200, *, hangs: bool = False) -> None:
        self.posted: list[dict[str, Any]] = []
        self.asked = threading.Event()
        self._go_on = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.asked.set()
                if hangs:
                    hook._go_on.wait(30)
                    return
                hook.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Quietly."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/x"

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _alert(reason: str = "spent_80", action: Action = Action.ALERT) -> Verdict:
    return Verdict(kind="budget", action=action, reason=reason, message=f"{reason}.", step=3, spend="8")


# -- in a training ---------------------------------------------------------------------------------------------------


def test_webhook_and_function_hear_of_each_threshold_and_of_the_stop(clock: ManualClock, tmp_path: Path) -> None:
    """What was set to alert, in order, and the stop; as JSON with numbers, and as a verdict."""
    heard: list[Verdict] = []
    with Hook() as hook:
        stopping = guard(warn_at=[0.3, 0.6], webhook=hook.url, on_alert=heard.append)
        train(tmp_path, Ticking(clock), stopping)
        kept(tmp_path, 10, clock)
    reasons = ["spent_30", "spent_60", "limit"]
    assert [v.reason for v in sorted(heard, key=lambda v: v.step or 0)] == reasons
    posted = sorted(hook.posted, key=lambda each: each["step"])
    assert [each["reason"] for each in posted] == reasons
    assert (posted[2]["kind"], posted[2]["action"]) == ("budget", "stop")
    assert posted[2]["evidence"]["limit"] == "10"
    assert "of $10.00 for the run" in posted[0]["message"]


class Wandb(Logger):
    """A logger with an experiment that has `alert` and `summary`, as wandb's."""

    def __init__(self) -> None:
        super().__init__()
        self.alerts: list[tuple[str, str]] = []
        self.experiment = SimpleNamespace(summary={}, alert=self._alert)

    def _alert(self, title: str, text: str) -> None:
        self.alerts.append((title, text))

    @property
    def name(self) -> str:
        return "wandb"

    @property
    def version(self) -> str:
        return "0"

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing to do."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Nothing to do."""


def test_the_loggers_own_alert_and_summary_are_used(clock: ManualClock, tmp_path: Path) -> None:
    """An alert where the team looks anyway, and why the run ended in its summary."""
    logger = Wandb()
    train(tmp_path, Ticking(clock), guard(warn_at=[0.5]), logger=logger)
    kept(tmp_path, 10, clock)
    assert {title for title, _ in logger.alerts} == {"costguard: budget alert", "costguard: budget stop"}
    assert logger.experiment.summary["costguard/stopped_by"] == "budget/limit"
    assert "limit of $10.00" in logger.experiment.summary["costguard/stopped_because"]


class Hangs(Wandb):
    """From the stop's alert on its `save` does not come back."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on, self.begun, self.done = threading.Event(), 0, 0

    def save(self) -> None:
        if not self.alerts:
            return
        self.begun += 1
        self.go_on.wait(60)
        self.done += 1


def test_a_logger_that_does_not_flush_is_left_behind(clock: ManualClock, tmp_path: Path) -> None:
    """It gets the time that the money lasts; then the stop goes on without it, and says so."""
    logger = Hangs()
    with pytest.warns(CostguardWarning, match="Hangs did not flush"):
        train(tmp_path, Ticking(clock), guard(), logger=logger)
    assert (logger.begun, logger.done) == (1, 0)
    logger.go_on.set()
    logger.save()
    assert logger.begun == 2, "its methods are its own again"
    kept(tmp_path, 10, clock)


def test_thresholds_speak_once_over_five_restarts(clock: ManualClock, tmp_path: Path) -> None:
    """Six attempts of one run pass the same thresholds: each is said once; raising the limit says them again."""
    heard: list[str] = []

    def go_on(limit: float, steps: int) -> None:
        budget = Budget(limit_usd=limit, thresholds=[Threshold(at=0.1), Threshold(at=0.2)])
        stopping = guard(budgets=[budget], on_alert=lambda v: heard.append(v.reason))
        cost = monitor(usd_per_gpu_hour=DOLLAR_A_SECOND, run_id="r")
        train(tmp_path, Ticking(clock), cost, stopping, max_steps=steps)
        metered_from_now(clock)

    for _ in range(6):
        go_on(50, 20)  # 2 dollars each: 4%, 8%, 12%, 16%, 20%, 24%
    assert sorted(heard) == ["spent_10", "spent_20"]
    clock.advance(3600)
    go_on(80, 20)  # 14 of 80: 17.5%
    assert sorted(heard) == ["spent_10", "spent_10", "spent_20"]
    assert stop_is_absent(tmp_path)


def stop_is_absent(folder: Path) -> bool:
    """Nothing was stopped."""
    return not list(folder.rglob("control-*.json"))


def test_at_most_three_alerts_an_hour(clock: ManualClock, tmp_path: Path) -> None:
    """Of seven thresholds three are sent and the others wait; the stop is sent all the same."""
    heard: list[str] = []
    train(
        tmp_path,
        Ticking(clock),
        guard(warn_at=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], on_alert=lambda v: heard.append(v.reason)),
    )
    kept(tmp_path, 10, clock)
    assert heard.count("limit") == 1
    assert len(heard) == 4


def test_a_webhook_that_hangs_holds_up_nothing(clock: ManualClock, tmp_path: Path) -> None:
    """Training goes on while it is silent, step by step, and ends."""
    with Hook(hangs=True) as hook:
        module = Ticking(clock)
        after: list[int] = []

        class Counts(Ticking):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                if hook.asked.is_set():
                    after.append(batch_idx)
                return super().training_step(batch, batch_idx)

        module = Counts(clock, step_s=0.001)
        train(tmp_path, module, guard(warn_at=[0.01], webhook=hook.url))
        kept(tmp_path, 10, clock)
        assert after, "steps were done while the webhook had not answered"
        assert stop_checkpoint(tmp_path)


@pytest.mark.parametrize("how", ["refused", "error", "raises"])
def test_an_alert_that_cannot_be_delivered_is_a_warning(clock: ManualClock, tmp_path: Path, how: str) -> None:
    """Nobody listens, an error comes back, or the user's function raises: training goes on, and it is said."""

    def fails(verdict: Verdict) -> None:
        raise RuntimeError("no pager")

    with Hook(500) as hook:
        url = {"refused": "http://127.0.0.1:9/x", "error": hook.url, "raises": None}[how]
        with pytest.warns(CostguardWarning, match="could not be delivered"):
            train(tmp_path, Ticking(clock), guard(webhook=url, on_alert=fails if how == "raises" else None))
        kept(tmp_path, 10, clock)


# -- alone -----------------------------------------------------------------------------------------------------------


def test_a_digest_comes_when_the_hour_is_over() -> None:
    """What was held is told in one, later."""
    heard: list[Verdict] = []
    teller = Teller(on_alert=heard.append)
    teller.tell([_alert(f"spent_{n}") for n in range(5)], 0)
    teller.wait()
    assert len(heard) == 3
    assert teller.tell([], HOUR_NS + 1) is True
    teller.wait()
    assert heard[-1].kind == "digest"
    assert "spent_3." in heard[-1].message
    assert "spent_4." in heard[-1].message


def test_nothing_to_tell_changes_nothing() -> None:
    """So nothing is written either."""
    teller = Teller(state=AlertState())
    assert teller.tell([], 0) is False
    assert teller.tell([_alert(action=Action.LOG)], 0) is False


def test_waiting_ends_though_somebody_does_not() -> None:
    """All that is on its way gets one last moment together, not one each."""
    never = threading.Event()
    teller = Teller(on_alert=lambda verdict: never.wait(60))
    teller.tell([_alert(f"limit_{n}", Action.STOP) for n in range(8)], 0)
    begin = time.monotonic()
    teller.wait(0.5)
    took = time.monotonic() - begin
    never.set()
    teller.wait()
    assert took < 8 * 0.5
