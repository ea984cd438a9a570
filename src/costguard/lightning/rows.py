"""Puts costs into the rows that the user's loggers get anyway, and meters what logging takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costguard.ledger.activity import ActivityMeter
from costguard.lightning.instances import Instances, Method
from costguard.lightning.shield import metering
from costguard.policies.rows import RowCadence
from costguard.records import Activity

Costs = Callable[[], Mapping[str, float]]

_LOGGING = int(Activity.LOGGING)
_METERING = int(Activity.METERING)


class CostRows:
    """Adds costs to rows of every logger of a Trainer, each logger at its own cadence.

    Args:
        meter: The rank's meter.
        costs: Makes the values; called only when a row takes them.
        cadence: How seldom a row takes them.
        inject: Whether this rank adds values at all; the others only meter.
    """

    def __init__(self, meter: ActivityMeter, costs: Costs, cadence: RowCadence, *, inject: bool) -> None:
        self._meter = meter
        self._costs = costs
        self._cadence = cadence
        self._inject = inject
        self._last_ns: dict[int, int] = {}
        self._quiet_until_ns: dict[int, int] = {}
        self.users_rows = 0
        self.on = True

    def wrap(self, instances: Instances, logger: Any) -> None:
        """Meter a logger's own methods and add costs to its rows."""
        for name in ("save", "finalize", "log_hyperparams", "log_graph"):
            instances.wrap(logger, name, self._metered, direct=True)
        instances.wrap(logger, "log_metrics", lambda original: self._with_costs(logger, original), direct=True)

    def _metered(self, original: Method) -> Method:
        enter = self._meter.enter

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return original(*args, **kwargs)
            before = enter(_LOGGING)
            try:
                return original(*args, **kwargs)
            finally:
                enter(before)

        return call

    def _with_costs(self, logger: Any, original: Method) -> Method:
        meter, enter, key = self._meter, self._meter.enter, id(logger)

        def log_metrics(metrics: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> Any:
            if not self.on:
                return original(metrics, step=step, **kwargs)
            before = enter(_LOGGING)
            try:
                self.users_rows += 1
                now = meter.state.since_ns
                if now >= self._quiet_until_ns.get(key, 0) and self._inject:
                    metrics = self._with(metrics, key, now)
                return original(metrics, step=step, **kwargs)
            finally:
                enter(before)

        return log_metrics

    def _with(self, metrics: Mapping[str, Any], key: int, now_ns: int) -> Mapping[str, Any]:
        if not self._cadence.due(self._last_ns.get(key), now_ns):
            return metrics
        self._noted(key, now_ns)
        with self._meter.span(_METERING):
            # The user's own value of a name stays.
            return {**self._safe_costs(), **metrics}

    def _noted(self, key: int, now_ns: int) -> None:
        self._last_ns[key] = now_ns
        # Rows before then need not even ask.
        self._quiet_until_ns[key] = now_ns + self._cadence.every_ns

    def _safe_costs(self) -> Mapping[str, float]:
        with metering():
            return self._costs()
        return {}

    def own_row(self, loggers: list[Any], step: int) -> None:
        """Log a row of costs alone, for users who log nothing; as seldom as any other."""
        now = self._meter.now_ns()
        for logger in loggers:
            if self._cadence.due(self._last_ns.get(id(logger)), now):
                self._noted(id(logger), now)
                self._row(logger, step)

    def closing_row(self, loggers: list[Any], step: int, last_work_ns: int) -> None:
        """Log the last figures where no row has had them; wandb gets them in its summary instead.

        Args:
            loggers: The Trainer's loggers.
            step: Step of the row.
            last_work_ns: When the last batch ended, on the meter's clock.
        """
        if not self._inject:
            return
        for logger in loggers:
            last = self._last_ns.get(id(logger))
            if last is not None and last >= last_work_ns:
                continue
            self._noted(id(logger), self._meter.now_ns())
            if any(base.__name__ == "WandbLogger" for base in type(logger).__mro__):
                with metering():
                    logger.experiment.summary.update(dict(self._safe_costs()))
            else:
                self._row(logger, step)

    def _row(self, logger: Any, step: int) -> None:
        costs = self._safe_costs()
        if costs:
            rows = self.users_rows
            with metering():
                logger.log_metrics(costs, step=step)
                logger.save()
            self.users_rows = rows
