"""FLOPs in the receipts of real trainings, against counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from helpers import LIGHTNING_WARNINGS, Saves, Tiny, fit, loader, monitor, quiet_trainer, receipt_of
from tiny_gpt import HALF_ATTENTION, HEAD_ALONE, PARAMETERS, TRAINED, TinyGPT, flops_of, ids, trained

pytestmark = [pytest.mark.filterwarnings(text) for text in LIGHTNING_WARNINGS]


def product(rows: int, inner: int, columns: int) -> int:
    """FLOPs of a product of matrices."""
    return 2 * rows * inner * columns


def train(folder: Path, module: LightningModule, batches: Any, *callbacks: Callback, **options: Any) -> dict[str, Any]:
    quiet_trainer(folder, monitor(), *callbacks, **options).fit(module, loader(batches))
    return receipt_of(folder)


# -- the small language model -----------------------------------------------------------------------------------------


def test_the_small_gpt_costs_what_it_does_by_hand(tmp_path: Path) -> None:
    """Full, causal, 6ND, executed; torch's counter on a CPU does not see attention, 7% of it."""
    flops = train(tmp_path, TinyGPT(), [ids(4)] * 3)["flops"]
    assert flops["model"] == {"full_attention": 3 * 88_080_384, "causal": 3 * 84_934_656}
    assert flops["hardware"] == 3 * 88_080_384
    assert flops["estimate_6nd"] == 3 * 90_144_768
    assert (flops["parameters"], flops["convention"], flops["reason"]) == (PARAMETERS, "full_attention", None)
    assert flops["how"] == "first step"
    assert flops["check"]["counted"] == 88_080_384
    assert flops["check"]["torch"] == 81_788_928
    assert flops["check"]["agrees"] is True
    assert any("scaled_dot_product" in name for name in flops["check"]["missed"])
    assert 4 * TRAINED == 88_080_384
    assert 4 * (TRAINED - HALF_ATTENTION) == 84_934_656


def test_the_gap_to_6nd_is_explained_in_shares(tmp_path: Path) -> None:
    """Lookups -7.0% and other parameters, attention +7.0%: the parts add up to the whole."""
    gap = train(tmp_path, TinyGPT(), [ids(4)])["flops"]["gap_to_6nd"]
    six = 6 * PARAMETERS * 128
    # Positions are added, not looked up: their parameters and those of norms are in `other`.
    assert gap["embeddings"] == pytest.approx(-6 * 128 * 64 * 128 / six)
    assert gap["attention"] == pytest.approx(3 * 4 * 2 * 262_144 / six)
    assert gap["other"] == pytest.approx(-6 * (32 * 64 + 10 * 64) * 128 / six)
    assert gap["total"] == pytest.approx(88_080_384 / 90_144_768 - 1)
    assert gap["frozen"] == gap["padding"] == gap["recompute"] == 0


def test_batches_of_several_sizes_cost_what_each_does(tmp_path: Path) -> None:
    """Never the first one's FLOPs for all: 2, 4, 8, 16 and 2 again."""
    receipt = train(tmp_path, TinyGPT(), [ids(n) for n in (2, 4, 8, 16, 2)])
    assert flops_of(receipt)[0] == 44_040_192 + 88_080_384 + 2 * 88_080_384 + 352_321_536 + 44_040_192


def test_a_smaller_last_batch_costs_less(tmp_path: Path) -> None:
    """Ten samples by four: 4, 4 and 2."""
    trainer = quiet_trainer(tmp_path, monitor())
    trainer.fit(TinyGPT(), DataLoader(ids(10), batch_size=4))
    assert flops_of(receipt_of(tmp_path))[0] == 10 * TRAINED


def test_more_lengths_than_are_counted_follow_a_law(tmp_path: Path) -> None:
    """Twenty lengths, eight counted: linear layers by tokens and attention by their squares, exactly."""
    shapes = [(1 + at % 3, 3 + at) for at in range(20)]
    receipt = train(tmp_path, TinyGPT(), [ids(*shape) for shape in shapes])
    assert flops_of(receipt)[0] == sum(trained(*shape) for shape in shapes)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_accumulation_changes_no_flops(tmp_path: Path, accumulate: int) -> None:
    """litgpt#403: a micro-batch is counted as a micro-batch, whatever a step is."""
    receipt = train(tmp_path, TinyGPT(), [ids(4)] * 8, accumulate_grad_batches=accumulate)
    assert flops_of(receipt)[0] == 8 * 88_080_384
    assert receipt["run"]["attempts"][0]["last_step"] == 8 // accumulate


