"""Tokens, padding and samples of each kind of batch, counted through a real training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from costguard import CostguardWarning
from helpers import LIGHTNING_WARNINGS, Tiny, fit, loader, monitor, quiet_trainer, receipt_of

pytestmark = [pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS]

IDS = torch.ones(2, 8, dtype=torch.int64)
MASK = torch.tensor([[1] * 8, [1] * 3 + [0] * 5])
FLOATS = torch.ones(4, 3)
CLASSES = torch.zeros(4, dtype=torch.int64)


def _tokens(folder: Path, batches: Sequence[Any], **options: Any) -> dict[str, int | None]:
    fit(folder, monitor(**options), batches=batches)
    tokens = receipt_of(folder)["tokens"]
    return {name: tokens[name] for name in ("trained", "padding", "samples")}


@pytest.mark.parametrize(
    ("batch", "trained", "padding", "samples"),
    [
        pytest.param(IDS, 16, 0, 2, id="ids"),
        pytest.param(IDS.int(), 16, 0, 2, id="int32 ids"),
        pytest.param((IDS, IDS), 16, 0, 2, id="(x, y)"),
        pytest.param([IDS, IDS], 16, 0, 2, id="[x, y]"),
        pytest.param({"input_ids": IDS}, 16, 0, 2, id="input_ids"),
        pytest.param({"input_ids": IDS, "labels": IDS}, 16, 0, 2, id="input_ids and labels"),
        pytest.param({"labels": IDS}, 16, 0, 2, id="labels alone"),
        pytest.param({"input_ids": IDS, "attention_mask": MASK}, 11, 5, 2, id="mask"),
        pytest.param({"input_ids": IDS, "attention_mask": MASK.bool()}, 11, 5, 2, id="bool mask"),
        pytest.param({"input_ids": IDS, "attention_mask": MASK.float()}, 11, 5, 2, id="float mask"),
        pytest.param(({"input_ids": IDS, "attention_mask": MASK}, CLASSES), 11, 5, 2, id="(dict, y)"),
        pytest.param(FLOATS, None, None, 4, id="floats"),
        pytest.param((FLOATS, CLASSES), None, None, 4, id="(floats, classes)"),
        pytest.param((FLOATS, IDS), None, None, 4, id="(floats, ids)"),
        pytest.param({"x": FLOATS, "y": CLASSES}, None, None, 4, id="dict of floats"),
        pytest.param({"pixels": FLOATS, "labels": CLASSES}, None, None, 4, id="class labels"),
        pytest.param(CLASSES, None, None, 4, id="one dimension"),
        pytest.param(torch.zeros(4, 3, 2, 2, dtype=torch.uint8), None, None, 4, id="images"),
        pytest.param("text", None, None, None, id="no tensor"),
        pytest.param({}, None, None, None, id="empty dict"),
    ],
)
def test_batch_is_counted(
    tmp_path: Path, batch: Any, trained: int | None, padding: int | None, samples: int | None
) -> None:
    """Tokens without padding, padding apart, samples always; what a batch does not tell is unknown, not zero."""
    counted = _tokens(tmp_path, [batch] * 3)
    assert counted == {
        "trained": None if trained is None else 3 * trained,
        "padding": None if padding is None else 3 * padding,
        "samples": None if samples is None else 3 * samples,
    }


def test_batches_of_unequal_length_add_up(tmp_path: Path) -> None:
    """Each batch counts as it is."""
    assert _tokens(tmp_path, [torch.ones(2, n, dtype=torch.int64) for n in (3, 5, 8)])["trained"] == 2 * (3 + 5 + 8)


def test_validation_batches_are_not_trained_tokens(tmp_path: Path) -> None:
    """Only training batches count as trained, at the sanity check and after each epoch."""
    quiet_trainer(tmp_path, monitor()).fit(Tiny(), loader(3), loader(5))
    assert receipt_of(tmp_path)["tokens"]["trained"] == 3 * 16


# -- the user's own function ------------------------------------------------------------------------------------------


def test_users_function_counts(tmp_path: Path) -> None:
    """An argument takes the user's own count, of batches that we cannot read."""
    assert _tokens(tmp_path, [FLOATS] * 3, count_tokens=lambda batch: 7)["trained"] == 21


def test_users_function_may_tell_padding(tmp_path: Path) -> None:
    """Two numbers are tokens and padding."""
    counted = _tokens(tmp_path, [FLOATS] * 3, count_tokens=lambda batch: (7, 2))
    assert counted == {"trained": 21, "padding": 6, "samples": 12}


def test_users_function_goes_before_the_shapes(tmp_path: Path) -> None:
    """It is asked also where the batch has ids."""
    assert _tokens(tmp_path, [IDS] * 3, count_tokens=lambda batch: 1)["trained"] == 3


