"""Guards of what Lightning does not promise: if one fails, Lightning has changed and `private.py` must follow."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.trainer import call

from costguard import CostMonitor
from costguard.lightning import private
from helpers import Tiny, loader, monitor, quiet_trainer


def test_this_lightning_skips_hooks_that_are_none() -> None:
    """The pinned Lightning leaves out a hook that is `None` on the instance."""
    assert private.skips_hooks_that_are_none()


def test_a_lightning_that_calls_every_hook_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the guard does not hold, no hook is touched."""
    monkeypatch.setattr(call, "_call_callback_hooks", lambda *_: None)
    private.skips_hooks_that_are_none.cache_clear()
    try:
        callback = CostMonitor()
        private.skip_unused_hooks(callback)
        assert not [n for n in private.PER_BATCH_HOOKS if n in vars(callback)]
    finally:
        monkeypatch.undo()
        private.skips_hooks_that_are_none.cache_clear()


def test_only_hooks_that_are_not_overridden_are_skipped() -> None:
    """Hooks in use stay, the others come back on restore, twice is the same as once."""
    callback = CostMonitor()
    private.skip_unused_hooks(callback)
    private.skip_unused_hooks(callback)
    assert callback.on_before_backward is None
    assert callable(callback.on_train_batch_end)
    private.restore_hooks(callback)
    private.restore_hooks(callback)
    assert callback.on_before_backward.__func__ is Callback.on_before_backward  # type: ignore[attr-defined]


def test_a_subclass_keeps_the_hooks_it_overrides() -> None:
    """A user's subclass with a hook of its own is called."""

    class Mine(CostMonitor):
        def on_before_backward(self, *_: Any) -> None:
            """Used."""

    callback = Mine()
    private.skip_unused_hooks(callback)
    assert callable(callback.on_before_backward)


@pytest.mark.filterwarnings("ignore:The .* does not have many workers")
@pytest.mark.filterwarnings("ignore:.* is less than or equal to the number")
def test_rows_of_our_own_stand_at_lightnings_step(tmp_path: Path) -> None:
    """The step under which Lightning logs is an integer of the private counter."""
    trainer = quiet_trainer(tmp_path, monitor(), max_steps=3)
    trainer.fit(Tiny(), loader(5), loader(1))
    assert private.logging_step(trainer) == trainer.fit_loop.epoch_loop._batches_that_stepped == 3
    assert not private.is_restored_after_setup(trainer)


def test_a_monitor_can_be_sent_to_a_spawned_process() -> None:
    """Before `setup` a CostMonitor is plain data, as ddp_spawn needs."""
    again = pickle.loads(pickle.dumps(CostMonitor(usd_per_hour="3", tags={"a": "b"}, planned_tokens=5)))
    assert again.state_key == "CostMonitor"


@pytest.mark.filterwarnings("ignore:The .* does not have many workers")
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.parametrize("automatic", [True, False])
def test_the_step_counter_is_lightnings_own(automatic: bool, tmp_path: Path) -> None:
    """What is read at each batch is `trainer.global_step`, also with manual optimization and over two fits."""
    seen: list[tuple[int, int]] = []

    class Manual(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append((count(), self.trainer.global_step))
            loss = super().training_step(batch, batch_idx)
            if self.automatic_optimization:
                return loss
            self.manual_backward(loss)
            self.optimizers().step()
            return None

    module = Manual(logs=False)
    module.automatic_optimization = automatic
    trainer = quiet_trainer(tmp_path, max_epochs=2, limit_val_batches=0)
    trainer.strategy.connect(module)
    count = private.step_counter(trainer)
    trainer.fit(module, loader(3))
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, loader(3))
    assert [step for step, _ in seen] == [step for _, step in seen] == list(range(12))


def test_a_lightning_with_another_counter_is_read_by_its_public_name() -> None:
    """Where the loop's own counter is not where it was, the public property is read."""
    other = SimpleNamespace(fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace()), global_step=7)
    assert private.step_counter(other)() == 7  # type: ignore[arg-type]