def test_the_log_interval_does_not_have_to_fit_accumulation(tmp_path: Path) -> None:
    """pytorch-lightning#19461: accumulating 3 and logging every 10 is as good as anything."""
    receipt = train(tmp_path, TinyGPT(), [ids(4)] * 12, accumulate_grad_batches=3, log_every_n_steps=10)
    assert flops_of(receipt)[0] == 12 * 88_080_384


def test_validation_in_the_middle_is_no_training(tmp_path: Path) -> None:
    """pytorch-lightning#21257: its products are in no FLOPs of training, and rates stay positive."""
    trainer = quiet_trainer(tmp_path, monitor(), val_check_interval=2)
    trainer.fit(TinyGPT(), loader([ids(4)] * 6), loader([ids(16)] * 3))
    receipt = receipt_of(tmp_path)
    assert flops_of(receipt)[0] == 6 * 88_080_384
    assert receipt["mfu"]["step"] > 0


def test_flops_go_on_over_a_resume(tmp_path: Path) -> None:
    """transformers#11383: four batches, then from the second one on four more: eight, never twelve nor four."""
    fit(tmp_path, monitor(), Saves(tmp_path, 2), module=TinyGPT(), batches=[ids(4)] * 4)
    fit(tmp_path, monitor(), module=TinyGPT(), batches=[ids(4)] * 6, ckpt_path=tmp_path / "step-2.ckpt")
    receipt = receipt_of(tmp_path)
    assert len(receipt["run"]["attempts"]) == 2
    assert flops_of(receipt)[0] == 8 * 88_080_384


def test_recomputation_is_in_what_is_executed_alone(tmp_path: Path) -> None:
    """Each block's forward but for its last product, which nothing needs; torch's counter misses attention in both."""
    receipt = train(tmp_path, TinyGPT(checkpointed=True), [ids(4)] * 2)
    again = 2 * 128 * 2 * (64 * 192 + 64 * 64 + 64 * 256) + 4 * 2 * 262_144
    assert flops_of(receipt) == (2 * 88_080_384, 2 * 84_934_656, 2 * (88_080_384 + again))
    assert receipt["flops"]["check"]["torch"] == 98_566_144
    assert receipt["mfu"]["hfu"] > receipt["mfu"]["step"] or receipt["mfu"]["step"] is None


def _head_alone() -> TinyGPT:
    module = TinyGPT().requires_grad_(False)
    module.head.requires_grad_(True)
    return module


def test_a_frozen_body_costs_its_forward(tmp_path: Path) -> None:
    """Automodel#786: no gradient below the first trained layer; without attention torch says 29,360,128."""
    flops = train(tmp_path, _head_alone(), [ids(4)])["flops"]
    assert flops["model"]["full_attention"] == 4 * HEAD_ALONE == 29_360_128 + 2_097_152
    assert flops["check"]["torch"] == 29_360_128
    assert flops["gap_to_6nd"]["frozen"] == pytest.approx((4 * HEAD_ALONE - 88_080_384) / 90_144_768)