def test_users_function_may_return_a_tensor(tmp_path: Path) -> None:
    """A scalar tensor is a number too."""
    assert _tokens(tmp_path, [IDS] * 3, count_tokens=lambda batch: (batch > 0).sum())["trained"] == 48


def _raising_from(call: int) -> Callable[[Any], int]:
    calls = []

    def count(batch: Any) -> int:
        calls.append(batch)
        if len(calls) >= call:
            raise ValueError("no idea")
        return 7

    return count


@pytest.mark.parametrize("call", [1, 3])
def test_users_function_that_raises_harms_nothing(tmp_path: Path, call: int) -> None:
    """One warning, every batch trained on, tokens unknown rather than too few, samples still counted."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(tmp_path, monitor(count_tokens=_raising_from(call)), batches=[FLOATS] * 6)
    ours = [w for w in caught if issubclass(w.category, CostguardWarning)]
    receipt = receipt_of(tmp_path)
    assert len(ours) == 1
    assert "count_tokens" in str(ours[0].message)
    assert "no idea" in str(ours[0].message)
    assert receipt["run"]["attempts"][0]["batches"] == 6
    assert receipt["tokens"]["trained"] is None
    assert receipt["tokens"]["samples"] == 24


@pytest.mark.parametrize(
    "answer", [None, "many", float("nan"), float("inf"), -1, (5, -1), (1, 2, 3), (), 2**80], ids=repr
)
def test_users_function_that_answers_nonsense_harms_nothing(tmp_path: Path, answer: Any) -> None:
    """An answer that is no count is as good as none: a warning, and tokens are unknown."""
    with pytest.warns(CostguardWarning, match="count_tokens"):
        fit(tmp_path, monitor(count_tokens=lambda batch: answer), batches=[FLOATS] * 3)
    receipt = receipt_of(tmp_path)
    assert receipt["run"]["attempts"][0]["batches"] == 3
    assert receipt["tokens"]["trained"] is None
    assert receipt["tokens"]["padding"] is None


def test_batch_that_cannot_be_looked_at_harms_nothing(tmp_path: Path) -> None:
    """A batch of the user's own kind that raises when it is looked at costs one warning."""

    class Shy(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise RuntimeError("do not look")

    with pytest.warns(CostguardWarning, match="do not look"):
        fit(tmp_path, monitor(), batches=[Shy(x=FLOATS)] * 3)
    receipt = receipt_of(tmp_path)
    assert receipt["run"]["attempts"][0]["batches"] == 3
    assert receipt["tokens"]["trained"] is None


# -- what is made of the counts ---------------------------------------------------------------------------------------


def test_flops_are_six_times_parameters_times_tokens(tmp_path: Path) -> None:
    """The 6ND estimate takes the module's own parameters and the tokens of every batch."""
    module = Tiny()
    module.head = torch.nn.Linear(10, 5)
    fit(tmp_path, monitor(), batches=3, module=module)
    flops = receipt_of(tmp_path)["flops"]
    assert flops["parameters"] == 1 + 55
    assert flops["estimate_6nd"] == 6 * 56 * 48
    assert flops["convention"] == "6nd"


def test_mfu_is_flops_over_time_and_peak(tmp_path: Path) -> None:
    """Per step over train time without the warm-up, per billed time over all of it, against the peak given."""
    fit(tmp_path, monitor(peak_flops_per_s=1e6), batches=3)
    receipt = receipt_of(tmp_path)
    flops, when, mfu = receipt["flops"]["estimate_6nd"], receipt["time"], receipt["mfu"]
    after_warm_up = flops * 2 / 3
    assert mfu["peak_flops_per_s"] == 1e6
    assert "given" in mfu["peak_source"]
    assert mfu["step"] == pytest.approx(after_warm_up * 1e9 / when["activities_ns"]["train"] / 1e6)
    assert mfu["billed"] == pytest.approx(flops * 1e9 / when["elapsed_device_ns"] / 1e6)


def test_peak_of_a_cpu_is_measured(tmp_path: Path) -> None:
    """Without a peak, one is measured here and marked so."""
    fit(tmp_path, monitor(peak_flops_per_s=None), batches=3)
    mfu = receipt_of(tmp_path)["mfu"]
    assert mfu["peak_flops_per_s"] > 1e8
    assert "measured" in mfu["peak_source"]


def test_price_per_million_tokens_is_spend_over_tokens(tmp_path: Path) -> None:
    """Money over tokens that were kept."""
    fit(tmp_path, monitor(), batches=3)
    receipt = receipt_of(tmp_path)
    expected = float(receipt["spend"]["total"]) * 1e6 / 48
    assert float(receipt["spend"]["per_million_tokens"]) == pytest.approx(expected)
