"""What costguard must not do to a training, and what it must still know when training does odd things."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

from costguard import CostguardWarning, CostMonitor, load_receipt
from costguard.errors import ConfigError, CostguardError
from costguard.ledger.allocation import read_allocation
from costguard.ledger.files import LocalFiles
from costguard.ledger.mounts import filesystem_of
from costguard.lightning import membership
from costguard.lightning.membership import Membership, checked_word
from helpers import Saves, Tiny, fit, loader, monitor, quiet_trainer, receipt_of

TESTS = Path(__file__).resolve().parents[1]
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .* does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before"),
]


class Dropped(Tiny):
    """Uses random numbers in training."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return (self.weight * torch.rand(())) ** 2


@pytest.mark.parametrize("seed", [1, 2])
def test_weights_are_the_same_with_and_without_the_monitor(seed: int, tmp_path: Path) -> None:
    """The user's random numbers are not touched, the measurement of the peak included."""
    weights = []
    for callbacks in ([], [CostMonitor(usd_per_gpu_hour=1)]):
        torch.manual_seed(seed)
        module = Dropped(logs=False)
        quiet_trainer(tmp_path, *callbacks).fit(module, loader(5))
        weights.append(module.weight.item())
    assert weights[0] == weights[1]


def test_a_validation_before_the_fit_does_not_cut_a_run_in_two(tmp_path: Path) -> None:
    """`validate`, then `fit` from a checkpoint: all of it belongs to the run that wrote the checkpoint."""
    fit(tmp_path, monitor(run_id="origin"), Saves(tmp_path, 2), batches=3)
    cost, module = monitor(), Tiny()
    trainer = quiet_trainer(tmp_path, cost)
    trainer.validate(module, loader(1), verbose=False)
    assert cost.run_dir is not None
    assert not cost.run_dir.endswith("origin")
    moved = tmp_path / "moved.ckpt"
    (tmp_path / "step-2.ckpt").rename(moved)
    trainer.fit(module, loader(4), ckpt_path=moved)
    assert cost.run_dir.endswith("origin")
    receipt = receipt_of(tmp_path)
    assert [a["attempt"] for a in receipt["run"]["attempts"]] == [1, 2]
    assert receipt["time"]["activities_ns"]["validation"] > 0


def test_an_asynchronous_save_gets_its_size_when_it_is_there(tmp_path: Path) -> None:
    """AsyncCheckpointIO returns before the file is written; the receipt has its size all the same."""
    plugin = AsyncCheckpointIO(TorchCheckpointIO())
    trainer = quiet_trainer(tmp_path, monitor(), Saves(tmp_path, 2), plugins=[plugin])
    trainer.fit(Tiny(), loader(5))
    rows = receipt_of(tmp_path)["checkpoints"]
    assert [r["step"] for r in rows] == [2]
    assert [r["bytes"] for r in rows] == [os.path.getsize(r["path"]) for r in rows]


@pytest.mark.skipif(filesystem_of("/dev/shm/x") != "tmpfs", reason="needs a tmpfs at /dev/shm")
def test_a_disk_that_dies_with_the_node_is_warned_of_at_start(tmp_path: Path) -> None:
    """A journal in memory is said to be lost with the machine, and what to do; a mirror silences it."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        with pytest.warns(CostguardWarning, match=r"dies with this machine .*tmpfs.*mirror it"):
            fit(Path(folder), monitor(), batches=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error", CostguardWarning)
            cost = monitor(dir=f"file://{tmp_path}/mirror", run_id="m")
            fit(Path(folder), cost, batches=2)
            cost._run.release(0)  # before its folder goes


@pytest.mark.parametrize(
    "word", [None, 3, {}, {"v": 1}, {"v": 1, "run": "../../x", "attempt": 1, "save": 1}, {"run": 1}]
)
def test_a_strange_word_in_a_checkpoint_says_nothing(word: Any) -> None:
    """Whatever stands in a checkpoint under our key, resuming works."""
    assert checked_word(word) == {}


def test_a_copy_meters_for_itself(tmp_path: Path) -> None:
    """A monitor in use can be copied; the copy has the user's words and nothing of the run."""
    cost = monitor(tags={"a": "b"})
    fit(tmp_path, cost, batches=2)
    other = copy.deepcopy(cost)
    assert other.run_dir is None
    fit(tmp_path / "other", other, batches=2)
    assert receipt_of(tmp_path / "other")["run"]["tags"] == {"a": "b"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tags": "abc"}, "CostMonitor(tags='abc'): expected labels"),
        ({"prices": []}, "CostMonitor(prices=[]): expected a PriceBook"),
        ({"count_tokens": 5}, "CostMonitor(count_tokens=5): expected a function"),
        ({"planned_tokens": -1}, "CostMonitor(planned_tokens=-1): expected a count of tokens"),
        ({"peak_flops_per_s": float("inf")}, "CostMonitor(peak_flops_per_s=inf): expected FLOP/s"),
        ({"log_every_s": -1}, "CostMonitor(log_every_s=-1): expected seconds"),
        ({"gap": "maybe"}, "CostMonitor(gap='maybe'): expected one of auto, held, released"),
        ({"gpus": True}, "CostMonitor(gpus=True): expected how many GPUs"),
        ({"run_id": "a/b"}, "CostMonitor(run_id='a/b'): cannot name a folder"),
    ],
)
def test_a_bad_argument_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    """Option, value and what is expected, before anything begins."""
    with pytest.raises(ConfigError) as error:
        CostMonitor(**arguments)
    assert sentence in str(error.value)