class Thaws(Callback):
    """Trains everything from the second epoch on."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 1:
            pl_module.requires_grad_(True)


@pytest.mark.parametrize("first", [True, False])
def test_layers_thawed_later_cost_more_from_then_on(tmp_path: Path, first: bool) -> None:
    """Whether the callback that thaws comes before the monitor or after it."""
    callbacks = [Thaws(), monitor()] if first else [monitor(), Thaws()]
    quiet_trainer(tmp_path, *callbacks, max_epochs=2).fit(_head_alone(), loader([ids(4)] * 2))
    assert flops_of(receipt_of(tmp_path))[0] == 2 * 4 * HEAD_ALONE + 2 * 88_080_384


# -- compiled ---------------------------------------------------------------------------------------------------------


def _inside(module: TinyGPT, backend: str) -> TinyGPT:
    for block in module.blocks:
        block.compile(backend=backend)
    return module


def _in_place(module: TinyGPT, backend: str) -> TinyGPT:
    module.compile(backend=backend)
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "how", [lambda m, b: torch.compile(m, backend=b), _in_place, _inside], ids=["function", "method", "blocks"]
)
def test_a_compiled_model_costs_what_it_costs_uncompiled(
    tmp_path: Path, how: Callable[[TinyGPT, str], Any], backend: str
) -> None:
    """pytorch#140909: nothing watches what is compiled; its shapes tell the same FLOPs."""
    torch.compiler.reset()
    flops = train(tmp_path, how(TinyGPT(logs=False), backend), [ids(4)] * 3)["flops"]
    assert flops["reason"] is None
    assert flops["model"] == {"full_attention": 3 * 88_080_384, "causal": 3 * 84_934_656}
    assert "compiled" in flops["how"]
    assert flops["check"]["agrees"] is True


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_in_the_modules_file_is_noticed(tmp_path: Path) -> None:
    """A step that calls a compiled function is not watched either."""
    from compiled_step import UsesCompiled

    flops = train(tmp_path, UsesCompiled(), [torch.ones(2, 8)] * 3)["flops"]
    assert "compiled_step.squared" in flops["how"]
    assert flops["model"]["full_attention"] == 3 * 2 * product(2, 8, 4)


class Branches(Tiny):
    """Which way it goes is in the numbers."""

    def __init__(self) -> None:
        super().__init__(logs=False)
        self.layer = nn.Linear(8, 4)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        out = self.layer(batch.float())
        return out.mean() if out.sum().item() > 0 else out.square().mean()


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_whose_way_depends_on_numbers_is_unknown(tmp_path: Path) -> None:
    """Its shapes do not tell what it does: no figure, a reason, and a training as ever; uncompiled it is counted."""
    torch.compiler.reset()
    receipt = train(tmp_path, torch.compile(Branches(), backend="eager"), [torch.ones(2, 8)] * 3)
    assert receipt["flops"]["model"] is None
    assert "is compiled" in receipt["flops"]["reason"]
    assert "uncompiled" in receipt["flops"]["reason"]
    assert receipt["run"]["attempts"][0]["batches"] == 3
    other = train(tmp_path / "uncompiled", Branches(), [torch.ones(2, 8)] * 3)
    assert flops_of(other)[0] == 3 * 2 * product(2, 8, 4)


# -- other modules ----------------------------------------------------------------------------------------------------


class Steps(Tiny):
    """A network and how a loss comes of it."""

    def __init__(self, network: nn.Module, loss: Callable[[Any], Tensor] = torch.mean) -> None:
        super().__init__(logs=False)
        self.network, self.loss = network, loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self.network(batch))


class LoRA(nn.Module):
    """A frozen layer and a trained one of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def test_lora_by_hand(tmp_path: Path) -> None:
    """Forward of what is frozen, activation gradients above the first adapter, weights of adapters alone."""
    receipt = train(tmp_path, Steps(nn.Sequential(LoRA(), LoRA())), [torch.randn(6, 8)] * 2)
    first = product(6, 8, 8) + 2 * product(6, 8, 2) + 3 * product(6, 2, 8)
    second = 2 * product(6, 8, 8) + 3 * product(6, 8, 2) + 3 * product(6, 2, 8)
    assert flops_of(receipt) == (2 * (first + second),) * 3


def test_a_convolutional_net(tmp_path: Path) -> None:
    """Images have no tokens and FLOPs all the same; the estimate by tokens is unknown."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.Flatten())
    receipt = train(tmp_path, Steps(nn.Sequential(net, nn.Linear(8 * 4 * 4, 5))), [torch.randn(2, 3, 6, 6)] * 2)
    first = 2 * product(2 * 36, 3 * 9, 8)
    second, head = 3 * product(2 * 16, 4 * 9, 8), 3 * product(2, 128, 5)
    assert flops_of(receipt)[0] == 2 * (first + second + head)
    assert receipt["flops"]["estimate_6nd"] is None
    assert receipt["flops"]["gap_to_6nd"] is None


