"""What a wandb history, written offline by a real wandb, looks like with and without the monitor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costguard.records import METRIC_KEYS
from helpers import TOKENS, receipt_of, start

OF_A_GPU = {key for key in METRIC_KEYS if key.startswith(("costguard/gpu_", "costguard/energy_"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wandb")


@pytest.fixture(scope="module")
def read(folder: Path) -> dict[str, Any]:
    """Histories and summaries of three trainings, from their `.wandb` files."""
    child = start(Path(__file__).with_name("wandb_rows.py"), folder, WANDB_SILENT="true", WANDB_MODE="offline").finish()
    assert child.code == 0, child.err
    return dict(json.loads(child.out.splitlines()[-1]))


def _users(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith(("costguard/", "_"))} for row in rows]


@pytest.mark.parametrize("name", ["with", "always"])
def test_history_has_the_same_rows(read: dict[str, Any], name: str) -> None:
    """The monitor adds no row at all: what is left at the end goes into the summary."""
    assert len(read["without"]["history"]) > 1
    assert _users(read[name]["history"]) == _users(read["without"]["history"])


def test_rows_have_costs_as_seldom_as_asked(read: dict[str, Any]) -> None:
    """At most once a second by default, in each row if so asked."""
    with_costs = {name: ["costguard/spend_usd" in row for row in read[name]["history"]] for name in read}
    assert with_costs["with"][0]
    assert not all(with_costs["with"])
    assert all(with_costs["always"])
    assert not any(with_costs["without"])


@pytest.mark.parametrize("name", ["with", "always"])
def test_summary_has_every_key(read: dict[str, Any], name: str) -> None:
    """All metrics are in the summary, with the last values and every token."""
    summary = read[name]["summary"]
    assert {key for key in summary if key.startswith("costguard/")} == METRIC_KEYS - OF_A_GPU
    assert summary["costguard/tokens"] == 12 * TOKENS


@pytest.mark.parametrize("name", ["with", "always"])
def test_values_are_exact(read: dict[str, Any], name: str) -> None:
    """A price comes back to the last digit, from rows and from the summary."""
    prices = {row["costguard/usd_per_hour"] for row in read[name]["history"] if "costguard/usd_per_hour" in row}
    assert prices == {read[name]["summary"]["costguard/usd_per_hour"]} == {2.49}


def test_account_adds_up_with_wandb(read: dict[str, Any], folder: Path) -> None:
    """Logging to wandb is charged to logging and the account closes."""
    assert read
    for name in ("with", "always"):
        receipt = receipt_of(folder / name)
        assert receipt["time"]["activities_ns"]["logging"] > 0
        assert receipt["tokens"]["trained"] == 12 * TOKENS