def test_live_mfu_is_the_receipts(tmp_path: Path) -> None:
    """Over two attempts the bar, the logger and the receipt tell one MFU: all attempts, the best peak."""
    fit(tmp_path, monitor(peak_flops_per_s=2e9), Saves(tmp_path, 3), batches=3)
    cost = monitor(peak_flops_per_s=1e9)
    trainer = quiet_trainer(tmp_path, cost, max_epochs=2)
    trainer.fit(Tiny(), loader(3), ckpt_path=tmp_path / "step-3.ckpt")
    figures = cost._run.figures()
    mfu = receipt_of(tmp_path)["mfu"]
    assert mfu["peak_flops_per_s"] == 2e9
    assert figures.mfu == pytest.approx(mfu["step"])


class Fussy(Logger):
    """Takes its step by keyword only, and fails when told to."""

    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    @property
    def name(self) -> str:
        return "fussy"

    @property
    def version(self) -> str:
        return "0"

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing to do."""

    def log_metrics(self, metrics: dict[str, float], *, step: int | None = None) -> None:  # type: ignore[override]
        if self.fails:
            raise OSError(28, "No space left on device")
        self.rows.append(dict(metrics))


def test_a_logger_with_a_keyword_only_step_works(tmp_path: Path) -> None:
    """The step is handed on as Lightning hands it over."""
    logger = Fussy()
    quiet_trainer(tmp_path, monitor(), logger=logger).fit(Tiny(), loader(3))
    assert any("costguard/spend_usd" in row for row in logger.rows)


def test_our_own_row_never_ends_training(tmp_path: Path) -> None:
    """A logger that fails on a row that only we wanted costs a warning."""
    logger = Fussy()
    logger.fails = True
    trainer = quiet_trainer(tmp_path, monitor(log_every_s=0), logger=logger, max_epochs=3)
    with pytest.warns(CostguardWarning, match="No space left on device"):
        trainer.fit(Tiny(logs=False), loader(3))
    assert trainer.global_step == 9


def test_ranks_fail_together_when_the_first_one_fails(tmp_path: Path) -> None:
    """What only rank 0 can find out is told to all: the others get its error in place of a wait without end."""
    told: list[Any] = []

    def first(value: Any) -> Any:
        told.append(value)
        return value

    def member(rank: int) -> Membership:
        return Membership(str(tmp_path), rank, "a/b", None, read_allocation({}, mounts=""), LocalFiles())

    with pytest.raises(ConfigError, match="cannot name a folder"):
        member(0).decide(first)
    with pytest.raises(ConfigError, match="cannot name a folder"):
        member(1).decide(lambda _: told[0])
    assert member(1).new() is None


def test_a_failure_of_our_own_is_of_one_kind_on_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no fault of the user's ends training on no rank: else one would go on and wait for the other."""
    told: list[Any] = []

    def ill(*_: object) -> None:
        raise RuntimeError("disk on fire")

    def member(rank: int) -> Membership:
        return Membership(str(tmp_path), rank, None, None, read_allocation({}, mounts=""), LocalFiles())

    monkeypatch.setattr(membership, "identify", ill)
    with pytest.raises(RuntimeError, match="disk on fire"):
        member(0).decide(lambda value: told.append(value) or value)
    with pytest.raises(CostguardError, match="disk on fire") as other:
        member(1).decide(lambda _: told[0])
    assert not isinstance(other.value, ConfigError)


SHORT = """
import sys
sys.path.insert(0, {tests!r})
from helpers import Tiny, loader, monitor, quiet_trainer
quiet_trainer({folder!r}, monitor(dir="s3://bucket/runs", run_id="r")).fit(Tiny(), loader(5))
"""


def test_a_store_with_a_host_name_has_the_journal_when_the_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training of a few seconds is mirrored to S3 by host name, although Python forbids threads at its end."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://localhost:{port}",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # another test may have had another endpoint
        code = SHORT.format(tests=str(TESTS), folder=str(tmp_path / "out"))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert "CostguardWarning" not in done.stderr
        (attempt,) = load_receipt("s3://bucket/runs").data["run"]["attempts"]
        assert attempt["last_step"] == 5
    finally:
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        server.stop()