def test_an_lstm(tmp_path: Path) -> None:
    """Four gates, no gradient of the input nor of the state before the first step."""
    module = Steps(nn.LSTM(3, 5, batch_first=True), lambda out: out[0].mean())
    receipt = train(tmp_path, module, [torch.randn(2, 7, 3)] * 2)
    step = 2 * (product(14, 3, 20) + product(14, 5, 20)) + product(12, 5, 20)
    assert flops_of(receipt)[0] == 2 * step


class Adversaries(Tiny):
    """Two networks with an optimizer each."""

    def __init__(self, *, toggled: bool) -> None:
        super().__init__(logs=False)
        self.automatic_optimization = False
        self.maker, self.judge, self.toggled = nn.Linear(4, 8), nn.Linear(8, 1), toggled

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        judging, making = self.optimizers()
        made = self.maker(batch[:, :4])
        judging.zero_grad()
        self.manual_backward(self.judge(batch).mean() - self.judge(made.detach()).mean())
        judging.step()
        if self.toggled:
            self.judge.requires_grad_(False)
        making.zero_grad()
        self.manual_backward(self.judge(made).mean())
        making.step()
        self.judge.requires_grad_(True)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(net.parameters(), lr=0.1) for net in (self.judge, self.maker)]


@pytest.mark.parametrize("toggled", [False, True])
def test_two_optimizers_by_hand(tmp_path: Path, toggled: bool) -> None:
    """Manual optimization: each backward adds what it reaches; a frozen judge gets no weight gradients."""
    receipt = train(tmp_path, Adversaries(toggled=toggled), [torch.randn(6, 8)] * 3)
    judge = product(6, 8, 1)
    assert flops_of(receipt)[0] == 3 * (2 * product(6, 4, 8) + 2 * judge + 2 * judge + (2 if toggled else 3) * judge)
    assert receipt["run"]["attempts"][0]["batches"] == 3


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", "bf16"), ("bf16-true", "bf16"), ("32-true", "fp32")])
def test_precision_changes_no_flops(tmp_path: Path, precision: str, dtype: str) -> None:
    """Nor is the model counted less where torch casts its weights."""
    receipt = train(tmp_path, TinyGPT(), [ids(4)] * 2, precision=precision)
    assert flops_of(receipt)[0] == 2 * 88_080_384


# -- what cannot be counted -------------------------------------------------------------------------------------------


class OwnBatch:
    """A batch of somebody's own kind, that shows nothing."""

    __slots__ = ("x",)

    def __init__(self) -> None:
        self.x = torch.ones(2, 8)


class ReadsOwn(Branches):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch.x, batch_idx)


@pytest.mark.parametrize(
    ("module", "batch", "reason"),
    [
        (Tiny, torch.ones(2, 8), "no matrices"),
        (ReadsOwn, OwnBatch(), "no batch was counted"),
        (TinyGPT, ids(0), "no batch multiplied"),
    ],
    ids=["no products", "objects", "no tokens"],
)
def test_what_cannot_be_counted_is_unknown_with_a_reason(
    tmp_path: Path, module: type[LightningModule], batch: Any, reason: str
) -> None:
    """Never 0, and training goes on."""
    receipt = train(tmp_path, module(), [batch] * 3)
    assert receipt["flops"]["model"] is None
    assert receipt["flops"]["hardware"] is None
    assert reason in receipt["flops"]["reason"]
    assert receipt["run"]["attempts"][0]["batches"] == 3


def test_one_empty_batch_does_not_make_the_others_unknown(tmp_path: Path) -> None:
    """A batch of no tokens costs nothing; those around it cost what they do."""
    receipt = train(tmp_path, TinyGPT(), [ids(4), ids(0), ids(4)])
    assert flops_of(receipt)[0] == 2 * 88_080_384


def test_a_batch_without_products_among_others_costs_nothing(tmp_path: Path) -> None:
    """What others multiply is still known."""

    class Sometimes(Branches):
        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) if batch_idx == 0 else self.weight**2

    receipt = train(tmp_path, Sometimes(), [torch.ones(2, 8), torch.ones(3, 8)])
    assert flops_of(receipt)[0] == 2 * product(2, 8, 4)


