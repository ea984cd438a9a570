"""Who pays: which devices are paid for, and which of them no rank uses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import examples
from costguard.errors import ConfigError
from costguard.ledger.devices import Paid, check_gpus, paid_devices

# gpus, GPUs on each node, ranks on each node, node asked, paid in all, idle on that node
TABLE = [
    (None, [0], [1], 0, 1, 0),  # a CPU rank is one device
    (None, [0], [4], 0, 4, 0),
    (None, [1], [1], 0, 1, 0),
    (None, [8], [1], 0, 8, 7),  # visible or allocated, and not used
    (None, [8], [8], 0, 8, 0),
    (None, [8, 8], [8, 8], 1, 16, 0),
    (None, [8, 4], [2, 4], 0, 12, 6),
    (None, [8, 4], [2, 4], 1, 12, 0),
    (None, [0, 8], [4, 4], 0, 12, 0),
    (None, [2], [4], 0, 4, 0),  # several ranks on one GPU: each is one device
    (1, [8], [1], 0, 1, 0),  # the user's word
    (8, [0], [1], 0, 8, 7),
    (8, [8], [4], 0, 8, 4),
    (16, [8, 8], [8, 8], 0, 16, 0),
    (11, [4, 4], [4, 4], 0, 11, 2),
    (11, [4, 4], [4, 4], 1, 11, 1),
]


@pytest.mark.parametrize(("gpus", "on_nodes", "ranks", "node", "total", "idle"), TABLE)
def test_who_pays(gpus: int | None, on_nodes: list[int], ranks: list[int], node: int, total: int, idle: int) -> None:
    """The user's word, else what each node has, never less than the ranks; what no rank uses is idle."""
    assert paid_devices(gpus=gpus, on_nodes=on_nodes, ranks_on_nodes=ranks, node=node) == Paid(total, idle)


@given(
    st.lists(st.tuples(st.integers(0, 16), st.integers(1, 16)), min_size=1, max_size=5),
    st.none() | st.integers(0, 100),
)
@examples(200)
def test_every_paid_device_is_used_or_idle(nodes: list[tuple[int, int]], more: int | None) -> None:
    """Over all nodes the ranks and the idle devices are exactly what is paid for."""
    on_nodes, ranks = [n[0] for n in nodes], [n[1] for n in nodes]
    gpus = None if more is None else sum(ranks) + more
    paid = [paid_devices(gpus=gpus, on_nodes=on_nodes, ranks_on_nodes=ranks, node=node) for node in range(len(nodes))]
    assert {p.total for p in paid} == {sum(ranks) + sum(p.idle_here for p in paid)}
    assert all(p.idle_here >= 0 for p in paid)
    assert gpus is None or paid[0].total == gpus


def test_fewer_gpus_than_ranks_is_an_error() -> None:
    """A count below the ranks is one sentence with option, value and remedy."""
    with pytest.raises(ConfigError) as error:
        paid_devices(gpus=3, on_nodes=[8], ranks_on_nodes=[4], node=0)
    assert str(error.value).startswith("CostMonitor(gpus=3): 4 ranks run")
    assert "gpus=4" in str(error.value)


@pytest.mark.parametrize("gpus", [0, -1, True, False, 2.0, "8", [8]])
def test_a_count_that_is_none_is_an_error(gpus: object) -> None:
    """What is no count of GPUs names option, value and remedy."""
    with pytest.raises(ConfigError) as error:
        check_gpus("CostMonitor", gpus)
    assert f"CostMonitor(gpus={gpus!r})" in str(error.value)
    assert "such as 8" in str(error.value)


@pytest.mark.parametrize("gpus", [None, 1, 8, 100_000])
def test_a_count_that_is_one_passes(gpus: int | None) -> None:
    """Any positive count, or no word at all."""
    check_gpus("CostMonitor", gpus)
