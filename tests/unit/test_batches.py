"""How batches are counted."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from costguard.errors import CostguardWarning
from costguard.lightning.batches import BatchCount, BatchCounter, DeviceSum

IDS = torch.ones(2, 8, dtype=torch.int64)
MASK = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0], [1] * 8])


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (IDS, BatchCount(16, 0, 2)),
        (IDS.int(), BatchCount(16, 0, 2)),
        ((IDS, IDS), BatchCount(16, 0, 2)),
        ([IDS, IDS], BatchCount(16, 0, 2)),
        ({"input_ids": IDS}, BatchCount(16, 0, 2)),
        ({"input_ids": IDS, "attention_mask": MASK}, BatchCount(13, 3, 2)),
        ({"input_ids": IDS, "attention_mask": MASK.bool()}, BatchCount(13, 3, 2)),
        ({"input_ids": IDS, "attention_mask": MASK, "labels": torch.full_like(IDS, -100)}, BatchCount(13, 3, 2)),
        ({"input_ids": IDS, "attention_mask": torch.ones(2, 1, 8, 8)}, BatchCount(16, 0, 2)),
        ({"inputs_embeds": torch.rand(2, 8, 4), "labels": IDS}, BatchCount(16, 0, 2)),
        ({"x": torch.rand(3, 4), "labels": torch.ones(3, dtype=torch.int64)}, BatchCount(None, None, 3)),
        (torch.rand(5, 3), BatchCount(None, None, 5)),
        ((torch.rand(5, 3, 8, 8), torch.ones(5, dtype=torch.int64)), BatchCount(None, None, 5)),
        (torch.zeros(4, 3, 8, 8, dtype=torch.uint8), BatchCount(None, None, 4)),
        (torch.zeros(4, 8, dtype=torch.uint8), BatchCount(None, None, 4)),
        (torch.ones(7, dtype=torch.int64), BatchCount(None, None, 7)),
        (torch.tensor(1.0), BatchCount()),
        ("text", BatchCount()),
        ([], BatchCount()),
        (None, BatchCount()),
        (object(), BatchCount()),
        ({}, BatchCount()),
    ],
)
def test_a_batch_is_counted_by_its_shapes(batch: Any, expected: BatchCount) -> None:
    """Tokens from ids, padding from the mask, samples from everything else; what cannot be told is unknown."""
    assert BatchCounter().count(batch) == expected


def test_the_users_own_count_wins() -> None:
    """`count_tokens` gives tokens, or tokens and padding."""
    assert BatchCounter(lambda _: 7).count(torch.rand(5, 3)) == BatchCount(7, None, 5)
    assert BatchCounter(lambda _: (7, 2)).count({"x": torch.rand(5, 3)}) == BatchCount(7, 2, 5)


@pytest.mark.parametrize("returned", ["many", None, (1, 2, 3)])
def test_a_count_that_fails_warns_once_and_leaves_tokens_unknown(returned: Any) -> None:
    """The user's function may fail without harm: one warning, samples go on."""
    counter = BatchCounter(lambda _: returned)
    with pytest.warns(CostguardWarning, match="count_tokens raised"):
        assert counter.count(torch.rand(5, 3)).tokens is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert counter.count(torch.rand(5, 3)) == BatchCount(None, None, 5)


def test_a_batch_whose_shapes_raise_is_unknown() -> None:
    """A batch of the user's own kind may do anything."""

    class Odd(dict[str, Any]):
        def get(self, *_: object) -> Any:
            raise RuntimeError("no")

    with pytest.warns(CostguardWarning, match="the batch's shapes raised RuntimeError"):
        assert BatchCounter().count(Odd(a=1)) == BatchCount()


def test_device_scalars_arrive_once() -> None:
    """What has been summed on the device is handed over once, whenever it arrives."""
    summed = DeviceSum()
    assert summed.take(wait=True) == 0
    summed.add(torch.tensor(3))
    summed.add(torch.tensor(4))
    assert summed.take(wait=True) == 7
    assert summed.take(wait=True) == 0
    summed.add(torch.tensor(5))
    assert summed.take(wait=True) == 5