@pytest.mark.filterwarnings("ignore")
def test_a_problem_of_a_later_batch_is_told_too(tmp_path: Path) -> None:
    """Also when training ends within the second in which it came up."""

    class Later(Branches):
        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return self.layer(batch).mean() if len(batch) == 2 else super().training_step(batch, batch_idx)

    torch.compiler.reset()
    module = torch.compile(Later(), backend="eager")
    flops = train(tmp_path, module, [torch.ones(2, 8), torch.ones(3, 8)])["flops"]
    assert flops["model"] is None
    assert "is compiled" in flops["reason"]


# -- manners ----------------------------------------------------------------------------------------------------------


class Looks(Callback):
    """Notes what hangs on the strategy and the module, and the losses."""

    def __init__(self) -> None:
        self.before: list[Any] = []
        self.after: list[Any] = []
        self.losses: list[float] = []

    @staticmethod
    def _hanging(trainer: Trainer, module: LightningModule) -> list[Any]:
        modes = torch.overrides._get_current_function_mode_stack()
        return [*(sorted(vars(x)) for x in (trainer.strategy, module, *module.modules())), list(modes)]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.before = self._hanging(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        self.losses.append(float(outputs["loss"]))
        self.after = self._hanging(trainer, pl_module)


class Noisy(TinyGPT):
    """With random numbers in each step."""

    def training_step(self, ids: Tensor, batch_idx: int) -> Tensor:
        return super().training_step(ids, batch_idx) * (1 + torch.rand(()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_training_is_the_same_to_the_bit_with_and_without_the_monitor(
    tmp_path: Path, compiled: bool, checkpointed: bool
) -> None:
    """Watched batches compute what they would, and draw the same random numbers; nothing is left behind."""
    curves = []
    for at, metered in enumerate((True, False)):
        torch.compiler.reset()
        torch.manual_seed(0)
        module, looks = Noisy(checkpointed=checkpointed, logs=not compiled), Looks()
        callbacks = [monitor(), looks] if metered else [looks]
        trained_module = torch.compile(module, backend="eager") if compiled else module
        quiet_trainer(tmp_path / str(at), *callbacks).fit(trained_module, loader([ids(n) for n in (4, 4, 2, 4)]))
        assert looks.before == looks.after
        curves.append((looks.losses, [p.detach().clone() for p in module.parameters()]))
    assert curves[0][0] == curves[1][0]
    assert all(torch.equal(a, b) for a, b in zip(curves[0][1], curves[1][1], strict=True))


def test_a_step_that_raises_while_it_is_watched_leaves_nothing_behind(tmp_path: Path) -> None:
    """The strategy is as before, no mode is on, and the same module trains on."""
    module = Tiny(fails_at=0)
    trainer = fit(tmp_path, monitor(), module=module, fails_at=0)
    assert not {"training_step", "backward"} & set(vars(trainer.strategy))
    assert torch.overrides._get_current_function_mode_stack() == []
    assert receipt_of(tmp_path)["flops"]["model"] is None


class Skipping(TinyGPT):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if self.current_epoch == 0 else None


def test_a_batch_that_is_skipped_is_not_counted_and_the_next_one_is(tmp_path: Path) -> None:
    """`on_train_batch_start` returns -1: the epoch ends under watch and without a batch."""
    receipt = train(tmp_path, Skipping(), [ids(4)] * 2, max_epochs=2)
    assert flops_of(receipt)[0] == 2 * 88_080_384


@pytest.mark.filterwarnings("ignore:.training_step. returned .None.")
def test_a_step_that_returns_nothing_costs_its_forward_at_least(tmp_path: Path) -> None:
    """A skipped loss is no reason to stop counting."""

    class Skips(TinyGPT):
        def training_step(self, ids: Tensor, batch_idx: int) -> Any:
            loss = super().training_step(ids, batch_idx)
            return None if batch_idx == 1 else loss

    receipt = train(tmp_path, Skips(), [ids(4)] * 3)
    assert flops_of(receipt)[0] == 3 * 88_080_384


def test_functional_names_are_only_looked_at() -> None:
    """The count never replaces a function of torch."""
    assert functional.linear is torch.nn.functional.linear
    assert functional.linear is torch._C._nn.linear
