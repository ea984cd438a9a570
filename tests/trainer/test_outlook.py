"""Where a run is heading: forecasts that are kept and scored, behind plan and over cost, meters that grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from costguard import CostguardWarning, CostMonitor
from costguard.cli.main import main
from costguard.ledger.places import read_folder
from costguard.lightning import growth_watch, outlook
from costguard.policies import progress
from helpers import LIGHTNING_WARNINGS, Multiplying, loader, monitor, quiet_trainer, receipt_of, run_folders

pytestmark = pytest.mark.filterwarnings(*LIGHTNING_WARNINGS)


class Slow(Multiplying):
    """A step of 30 ms, so that ticks and steps are about alike."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        import time

        time.sleep(0.03)
        return super().training_step(batch, batch_idx)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at each tick, and each tick at each batch."""
    from costguard.lightning import training

    monkeypatch.setattr(training, "NS_PER_S", 0)
    monkeypatch.setattr(outlook, "SEE_EVERY_NS", 0)
    monkeypatch.setattr(outlook, "FORECAST_EVERY_NS", 10**9)
    monkeypatch.setattr(outlook, "KEEP_EVERY_NS", 0)


def _events(folder: Path, kind: str) -> list[Any]:
    account = read_folder(str(run_folders(folder)[0]))
    return [event for rank in account.ranks for event in rank.events if event["k"] == kind]


@pytest.mark.usefixtures("often")
def test_forecasts_are_kept_and_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The journal has them as they were made, and `costguard backtest` holds them to what came."""
    cost = monitor()
    quiet_trainer(tmp_path, cost, max_steps=100, max_epochs=-1).fit(Slow(), loader(25))
    made = _events(tmp_path, "forecast")
    assert len(made) >= 4
    assert all(event["made"]["total"] == 100 for event in made)
    assert main(["backtest", str(tmp_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["written"]) == len(made)
    assert {row["progress"] for row in data["made_again"]} <= {0.01, 0.05, 0.1, 0.25, 0.5, 0.75}
    last = data["written"][-1]
    assert last["low_s"] <= last["forecast_s"] <= last["high_s"]
    assert main(["backtest", str(tmp_path)]) == 0
    assert "rule of three" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:costguard.*daily line")
@pytest.mark.usefixtures("often")
def test_behind_plan_and_over_cost_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as slow and dear as planned: one alert, in the receipt too."""
    monkeypatch.setattr(progress, "CONFIRM_NS", 0)
    cost = CostMonitor(usd_per_gpu_hour=3600, planned_usd=1.5, planned_hours=0.0003, peak_flops_per_s=1e9)
    trainer = quiet_trainer(tmp_path, cost, max_steps=60, max_epochs=-1)
    with pytest.warns(CostguardWarning, match="Behind plan and over cost"):
        trainer.fit(Slow(), loader(20))
    verdicts = [v for v in receipt_of(tmp_path)["verdicts"] if v["kind"] == "progress"]
    assert [v["action"] for v in verdicts].count("alert") == 1
    assert verdicts[0]["action"] == "alert"


@pytest.mark.usefixtures("often")
def test_an_hour_that_is_far_off_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of a tenth of a second here, after more than eight of which gigabytes of checkpoints come at once."""
    monkeypatch.setattr(growth_watch, "NS_PER_HOUR", 100_000_000)
    cost = monitor()

    class Writes(Slow):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if self.global_step == 55 and cost.metered is not None:
                cost.metered.checkpoint_bytes += 5 * 10**9
            return super().training_step(batch, batch_idx)

    trainer = quiet_trainer(tmp_path, cost, max_steps=65, max_epochs=-1)
    with pytest.warns(CostguardWarning, match="grew by"):
        trainer.fit(Writes(), loader(65))
    (verdict,) = [v for v in receipt_of(tmp_path)["verdicts"] if v["kind"] == "growth"]
    assert verdict["message"].startswith("Checkpoint bytes grew by")


@pytest.mark.usefixtures("often")
def test_a_day_over_its_line_is_told_once(tmp_path: Path) -> None:
    """The plan spends a cent a day; this run does so in a moment."""
    cost = monitor(usd_per_gpu_hour=3600, planned_usd="0.01", planned_hours=24)
    trainer = quiet_trainer(tmp_path, cost, max_steps=20, max_epochs=-1)
    with pytest.warns(CostguardWarning, match="daily line"):
        trainer.fit(Slow(), loader(20))
    verdicts = [v for v in receipt_of(tmp_path)["verdicts"] if v["kind"] == "daily_line"]
    assert len(verdicts) == 1
