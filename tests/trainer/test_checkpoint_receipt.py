"""The receipt of real trainings with `CostMonitor` and `CheckpointTiering`: what their checkpoints cost."""

from __future__ import annotations

import json
import re
import shutil
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from tiering import Remembering, records, saves, tiering, tiers, train

from costguard import StorageClass, load_receipt
from costguard.checkpoints.cabinet import room_above
from costguard.checkpoints.expiry import expire
from costguard.checkpoints.store import LocalStore
from costguard.cli.main import main
from costguard.keep import last
from helpers import LIGHTNING_WARNINGS, Tiny, assert_adds_up, loader, monitor, run_folders

pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]
CLASSES: dict[str, Any] = {"storage_class": "s3:GLACIER_IR", "hot_class": "ebs:gp3"}


def costs_of(folder: Path, run: int = -1) -> dict[str, Any]:
    """The receipt's part on checkpoints, of one of the runs of a folder."""
    receipt = dict(load_receipt(str(run_folders(folder / "run")[run])).data)
    assert_adds_up(receipt)
    costs: dict[str, Any] = receipt["checkpoint_costs"]
    return costs


def test_text_json_and_page_say_what_checkpoints_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six saves, two of which stay: every one with its tier and its money, once, and none of it in the total."""
    train(tmp_path, monitor(), saves(tmp_path), tiering(tmp_path, keep=last(2), **CLASSES), steps=6)
    page = tmp_path / "page.html"
    capsys.readouterr()
    assert main(["report", str(tmp_path / "run"), "--json", "--html", str(page)]) == 0
    receipt = json.loads(capsys.readouterr().out)
    assert_adds_up(receipt)
    costs = receipt["checkpoint_costs"]
    size = records(tmp_path)[0].size_bytes
    assert (costs["saves"]["count"], costs["saves"]["bytes"]) == (6, 6 * size)
    assert 0 < costs["saves"]["blocked_median_s"] <= costs["saves"]["blocked_p95_s"] <= costs["saves"]["blocked_s"]
    assert sum(Decimal(row["blocked"]) for row in costs["each"]) == pytest.approx(Decimal(costs["saves"]["money"]))
    assert Decimal(costs["saves"]["money"]) <= Decimal(receipt["spend"]["by_activity"]["checkpoint"])
    assert {row["step"]: row["tier"] for row in costs["each"]} == tiers(tmp_path)
    storage = costs["storage"]
    assert (storage["there"], storage["deleted"], storage["unseen"], storage["source"]) == (6, 0, 0, "list")
    assert (storage["requests"], storage["restores"], storage["checks"]) == (8, 0, 4)
    assert Decimal(storage["money"]["requests"]) == Decimal("0.02") * 8 / 1000
    assert Decimal(storage["money"]["total"]) > 0
    assert receipt["spend"]["by_meter"].keys() == {"device"}
    month = Decimal(size) / 10**9 * (2 * Decimal("0.08") + 4 * Decimal("0.004"))
    assert Decimal(storage["money_per_month"]) == pytest.approx(month, abs=Decimal("1e-12"))
    interval = costs["interval"]
    assert (interval["gaps"], interval["failures"], interval["failures_matter"]) == (5, 0, False)
    html = page.read_text(encoding="utf-8")
    for title in ("What checkpoints cost", "How often to save"):
        assert title in html
    assert main(["report", str(tmp_path / "run")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "storage beside the total" in text
    assert "Failures are not the risk of this run" in text
    assert re.search(r"estimated checkpoint storage: .*GLACIER_IR: AWS list prices.*2026-09", text)


def test_without_the_list_the_journal_says_the_same(tmp_path: Path) -> None:
    """What training has told is all there: moved to another machine, the receipt differs in nothing but its source."""
    train(tmp_path, monitor(), saves(tmp_path), tiering(tmp_path, **CLASSES))
    before = costs_of(tmp_path)
    shutil.rmtree(tmp_path / "run" / "costguard-checkpoints")
    after = costs_of(tmp_path)
    assert (before["storage"]["source"], after["storage"]["source"]) == ("list", "journal")
    assert {row["id"]: row["tier"] for row in after["each"]} == {row["id"]: row["tier"] for row in before["each"]}
    same = ("requests", "restores", "checks", "there", "money_per_month")
    assert [after["storage"][name] for name in same] == [before["storage"][name] for name in same]


def test_a_failure_and_a_resume_from_the_cold(tmp_path: Path) -> None:
    """What the failure lost, the read of what was gone on from, and both attempts' saves in one receipt."""
    module = Remembering(fails_at=4)
    with pytest.raises(RuntimeError, match="training_step failed"):
        train(tmp_path, monitor(), saves(tmp_path, every_n_train_steps=2), tiering(tmp_path, **CLASSES), module=module)
    assert tiers(tmp_path) == {2: "cold", 4: "hot"}
    nothing = costs_of(tmp_path)["interval"]
    assert nothing["failures"] == 0  # it failed in the step after a save
    gone = tmp_path / "saves" / "step=2.ckpt"
    train(tmp_path, monitor(), saves(tmp_path, every_n_train_steps=2), tiering(tmp_path, **CLASSES), ckpt_path=gone)
    assert len(run_folders(tmp_path / "run")) == 1
    costs = costs_of(tmp_path)
    assert [(row["step"], row["restores"]) for row in costs["each"] if row["restores"]] == [(2, 1)]
    assert costs["storage"]["restores"] == 1
    # Steps 3 and 4 of the first attempt were done again.
    assert costs["interval"]["failures"] == 1
    assert costs["interval"]["lost"]["device_hours"] > 0
    assert len(costs["each"]) == len(records(tmp_path))


