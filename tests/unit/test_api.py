"""What the package promises from outside: names, laziness, the metric table."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import costguard
from costguard.records import ACTIVITY_LABELS, METRICS, Activity

ROOT = Path(__file__).resolve().parents[2]


def test_public_names_are_these() -> None:
    """A public name comes or goes only on purpose."""
    assert set(costguard.__all__) == {
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
    }


def test_every_public_name_is_there() -> None:
    """Each name in `__all__` can be had, and what is not there is said plainly."""
    assert all(getattr(costguard, name) is not None for name in costguard.__all__)
    assert not hasattr(costguard, "BudgetStopper")


def test_import_loads_neither_torch_nor_lightning() -> None:
    """`import costguard` is quick."""
    code = "import sys, costguard; sys.exit(bool({'torch', 'lightning', 'fsspec'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_lightning_the_remedy_is_named() -> None:
    """Where torch and lightning are missing, CostMonitor says what to install, in one line."""
    code = (
        "import sys; sys.modules['lightning'] = None\n"
        "import costguard\n"
        "try:\n    costguard.CostMonitor\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'lightning-costguard[lightning]'" in done.stdout
    assert len(done.stdout.strip().splitlines()) == 1


def test_readme_has_the_metric_table() -> None:
    """The README's table of metrics is the one that the code writes by."""
    rows = re.findall(r"^\| `(costguard/\w+)` \| (.+?) \| (.+?) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows == [(m.key, m.unit, m.meaning) for m in METRICS]


def test_activities_are_the_closed_set_in_their_written_order() -> None:
    """The numbers of activities stand in pages on disks: they never change."""
    assert (
        *("provision", "startup", "restore", "compile", "data_wait", "train", "validation", "checkpoint"),
        *("demotion", "logging", "metering", "idle", "hung", "teardown", "gap"),
    ) == ACTIVITY_LABELS
    assert [int(a) for a in Activity] == list(range(15))
