"""What a run's checkpoints will take up: by hand, and the same as the plan of the run when it has come to its end."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from lightning.pytorch import LightningModule

from costguard.keep import best, by_model_checkpoint, every, last
from costguard.lightning.checkpoint_size import predict_bytes
from costguard.policies.disk import SaveSeen, foresee_full
from costguard.policies.retention import Retention, SavePlan, Tiers, project, quota_within
from costguard.prices.storage import DAY_NS, storage_class

PRICED = Tiers(hot=storage_class("s3:STANDARD"), cold=storage_class("s3:GLACIER_IR"))
GB = 10**9


def test_the_worked_example_of_seven_billion_parameters() -> None:
    """200 saves of 84 GB, 10 hot in Standard and 190 in Glacier Instant Retrieval: $83.16 a month."""
    plans = [SavePlan(every_steps=1000)]
    found = project(Retention(keep=last(10)), PRICED, plans, 200_000, bytes_per_save=84 * GB)
    assert (found.saves, found.hot, found.cold) == (200, 10, 190)
    assert (found.hot_bytes, found.cold_bytes) == (840 * GB, 15_960 * GB)
    assert found.usd_per_month == Fraction("0.023") * 840 + Fraction("0.004") * 15_960 == Fraction("83.16")


@pytest.mark.parametrize(
    ("wanted", "hot", "cold"),
    [
        (Retention(), 3, 0),
        (Retention(keep=by_model_checkpoint()), 3, 7),
        (Retention(keep=last(2) | every(steps=50)), 3, 7),
        (Retention(keep=best("loss", n=4)), 4, 6),
        (Retention(keep=last(9), hot_quota_bytes=4 * GB), 4, 6),
        (Retention(keep=last(2), demote="none"), 3, 0),
        (Retention(keep=last(1), expire_after_ns=30 * DAY_NS), 1, 2),
    ],
)
def test_each_rule_by_hand(wanted: Retention, hot: int, cold: int) -> None:
    """Ten saves ten days apart, of which ModelCheckpoint keeps three."""
    tiers = Tiers(has_cold=wanted.demote == "rest" and wanted.keep is not None)
    plans = [SavePlan(every_steps=10, keeps=3)]
    found = project(wanted, tiers, plans, 100, bytes_per_save=GB, seconds_per_step=86_400)
    assert (found.saves, found.hot, found.cold) == (10, hot, cold)
    assert found.usd_per_month is None


def test_two_that_save_are_counted_together() -> None:
    """Each by its own steps."""
    plans = [SavePlan(every_steps=10, keeps=1), SavePlan(every_steps=25, keeps=None)]
    found = project(Retention(keep=by_model_checkpoint()), PRICED, plans, 100)
    assert (found.saves, found.hot, found.cold) == (14, 5, 9)
    assert found.hot_bytes is found.usd_per_month is None


def test_what_does_not_pay_is_taken_to_stay() -> None:
    """A life of ten days is shorter than what Glacier Instant Retrieval takes to pay."""
    wanted = Retention(keep=last(1), expire_after_ns=10 * DAY_NS)
    found = project(wanted, PRICED, [SavePlan(every_steps=1)], 5, bytes_per_save=GB, seconds_per_step=3600)
    assert (found.hot, found.cold) == (5, 0)


# -- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "per_parameter"),
    [
        (torch.optim.AdamW, 12),
        (lambda p: torch.optim.Adam(p, amsgrad=True), 16),
        (lambda p: torch.optim.SGD(p, momentum=0.9), 8),
        (torch.optim.SGD, 4),
        (torch.optim.RMSprop, 8),
    ],
)
@pytest.mark.parametrize("frozen", [False, True])
def test_predicted_bytes_are_those_of_the_state(make: object, per_parameter: int, frozen: bool) -> None:
    """After one step the optimizer holds what was predicted, but for its counters; 12 bytes for fp32 AdamW."""
    module = LightningModule()
    module.net = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 100))
    module.net[0].requires_grad_(not frozen)
    optimizer = make(module.parameters())  # type: ignore[operator]
    predicted = predict_bytes(module, [optimizer])
    module.net(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    states = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.numel() > 1]
    held = sum(t.numel() * 4 for t in (*module.state_dict().values(), *states))
    assert predicted == held
    if not frozen:
        assert predicted == per_parameter * 20_200
    assert predict_bytes(module, [optimizer], weights_only=True) == 4 * 20_200


def test_an_optimizer_that_is_not_known_says_so() -> None:
    """Of one's own class nothing is known, whatever it is called."""
    module = LightningModule()
    module.net = torch.nn.Linear(2, 2)
    own = type("AdamW", (torch.optim.SGD,), {"__module__": "mine"})(module.parameters(), lr=0.1)
    assert predict_bytes(module, [own]) is None


# -- the disk --------------------------------------------------------------------------------------------------------


def _saves(*free: int, size: int = 10) -> list[SaveSeen]:
    return [SaveSeen(step=n * 100, at_ns=n * 10**9, free_bytes=f, bytes=size) for n, f in enumerate(free, 1)]


def test_a_full_disk_is_foreseen_from_what_is_seen() -> None:
    """Free 100, 90, 80: eight more saves of 10 fit in 80, the ninth does not; a save each second."""
    found = foresee_full(_saves(100, 90, 80))
    assert found is not None
    assert (found.saves_left, found.step, found.in_s) == (8, 300 + 900, 9.0)


@pytest.mark.parametrize("free", [(), (100,), (100, 90), (100, 100, 100), (80, 90, 100)])
def test_a_disk_that_does_not_fill_or_is_not_known_is_not_foreseen(free: tuple[int, ...]) -> None:
    """Two saves may be the beginning of a disk that is cleared after each."""
    assert foresee_full(_saves(*free)) is None


def test_a_disk_in_balance_is_not_full() -> None:
    """Each save makes room for the next: half of one free after each, before its predecessor goes, is enough."""
    assert foresee_full(_saves(5, 5, 5, 5)) is None


def test_one_step_for_all_saves_is_no_trend() -> None:
    """Several saves at one step tell nothing of steps."""
    assert foresee_full([replace(each, step=5) for each in _saves(100, 90, 80)]) is None


@pytest.mark.parametrize(
    ("free", "own", "quota"), [(50, None, None), (50, 70, 70), (20, None, 70), (20, 40, 40), (0, None, 50), (-70, 9, 0)]
)
def test_the_quota_that_leaves_enough_free(free: int, own: int | None, quota: int | None) -> None:
    """100 bytes are there and 50 are to be free."""
    assert quota_within(50, free_bytes=free, hot_bytes=100, hot_quota_bytes=own) == quota
