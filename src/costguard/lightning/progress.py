"""Two short fields in the Trainer's progress bar: what was spent, and MFU."""

from __future__ import annotations

from typing import Any

from costguard.ledger.live import Figures
from costguard.lightning.instances import Instances, Method
from costguard.units import NS_PER_HOUR, format_money


class ProgressFields:
    """Adds fields to the bar; the values are set from outside, so a refresh costs nothing."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def wrap(self, instances: Instances, bar: Any) -> None:
        """Add the fields to what a bar shows."""
        instances.wrap(bar, "get_metrics", self._with_fields)

    def show(self, figures: Figures, currency: str) -> None:
        """Set the values, money in a currency."""
        if figures.spend is not None:
            self._fields = {"cost": format_money(figures.spend, currency)}
        else:
            self._fields = {"device_h": f"{figures.device_ns / NS_PER_HOUR:.3g}"}
        if figures.mfu is not None:
            self._fields["mfu"] = f"{figures.mfu:.1%}"

    def _with_fields(self, original: Method) -> Method:
        def get_metrics(*args: Any, **kwargs: Any) -> dict[str, Any]:
            return {**original(*args, **kwargs), **self._fields}

        return get_metrics