def test_what_model_checkpoint_deletes_has_ended(tmp_path: Path) -> None:
    """Without a rule nothing moves: what was deleted cost its time on the hot disk, and nothing from now on."""
    train(tmp_path, monitor(), saves(tmp_path), tiering(tmp_path, keep=None, **CLASSES))
    costs = costs_of(tmp_path)
    assert {row["tier"] for row in costs["each"]} <= {"deleted", "hot"}
    assert [row["step"] for row in costs["each"] if row["tier"] == "hot"] == [5]
    assert (costs["storage"]["there"], costs["storage"]["money"]["requests"]) == (1, "0")


def test_runs_that_share_a_folder_pay_for_their_own(tmp_path: Path) -> None:
    """Two experiments in one folder, each with its own receipt, whatever the list holds."""
    for _ in range(2):
        train(tmp_path, monitor(), saves(tmp_path, save_top_k=-1), tiering(tmp_path, **CLASSES), steps=3)
    assert len(records(tmp_path)) == 6
    ids = [{row["id"] for row in costs_of(tmp_path, run)["each"]} for run in (0, 1)]
    assert [len(each) for each in ids] == [3, 3]
    assert not ids[0] & ids[1]


def test_what_was_deleted_by_command_after_training(tmp_path: Path) -> None:
    """It costs nothing from now on; for how long it was there nobody noted, so that it is in no sum."""
    train(tmp_path, monitor(), saves(tmp_path), tiering(tmp_path, **CLASSES))
    room = room_above(str(tmp_path / "run"))
    first = next(record for record in records(tmp_path) if record.tier == "cold")
    expire(room, first.id)
    costs = costs_of(tmp_path)
    assert [row["id"] for row in costs["each"] if row["tier"] == "unseen"] == [first.id]
    assert (costs["storage"]["there"], costs["storage"]["unseen"]) == (4, 1)


