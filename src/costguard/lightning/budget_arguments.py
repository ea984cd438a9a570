"""What the user says to BudgetStopping, checked, and the budgets that are made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from costguard.errors import config_error
from costguard.policies.budget import DEFAULT_THRESHOLDS, Budget, Threshold, check_distinct, check_limits
from costguard.policies.reserve import StopPriors


def all_budgets(
    limit_usd: float | str | None,
    limit_gpu_hours: float | str | None,
    budgets: Sequence[Budget] | None,
    warn_at: Sequence[float] | None,
    *,
    needed: bool,
) -> list[Budget]:
    """All budgets, the one of the limit's own arguments first.

    Raises:
        ConfigError: If there is none though one is needed, or two limit the same.
    """
    thresholds: Sequence[Threshold] = DEFAULT_THRESHOLDS
    if warn_at is not None:
        kept = [t for t in DEFAULT_THRESHOLDS if t.on != "spent"]
        thresholds = (*(Threshold(at=at) for at in warn_at), *kept)
    found = list(budgets or ())
    if limit_usd is not None or limit_gpu_hours is not None or (needed and not found):
        check_limits("BudgetStopping", limit_usd, limit_gpu_hours)
        found.insert(0, Budget(limit_usd=limit_usd, limit_gpu_hours=limit_gpu_hours, thresholds=thresholds))
    check_distinct(found)
    return found


def check_kinds(**given: Any) -> None:
    """Raise a ConfigError for the first argument that is not of its kind."""
    for option, value in given.items():
        fits, expected = _KINDS[option]
        if value is not None and not fits(value):
            raise config_error(f"BudgetStopping({option}={value!r}): expected {expected}.")


def _listed(value: Any, kind: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, kind) for each in value)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "budgets": (lambda v: _listed(v, Budget), "Budget objects, such as [Budget(limit_usd=250)]"),
    "warn_at": (lambda v: _listed(v, (int, float)), "a list of shares of the limit, such as [0.5, 0.8]"),
    "webhook": (
        lambda v: isinstance(v, str) and v.startswith(("https://", "http://")),
        "a URL such as https://hooks.example/x",
    ),
    "on_alert": (callable, "a function of a verdict"),
    "priors": (lambda v: isinstance(v, StopPriors), "StopPriors, such as StopPriors(save_ns=30_000_000_000)"),
    "pot": (lambda v: isinstance(v, str) and v.strip() != "", "a folder or URL in which a pot lies"),
}
