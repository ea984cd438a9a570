"""A budget: what may be spent, what is said on the way, and when a run stops or must not start."""

from costguard.policies.budget.judge import (
    BudgetReason,
    Evaluation,
    Facts,
    Mark,
    admit,
    evaluate,
    evaluate_all,
    in_order,
)
from costguard.policies.budget.limits import (
    DEFAULT_THRESHOLDS,
    Budget,
    Threshold,
    check_distinct,
    check_enforceable,
    check_limits,
)

__all__ = [
    "DEFAULT_THRESHOLDS",
    "Budget",
    "BudgetReason",
    "Evaluation",
    "Facts",
    "Mark",
    "Threshold",
    "admit",
    "check_distinct",
    "check_enforceable",
    "check_limits",
    "evaluate",
    "evaluate_all",
    "in_order",
]
