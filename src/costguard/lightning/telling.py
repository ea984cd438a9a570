"""Tells people of verdicts: in the log, in wandb, by a webhook, by a function of the user's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from costguard.errors import warn
from costguard.policies.alerts import AlertState, choose_alerts
from costguard.records import Verdict
from costguard.webhook import TIMEOUT_S, post

OnAlert = Callable[[Verdict], Any]


class Teller:
    """Sends few alerts, and never holds up training for one.

    Args:
        loggers: The Trainer's loggers; those with alerts of their own (wandb) get them.
        webhook: URL to which each alert is posted as JSON.
        on_alert: The user's own function.
        state: What was sent by earlier attempts.
    """

    def __init__(
        self,
        loggers: Sequence[Any] = (),
        webhook: str | None = None,
        on_alert: OnAlert | None = None,
        state: AlertState | None = None,
    ) -> None:
        self._loggers = loggers
        self._webhook = webhook
        self._on_alert = on_alert
        self.state = state or AlertState()
        self._threads: list[threading.Thread] = []

    def tell(self, verdicts: Iterable[Verdict], now_wall_ns: int, *, closing: bool = False) -> bool:
        """Tell what is due.

        Args:
            verdicts: What came up.
            now_wall_ns: Now, nanoseconds since the epoch.
            closing: Whether nothing comes after this.

        Returns:
            Whether `state` has changed.
        """
        before = self.state
        alerts = choose_alerts(before, list(verdicts), now_wall_ns, closing=closing)
        self.state = alerts.state
        for verdict in alerts.send:
            self._send(verdict)
        return self.state != before

    def wait(self, seconds: float = TIMEOUT_S) -> None:
        """Give what is on its way a last moment, all of it together."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _send(self, verdict: Verdict) -> None:
        warn(verdict.message)
        title = f"costguard: {verdict.kind} {verdict.action.value}"
        for logger in self._loggers:
            alert = getattr(getattr(logger, "experiment", None), "alert", None)
            if callable(alert):
                self._beside(partial(alert, title=title, text=verdict.message))
        if self._on_alert is not None:
            self._beside(partial(self._on_alert, verdict))
        if self._webhook is not None:
            self._beside(partial(post, self._webhook, verdict))

    def _beside(self, work: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # the network's and the user's code may do anything
                warn(f"an alert could not be delivered ({type(error).__name__}: {error}); the journal has it.")

        thread = threading.Thread(target=run, name="costguard-alert", daemon=True)
        thread.start()
        self._threads.append(thread)
