"""CostMonitor from a LightningCLI configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "cost_monitor.yaml"

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Runs the example's LightningCLI in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from lightning.pytorch.cli import LightningCLI

    from train_gpt import GPT, StdlibText

    def run(*args: str, run: bool = True) -> LightningCLI:
        return LightningCLI(GPT, StdlibText, save_config_callback=None, args=list(args), run=run)

    return run


def test_print_config_round_trips(cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """What `--print_config` prints, read back, prints the same."""
    with pytest.raises(SystemExit):
        cli("fit", "--config", str(CONFIG), "--print_config")
    once = capsys.readouterr().out
    (tmp_path / "again.yaml").write_text(once)
    with pytest.raises(SystemExit):
        cli("fit", "--config", str(tmp_path / "again.yaml"), "--print_config")
    assert capsys.readouterr().out == once
    monitor = yaml.safe_load(once)["trainer"]["callbacks"][0]
    assert monitor["class_path"] == "costguard.CostMonitor"
    assert monitor["init_args"]["usd_per_gpu_hour"] == 2.49


def _error(  # type: ignore[no-untyped-def]
    cli, callback: str, arguments: dict[str, object], folder: Path, capsys: pytest.CaptureFixture[str]
) -> str:
    """The one error that a callback's bad value ends the command with."""
    config = yaml.safe_load(CONFIG.read_text())
    config["trainer"]["callbacks"] = [{"class_path": callback, "init_args": arguments}]
    (folder / "bad.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(SystemExit) as end:
        cli("fit", "--config", str(folder / "bad.yaml"))
    assert end.value.code == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return error


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"usd_per_gpu_hour": "abc"}, "CostMonitor(usd_per_gpu_hour='abc'): not a number; expected US dollars"),
        ({"usd_per_gpu_hour": -1}, "CostMonitor(usd_per_gpu_hour=-1.0): negative; expected US dollars"),
        ({"usd_per_gpu_hour": float("nan")}, "CostMonitor(usd_per_gpu_hour=nan): not a finite number; expected"),
        ({"usd_per_gpu_hour": 2, "usd_per_hour": 3}, "give usd_per_gpu_hour (each paid GPU) or usd_per_hour"),
        ({"prices": {"prices": [{"amount": "-3"}]}}, "Price(amount=-3.0): negative; expected US dollars"),
        ({"gpus": 0}, "CostMonitor(gpus=0): expected how many GPUs are paid for"),
        ({"run_id": "a/b"}, "CostMonitor(run_id='a/b'): cannot name a folder"),
    ],
)
def test_a_bad_value_is_one_sentence(  # type: ignore[no-untyped-def]
    cli, arguments: dict[str, object], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Option, value and remedy in one sentence, exit code 2; not 80 lines about types."""
    assert sentence in _error(cli, "costguard.CostMonitor", arguments, tmp_path, capsys)


def test_a_price_book_from_yaml(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A whole price book is plain data, and a tenth stays a tenth."""
    config = yaml.safe_load(CONFIG.read_text())
    prices = [{"amount": 0.1}, {"amount": "1.05", "mode": "spot", "valid_from": "2026-12-01T00:00:00Z"}]
    book = {"currency": "EUR", "prices": prices}
    config["trainer"]["callbacks"] = [{"class_path": "costguard.CostMonitor", "init_args": {"prices": book}}]
    del config["seed_everything"]
    (tmp_path / "book.yaml").write_text(yaml.safe_dump(config))
    made = cli("--config", str(tmp_path / "book.yaml"), run=False)
    monitor = next(c for c in made.trainer.callbacks if c.state_key == "CostMonitor")
    assert monitor._said.book.currency == "EUR"
    assert [p.to_json()["amount"] for p in monitor._said.book.prices] == ["0.1", "1.05"]


def test_the_config_runs_the_example(tmp_path: Path) -> None:
    """`configs/cost_monitor.yaml` trains, here three steps of a small model, and leaves a receipt."""
    small = ["--trainer.max_steps=3", "--model.layers=1", "--model.width=32", "--data.max_bytes=100000"]
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.val_check_interval=3"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "train_gpt_cli.py"), "fit", "--config", str(CONFIG), *small, *quiet],
        cwd=tmp_path,
        env={**os.environ, "COSTGUARD_RUN_ID": "from-cli"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    from costguard import load_receipt

    receipt = load_receipt(str(tmp_path / "runs" / "cli")).data
    assert receipt["run"]["id"] == "from-cli"
    assert receipt["run"]["tags"] == {"project": "demo", "stage": "pretrain"}
    assert receipt["tokens"]["trained"] == 3 * 8 * 128
    assert sum(receipt["time"]["activities_ns"].values()) == receipt["time"]["elapsed_device_ns"]


def test_a_guard_from_yaml_is_the_guard_from_python(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Limits, budgets and priors by class_path and init_args; also in a fit that it stops."""
    from costguard import Budget, BudgetStopping
    from costguard.policies.reserve import StopPriors

    arguments: dict[str, object] = {
        "limit_usd": 250,
        "usd_per_gpu_hour": "2.49",
        "warn_at": [0.5, 0.8],
        "budgets": [{"class_path": "costguard.Budget", "init_args": {"limit_gpu_hours": 9, "scope": "day"}}],
        "priors": {"class_path": "costguard.policies.reserve.StopPriors", "init_args": {"save_ns": 5}},
    }
    config = yaml.safe_load(CONFIG.read_text())
    config["trainer"]["callbacks"] = [{"class_path": "costguard.BudgetStopping", "init_args": arguments}]
    del config["seed_everything"]
    (tmp_path / "guard.yaml").write_text(yaml.safe_dump(config))
    made = cli("--config", str(tmp_path / "guard.yaml"), run=False)
    (guard,) = [c for c in made.trainer.callbacks if isinstance(c, BudgetStopping)]
    same = BudgetStopping(
        limit_usd=250,
        usd_per_gpu_hour="2.49",
        warn_at=[0.5, 0.8],
        budgets=[Budget(limit_gpu_hours=9, scope="day")],
        priors=StopPriors(save_ns=5),
    )
    assert guard._budgets == same._budgets
    assert guard._priors == same._priors
    assert guard.stated_prices.same_as(same.stated_prices)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"limit_usd": "abc"}, "BudgetStopping(limit_usd='abc'): not a number; expected US dollars"),
        ({"limit_usd": 0}, "BudgetStopping(limit_usd=0.0): nothing may be spent"),
        ({}, "no limit; give limit_usd=250"),
        ({"limit_usd": 5, "webhook": "x"}, "BudgetStopping(webhook='x'): expected a URL"),
    ],
)
def test_a_bad_limit_is_one_sentence(  # type: ignore[no-untyped-def]
    cli, arguments: dict[str, object], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for the monitor: option, value and remedy, exit code 2."""
    assert sentence in _error(cli, "costguard.BudgetStopping", arguments, tmp_path, capsys)
