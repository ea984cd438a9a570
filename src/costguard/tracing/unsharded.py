"""Copies a module whose parameters lie in shards (FSDP2) as it would be whole, for a shadow."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


def copy_whole(module: nn.Module, fake: AbstractContextManager[Any]) -> nn.Module:
    """Copy a module; what is sharded gets the class and the parameters that it had before, without contents.

    Args:
        module: The module, under a mode that copies tensors without their contents.
        fake: Makes new tensors without contents.
    """
    memo: dict[int, Any] = {}
    mesh = getattr(module, "_device_mesh", None)
    if mesh is not None:
        memo[id(mesh)] = mesh
    # Parts come before what they are part of, so that they are found copied.
    for part in reversed(list(_sharded(module))):
        dtype = _computes_in(part)
        for parameter in part.parameters():
            if id(parameter) not in memo and _is_one_mesh(parameter):
                with fake:
                    whole = torch.empty(parameter.shape, dtype=dtype or parameter.dtype, device=parameter.device)
                    memo[id(parameter)] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
        _copy_part(part, memo, dtype)
    return copy.deepcopy(module, memo)


def _sharded(module: nn.Module) -> Iterator[nn.Module]:
    if torch.distributed.is_available():
        yield from (part for part in module.modules() if any(c.__name__ == "FSDPModule" for c in type(part).__mro__))


def _is_one_mesh(parameter: nn.Parameter) -> bool:
    """Whether it is sharded and nothing else; one that is also split over ranks would be more than a rank computes."""
    mesh = getattr(parameter, "device_mesh", None)
    return mesh is not None and mesh.ndim == 1


def _computes_in(part: Any) -> torch.dtype | None:
    """What FSDP's own mixed precision casts parameters and inputs of a part to, `None` if to nothing."""
    try:
        dtype = part._get_fsdp_state()._mp_policy.param_dtype
    except AttributeError:
        return None
    return dtype if isinstance(dtype, torch.dtype) else None


def _copy_part(part: nn.Module, memo: dict[int, Any], dtype: torch.dtype | None) -> None:
    # FSDP makes a class of its own out of (FSDPModule, the module's class) and forbids to copy it.
    kind: Any = type(part).__mro__[2]
    clone = memo[id(part)] = kind.__new__(kind)
    state = {name: value for name, value in vars(part).items() if not name.startswith("__composable_api")}
    state.update(_trainer=None, _compiled_call_impl=None)
    for name in ("_forward_hooks", "_forward_pre_hooks"):
        hooks = state[name].items()
        state[name] = type(state[name])((key, hook) for key, hook in hooks if not _gathers(hook))
    vars(clone).update(copy.deepcopy(state, memo))
    if dtype is not None:
        clone.register_forward_pre_hook(lambda _, *said: _cast(said, dtype), with_kwargs=True)


def _cast(said: Any, dtype: torch.dtype) -> Any:
    return tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, said)


def _gathers(hook: Any) -> bool:
    owner = getattr(hook, "__self__", None)
    return str(type(owner).__module__).startswith("torch.distributed")
