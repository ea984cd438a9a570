"""costguard: what a Lightning training run costs, while it runs.

The public names are imported when they are first used, so that `import costguard` loads neither torch nor
lightning.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from costguard.ledger import process_time as _process_time  # noqa: F401 - registers the exit handler early

if TYPE_CHECKING:
    from costguard.checkpoints.fetch import fetch
    from costguard.errors import ConfigError, CostguardError, CostguardWarning, RunNotFoundError, StartRefused
    from costguard.lightning.budget_stopping import BudgetStopping
    from costguard.lightning.checkpoint_tiering import CheckpointTiering
    from costguard.lightning.cost_monitor import CostMonitor
    from costguard.policies.budget import Budget, Threshold
    from costguard.prices import Price, PriceBook, StorageClass
    from costguard.reports.receipt import Receipt, load_receipt

__version__ = "0.1.0"

_HOMES = {
    "Budget": "costguard.policies.budget",
    "BudgetStopping": "costguard.lightning.budget_stopping",
    "CheckpointTiering": "costguard.lightning.checkpoint_tiering",
    "ConfigError": "costguard.errors",
    "CostMonitor": "costguard.lightning.cost_monitor",
    "CostguardError": "costguard.errors",
    "CostguardWarning": "costguard.errors",
    "Price": "costguard.prices",
    "PriceBook": "costguard.prices",
    "Receipt": "costguard.reports.receipt",
    "RunNotFoundError": "costguard.errors",
    "StartRefused": "costguard.errors",
    "StorageClass": "costguard.prices",
    "Threshold": "costguard.policies.budget",
    "fetch": "costguard.checkpoints.fetch",
    "load_receipt": "costguard.reports.receipt",
}

__all__ = [
    "Budget",
    "BudgetStopping",
    "CheckpointTiering",
    "ConfigError",
    "CostMonitor",
    "CostguardError",
    "CostguardWarning",
    "Price",
    "PriceBook",
    "Receipt",
    "RunNotFoundError",
    "StartRefused",
    "StorageClass",
    "Threshold",
    "__version__",
    "fetch",
    "load_receipt",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'costguard' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return list(__all__)
