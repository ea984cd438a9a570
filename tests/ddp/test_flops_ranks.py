"""FLOPs over two gloo ranks: what both did, whatever the layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flops_ranks import SAMPLES, STEPS

from helpers import receipt_of, start
from tiny_gpt import HALF_ATTENTION, PARAMETERS, TOKENS, TRAINED, flops_of

SCRIPT = Path(__file__).with_name("flops_ranks.py")
BOTH = sum(SAMPLES)
DATA = ["ddp", "fsdp2", "fsdp2-checkpointed", "fsdp2-bf16", "fsdp2-compiled"]


@pytest.fixture(scope="module")
def receipts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    child = start(SCRIPT, folder).finish()
    assert child.code == 0, child.err
    return {name: receipt_of(folder / name) for name in (*DATA, "tp")}


@pytest.mark.parametrize("name", DATA)
def test_each_rank_counts_its_own_batches(receipts: dict[str, dict[str, Any]], name: str) -> None:
    """Two samples on one rank and six on the other cost as eight on one; a shard is never taken for the layer."""
    full, causal, _ = flops_of(receipts[name])
    assert full == STEPS * BOTH * TRAINED
    assert causal == STEPS * BOTH * (TRAINED - HALF_ATTENTION)


def test_gathering_shards_again_is_no_recomputation(receipts: dict[str, dict[str, Any]]) -> None:
    """What is executed is the model, unless activations are computed again."""
    again = STEPS * BOTH * 2 * (TOKENS * 2 * (64 * 192 + 64 * 64 + 64 * 256) + 262_144)
    assert flops_of(receipts["ddp"])[2] == STEPS * BOTH * TRAINED
    assert flops_of(receipts["fsdp2"])[2] == STEPS * BOTH * TRAINED
    assert flops_of(receipts["fsdp2-checkpointed"])[2] == STEPS * BOTH * TRAINED + again


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_parameters_and_tokens_are_the_global_ones(receipts: dict[str, dict[str, Any]], name: str) -> None:
    """6ND by the parameters of the whole and the tokens of both."""
    flops = receipts[name]["flops"]
    assert flops["parameters"] == PARAMETERS
    assert flops["estimate_6nd"] == 6 * PARAMETERS * STEPS * BOTH * TOKENS


def test_layers_split_over_ranks_cost_what_they_cost_whole(receipts: dict[str, dict[str, Any]]) -> None:
    """torchtitan#1989: both ranks see the same four samples; each does half of each product."""
    rows = 4 * TOKENS
    step = 3 * (2 * rows * 64 * 256) + 3 * (2 * rows * 256 * 64)
    assert flops_of(receipts["tp"])[0] == STEPS * step
    assert receipts["tp"]["flops"]["check"]["ratio"] == 1
    parameters = 128 * 64 + 64 * 256 + 256 + 256 * 64 + 64
    assert receipts["tp"]["flops"]["parameters"] == parameters


def test_tokens_that_two_ranks_share_count_once(receipts: dict[str, dict[str, Any]]) -> None:
    """With a model split over both ranks, both read the same batch."""
    assert receipts["tp"]["tokens"]["trained"] == STEPS * 4 * TOKENS


def test_a_sharded_compiled_model_is_counted_by_its_whole_shapes(receipts: dict[str, dict[str, Any]]) -> None:
    """A copy without contents has whole layers in place of shards."""
    assert "compiled" in receipts["fsdp2-compiled"]["flops"]["how"]
    assert receipts["fsdp2-compiled"]["flops"]["check"]["agrees"] is True


@pytest.mark.parametrize(("name", "dtype"), [("fsdp2", "fp32"), ("fsdp2-bf16", "bf16"), ("fsdp2-compiled", "bf16")])
def test_the_peak_is_that_of_what_products_run_in(receipts: dict[str, dict[str, Any]], name: str, dtype: str) -> None:
    """torchtitan#668: FSDP computes in bfloat16 and reduces in float32 under a Trainer of 32-true."""
    assert receipts[name]["mfu"]["dtype"] == dtype