def test_unknown_classes_and_prices_of_ones_own(tmp_path: Path) -> None:
    """Without classes storage is unknown and says what to name; a `StorageClass` of one's own is taken as it is."""
    train(tmp_path, monitor(), saves(tmp_path), tiering(tmp_path))
    storage = costs_of(tmp_path)["storage"]
    assert (storage["money"]["hot"], storage["money"]["cold"], storage["money_per_month"]) == (None, None, None)
    assert storage["gb_months"]["hot"] > 0
    assert 'CheckpointTiering(hot_class="ebs:gp3", storage_class="s3:GLACIER_IR")' in " ".join(
        load_receipt(str(run_folders(tmp_path / "run")[-1])).text().split()
    )
    own = StorageClass(name="bucket", usd_per_gb_month="0.01", retrieval_usd_per_gb=0, put_usd_per_1000=0)
    other = tmp_path / "other"
    train(other, monitor(), saves(other), tiering(other, storage_class=own, hot_class=own))
    money = costs_of(other)["storage"]["money"]
    assert (money["requests"], money["reads"]) == ("0", "0")
    assert money["total"] is not None


@pytest.mark.filterwarnings("ignore")
def test_prices_of_ones_own_from_a_lightning_cli_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class is plain data in a YAML, and a name of the table beside it."""
    from lightning.pytorch import LightningDataModule
    from lightning.pytorch.cli import LightningCLI

    class Data(LightningDataModule):
        def train_dataloader(self) -> Any:
            return loader(2)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(YAML)
    LightningCLI(Tiny, Data, save_config_callback=None, args=["fit", "--config", "config.yaml"])
    prices = costs_of(tmp_path)["storage"]["prices"]
    assert (prices["hot"]["name"], prices["hot"]["usd_per_gb_month"]) == ("nvme", "0.11")
    assert (prices["cold"]["name"], prices["cold"]["usd_per_gb_month"]) == ("GLACIER_IR", "0.004")


YAML = """
trainer:
  accelerator: cpu
  devices: 1
  max_steps: 2
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
  default_root_dir: run
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {dirpath: saves, filename: "{step}", every_n_train_steps: 1}
    - class_path: costguard.CostMonitor
      init_args: {usd_per_gpu_hour: "2.49", peak_flops_per_s: 1e9}
    - class_path: costguard.CheckpointTiering
      init_args:
        cold: cold
        keep: last(1)
        storage_class: s3:GLACIER_IR
        hot_class:
          class_path: costguard.StorageClass
          init_args: {name: nvme, usd_per_gb_month: "0.11", retrieval_usd_per_gb: "0"}
"""


def test_what_moves_do_to_a_batch_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow batches beside slow moves: both kinds are counted, and the ratio is that of their means."""

    class Slow(Callback):
        def on_before_backward(self, *_: Any) -> None:
            time.sleep(0.004)

    put = LocalStore.put

    def slowly(*arguments: Any) -> None:
        time.sleep(0.1)
        put(*arguments)

    monkeypatch.setattr(LocalStore, "put", slowly)
    callbacks = [monitor(), Slow(), saves(tmp_path, every_n_train_steps=20), tiering(tmp_path)]
    train(tmp_path, *callbacks, steps=100)
    found = costs_of(tmp_path)["transfers"]
    assert min(found["batches_beside"], found["batches_alone"]) > 10
    assert found["batches_beside"] + found["batches_alone"] <= 99  # the first one counts as compiling
    assert 0.004 < found["batch_alone_s"] < 0.1
    assert found["ratio"] == pytest.approx(found["batch_beside_s"] / found["batch_alone_s"])
    assert 0.3 < found["ratio"] < 3
    capsys.readouterr()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert main(["report", str(tmp_path / "run"), "--html", str(tmp_path / "page.html")]) == 0
    said = f"otherwise ({found['batches_alone']:,}): {found['ratio']:.2f} of it"
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in (tmp_path / "page.html").read_text()


def test_without_a_move_beside_a_batch_nothing_is_said_of_it(tmp_path: Path) -> None:
    """Nothing moves: unknown, and not a ratio of one."""
    train(tmp_path, monitor(), saves(tmp_path), tiering(tmp_path, keep=last(9)), steps=6)
    assert costs_of(tmp_path)["transfers"] is None
