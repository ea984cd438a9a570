"""What the user said to BudgetStopping, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from costguard.errors import config_error
from costguard.policies.budget import DEFAULT_THRESHOLDS, Budget, Threshold, check_distinct, check_limits
from costguard.policies.reserve import StopPriors

OnBreach = Literal["auto", "return", "exit"]
OnStoreDown = Literal["stop_at_credit", "continue"]


def check_choices(on_breach: str, on_store_down: str) -> None:
    """Refuse words that mean nothing.

    Raises:
        ConfigError: For the first.
    """
    if on_store_down not in get_args(OnStoreDown):
        raise config_error(f"BudgetStopping(on_store_down={on_store_down!r}): expected stop_at_credit or continue.")
    if on_breach not in get_args(OnBreach):
        raise config_error(f"BudgetStopping(on_breach={on_breach!r}): expected auto, return or exit.")


def all_budgets(
    limit_usd: float | str | None,
    limit_gpu_hours: float | str | None,
    budgets: Sequence[Budget] | None,
    warn_at: Sequence[float] | None,
    *,
    needed: bool,
) -> list[Budget]:
    """Every budget that was given, the short form first.

    Raises:
        ConfigError: If one cannot be used, two limit the same, or none is given though one is `needed`.
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
    """Refuse arguments of another kind than is expected.

    Raises:
        ConfigError: For the first.
    """
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
