"""Watches torch's functions while one step runs, and adds up the products that it makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from costguard.flops.step import Call, StepFlops, step_flops
from costguard.tracing.attention import flash_attention
from costguard.tracing.graph import Node, is_recomputing, nodes_of, reached_from
from costguard.tracing.masks import EVERY, Pairs, pairs_of_mask
from costguard.tracing.needs import computed_in, parameter_of
from costguard.tracing.rules import RULES

_BACKWARD = (Tensor.backward, torch.autograd.backward)
_LOOKUPS = (functional.embedding, functional.embedding_bag)
_SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
_OF_TORCH = frozenset({"aten", "prim", "prims", "fsdp", "c10d", "_c10d_functional", "c10d_functional", "higher_order"})
_engine: Any = getattr(torch.autograd.Variable, "_execution_engine", None)


class FlopTrace(TorchFunctionMode):
    """Counts the model FLOPs of what runs inside it, forward and backward; what it sees it never changes.

    Forward, each product is counted with those of its gradients that will flow: towards an operand that requires one,
    at that moment. What backward computes by torch's own rules is never looked at; what Python computes there is
    either an activation that is computed again (gradients are enabled then) or the backward of somebody's own
    `autograd.Function` (they are not).
    """

    def __init__(self) -> None:
        super().__init__()
        self.problem: str | None = None
        self._calls: list[Call] = []
        self._recomputed: int | None = 0
        self._looked_up: dict[int, int] = {}
        self._multiplied: set[int] = set()
        self._unseen: set[str] = set()
        self._dtypes: Counter[str] = Counter()
        self._scores: dict[tuple[int, ...], int] = {}
        self._weights: dict[tuple[int, ...], Pairs] = {}
        self._nodes: dict[int, frozenset[Node]] = {}
        self._reached: set[Node] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let the call happen, then count it."""
        kwargs = kwargs or {}
        if func in _BACKWARD:
            return self._backward(func, args, kwargs)
        out = func(*args, **kwargs)
        try:
            self._see(func, out, args, kwargs)
        except Exception as error:  # a call in a form that the rules do not know
            self._unseen.add(f"{_name(func)} ({error})")
        return out

    def result(self) -> StepFlops:
        """What was counted so far."""
        lookups = sum(n for key, n in self._looked_up.items() if key not in self._multiplied)
        return step_flops(
            [c if self._flows(at) else c._replace(backward=0) for at, c in enumerate(self._calls)],
            recomputed=self._recomputed,
            lookup_parameters=lookups,
            dtype=max(self._dtypes, key=self._dtypes.__getitem__, default=None),
            unseen=self._unseen,
        )

    def _backward(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run backward so that what Python does in it is seen too: torch hides it from modes otherwise."""
        call = _engine_arguments(func, args, kwargs)
        if call is None or _engine is None:
            self._recomputed = None
            return func(*args, **kwargs)
        if call[2] or call[4]:
            # What a second backward through the same graph does, and one towards some tensors only, is not told apart.
            self._unseen.add("backward(retain_graph=..., inputs=...)")
        self._reached = reached_from(call[0]) | (self._reached or set())
        with self:
            return _engine.run_backward(*call, allow_unreachable=True, accumulate_grad=True)

    def _flows(self, at: int) -> bool:
        """Whether a gradient came back to a call: not where its result was detached, or is in no loss."""
        nodes = self._nodes.get(at)
        return not nodes or self._reached is None or not nodes.isdisjoint(self._reached)

    def _see(self, func: Any, out: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        rule = RULES.get(func)
        if rule is not None:
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
            self._note_parameters(tensors)
            options = {name: value for name, value in kwargs.items() if name != "out"}
            self._add(func, rule(out, *args, **options), tensors, out)
        elif func in _LOOKUPS:
            weight = parameter_of(args[1] if len(args) > 1 else kwargs["weight"])
            if weight is not None:
                self._looked_up[id(weight)] = weight.numel()
        elif func in _SOFTMAX:
            self._read_mask(args[0] if args else kwargs["input"])
        elif func is torch.autograd.grad:
            self._unseen.add("torch.autograd.grad")
        elif isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            self._see_operator(func, args, kwargs)

    def _see_operator(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        packet = getattr(func, "_overloadpacket", func)
        space, _, name = str(packet._qualified_op_name).partition("::")
        if space == "flash_attn":
            self._add(func, flash_attention(name, args, kwargs), list(args[:3]), None)
        elif space not in _OF_TORCH:
            self._unseen.add(f"{space}::{name}")

    def _note_parameters(self, tensors: Iterable[Tensor]) -> None:
        self._multiplied.update(id(p) for t in tensors if (p := parameter_of(t)) is not None)

    def _add(self, func: Any, calls: Iterable[Call], tensors: Sequence[Tensor], out: Any) -> None:
        ranks = _mesh_size(tensors)
        operands = tensors[1:] if _name(func).startswith("baddbmm") else tensors
        again = torch._C._current_graph_task_id() != -1
        for call in calls:
            counted = self._masked(_shared(call, ranks), operands, out)
            self._dtypes[computed_in(tensors)] += call.forward
            if not again:
                self._append(counted, out)
            elif torch.is_grad_enabled():
                # By a checkpoint; if the first time was without gradients, backward goes through this one.
                self._add_again(counted)
                self._append(counted._replace(forward=0, whole=0), out)
            elif is_recomputing():
                self._add_again(counted)
            else:  # somebody's own backward
                self._calls.append(counted._replace(backward=counted.forward, forward=0, whole=0))

    def _append(self, call: Call, out: Any) -> None:
        self._nodes[len(self._calls)] = nodes_of(out)
        self._calls.append(call)

    def _add_again(self, call: Call) -> None:
        if self._recomputed is not None:
            self._recomputed += call.forward

    # -- attention that is written out -----------------------------------------------------------------------------

    def _masked(self, call: Call, tensors: Sequence[Tensor], out: Any) -> Call:
        """Remember scores until their softmax, and give the product that follows it the same mask."""
        if call.kind != "attention" or not isinstance(out, Tensor) or len(tensors) != 2:
            return call
        pairs = self._weights.pop(_tile(tensors[0]), None)
        if pairs is not None:
            return call._replace(full=pairs.full, causal=pairs.causal)
        self._scores[_tile(out)] = len(self._calls)
        return call

    def _read_mask(self, scores: Tensor) -> None:
        """The mask of scores is in their values: what it hides is minus infinity, or nearly so."""
        tile = _tile(scores)
        at = self._scores.pop(tile, None)
        if at is None or at >= len(self._calls):
            return
        pairs = pairs_of_mask(scores[:, 0] if scores.dim() == 4 else scores)
        if pairs.causal == 1:
            pairs = EVERY
        self._weights[tile] = pairs
        self._calls[at] = self._calls[at]._replace(full=pairs.full, causal=pairs.causal)


def _engine_arguments(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """The engine's own arguments, `None` for a form of call that is not known here."""
    names: tuple[str, ...] = ("tensors", "gradient", "retain_graph", "create_graph", "inputs")
    if func is torch.autograd.backward:
        names = ("tensors", "grad_tensors", *names[2:4], "grad_variables", "inputs")
    said = {**dict(zip(names, args, strict=False)), **kwargs}
    roots = said.get("tensors")
    roots = (roots,) if isinstance(roots, Tensor) else tuple(roots or ())
    given = said.get("gradient", said.get("grad_tensors"))
    given = [given] if given is None or isinstance(given, Tensor) else list(given)
    given += [None] * (len(roots) - len(given))
    inputs = said.get("inputs")
    inputs = () if inputs is None else (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    if not all(isinstance(r, Tensor) and (g is not None or r.numel() == 1) for r, g in zip(roots, given, strict=True)):
        return None
    grads = tuple(torch.ones_like(r) if g is None else g for r, g in zip(roots, given, strict=True))
    create = bool(said.get("create_graph"))
    retain = said.get("retain_graph")
    return roots, grads, create if retain is None else retain, create, inputs


def _mesh_size(tensors: Iterable[Tensor]) -> int:
    """Over how many ranks tensors are distributed that have the shape of the whole, such as a DTensor's."""
    return max((mesh.size() for t in tensors if (mesh := getattr(t, "device_mesh", None)) is not None), default=1)


def _tile(scores: Tensor) -> tuple[int, ...]:
    """What tells scores from others however samples and heads are folded."""
    return (scores.numel(), *scores.shape[-2:])


def _shared(call: Call, ranks: int) -> Call:
    if ranks == 1:
        return call
    return call._replace(forward=call.forward // ranks, backward=call.backward // ranks, whole=call.whole // ranks)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))
