"""Switch the user's optimizer to a kernel that can skip a step on the device.

On a GPU the fused kernels of Adam, AdamW, SGD and Adagrad are faster than the default ones and
can skip a step by themselves, so optimizers that did not ask for another form are switched
(announced; ``--no-fused`` keeps them). Optimizers without a fused form whose arithmetic uses the
step counter get it moved to the device (``capturable``), where a skip can hold it back.

On a CPU the default is a loop over tensors. For many small ones ``foreach`` does the same
operations in the same order, to the same bits, with fewer calls: what it saves pays for the guard.
Groups say so only while a step is at work (``begin_foreach``): a script that prints, hashes or
copies them between two steps sees what it would see without us. What ``state_dict()`` says stays
what the user chose in all forms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.torch_version import TorchVersion

from ..records.steps import Switched, SwitchedToCapturable, SwitchedToFused
from ..shards import is_sharded
from ._kept_state import is_foreign

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
SPREAD = (torch.optim.Adam, torch.optim.AdamW)
"""Those whose fused kernels take parameters that are spread over ranks (``DTensor``)."""
COUNTED = (
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.ASGD,
    torch.optim.Adam,
    torch.optim.AdamW,
)
_COUNTERS = ("step", "mu_product", "eta", "mu")
_SWITCHED = "_holdfast_switched"
BY_FOREACH = "_holdfast_foreach"
"""An attribute of optimizers whose steps on a CPU run by foreach."""
# Fused Adagrad exists on CUDA from 2.13 at the latest; 2.11 refuses it.
_ADAGRAD_ON_CUDA = TorchVersion(torch.__version__) >= "2.13"
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# What foreach gives the same bits for: tests compare each of them.
SAME_BITS = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.SGD,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Adamax,
    torch.optim.Adadelta,
)
_PLAIN = (torch.float32, torch.float64)
# Above this the tensors no longer stay in the caches from one operation to the next.
_SMALL = 250_000
_MANY = 4


def is_fused(optimizer: Optimizer) -> bool:
    """Whether every group runs a fused kernel that reads ``found_inf``, and nothing else does."""
    if not isinstance(optimizer, FUSED) or is_foreign(type(optimizer)):
        return False
    return all(g.get("fused") for g in optimizer.param_groups)


def reason_not_fused(optimizer: Optimizer, grads: list[Tensor]) -> str:
    """Why this optimizer must stay as it is; empty when switching is safe."""
    if type(optimizer) not in FUSED:
        return f"{type(optimizer).__name__} has no fused form"
    for group in optimizer.param_groups:
        if group.get("fused") is False:
            return "the script says fused=False"
        if group.get("differentiable") or group.get("capturable"):
            return "it is differentiable or capturable"
    if type(optimizer) is torch.optim.Adagrad and grads[0].is_cuda and not _ADAGRAD_ON_CUDA:
        return "this torch has no fused Adagrad on CUDA"
    if any(g.layout is not torch.strided or g.dtype not in _DTYPES for g in grads):
        return "a gradient is sparse or not floating"
    if any(type(g) is not Tensor for g in grads):
        return "a gradient is a tensor subclass"
    if type(optimizer) is torch.optim.SGD and any(map(_begins_late, optimizer.param_groups)):
        return "a momentum with dampening begins later than others"
    if not all(_one_spread(optimizer, group["params"]) for group in optimizer.param_groups):
        return "torch has no such kernel for parameters that are spread in this way"
    return ""


def _one_spread(optimizer: Optimizer, parameters: list[Any]) -> bool:
    """Whether a fused kernel takes these: ordinary ones, or all spread over the same ranks."""
    sharded = [p for p in parameters if is_sharded(p)]
    if not sharded:
        return True
    meshes = {p.device_mesh for p in sharded}
    return len(sharded) == len(parameters) and len(meshes) == 1 and type(optimizer) in SPREAD


def _begins_late(group: dict[str, Any]) -> bool:
    """Whether a momentum with dampening may begin later: its first step is not dampened."""
    return bool(group["dampening"]) and any(p.grad is None for p in group["params"])


def begin_momentum(optimizer: Optimizer) -> None:
    """Before parameters have their first step when others have had theirs: frozen layers that thaw.

    Torch's fused SGD has no momentum for them and raises; one of zeros comes to the same. Who chose
    that form is not asked: a copy of an optimizer that was switched does not know.
    """
    if type(optimizer) is not torch.optim.SGD:
        return
    for group in optimizer.param_groups:
        if not group["fused"] or not group["momentum"] or group["dampening"]:
            continue
        parameters = [p for p in group["params"] if p.grad is not None]
        new = [p for p in parameters if optimizer.state[p].get("momentum_buffer") is None]
        for parameter in new if len(new) < len(parameters) else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def counts_on_host(optimizer: Optimizer) -> bool:
    """Whether its arithmetic uses a step counter that is not on the device of its parameters."""
    groups = [g for g in optimizer.param_groups if any(p.is_cuda for p in g["params"])]
    return type(optimizer) in COUNTED and not all(g.get("capturable") for g in groups)


def reason_not_foreach(optimizer: Optimizer, grads: list[Tensor]) -> str:
    """Why a loop over tensors on a CPU must stay one; empty when switching changes no bit."""
    if type(optimizer) not in SAME_BITS:
        return f"{type(optimizer).__name__} may compute other bits by foreach"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "hooks of the script run with its steps"  # such a step is torch's own, form and all
    for group in optimizer.param_groups:
        if group.get("foreach") is not None or group.get("fused"):
            return "the script chose a form"
        if group.get("differentiable") or group.get("capturable"):
            return "it is differentiable or capturable"
        if any(isinstance(value, Tensor) for value in group.values()):
            return "a rate of it is a tensor"
        if any(type(p) is not Parameter or p.dtype not in _PLAIN for p in group["params"]):
            return "a parameter is of an uncommon kind"
    if any(type(g) is not Tensor or g.layout is not torch.strided for g in grads):
        return "a gradient is sparse or a tensor subclass"
    if sum(g.numel() for g in grads) > _SMALL or len(grads) < _MANY:
        return "it would not be faster"
    return ""


def to_fused(optimizer: Any) -> None:
    """Switch every group and move step counters to the device; state is kept."""
    _change(optimizer, {"fused": True, "foreach": False})


def to_device_counters(optimizer: Any) -> bool:
    """Keep the step counter on the device where the arithmetic needs it; True when changed."""
    if type(optimizer) not in COUNTED or all(g.get("capturable") for g in optimizer.param_groups):
        return False
    if any(is_sharded(p) for group in optimizer.param_groups for p in group["params"]):
        return False  # its kernels would mix them with ordinary tensors, which torch refuses
    if any(g.get("differentiable") for g in optimizer.param_groups):
        return False
    _change(optimizer, {"capturable": True})
    # torch warns that capturable is slow outside a graph; here it is what we want.
    optimizer._warned_capturable_if_run_uncaptured = True
    return True


def _change(optimizer: Any, options: dict[str, bool]) -> None:
    chosen: list[dict[str, Any]] = vars(optimizer).setdefault(_SWITCHED, [])
    first = not chosen
    # A group may have been added since the others were switched.
    chosen += ({} for _ in optimizer.param_groups[len(chosen) :])
    for group, own in zip(optimizer.param_groups, chosen, strict=False):
        for key, value in options.items():
            own.setdefault(key, group.get(key))
            group[key] = value
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            for key in _COUNTERS if state else ():
                value = state.get(key)
                if isinstance(value, Tensor) and value.device != parameter.device:
                    state[key] = value.to(parameter.device, torch.float32)
    if first:
        optimizer.register_state_dict_post_hook(lambda _, saved: _as_chosen(saved, chosen))


def _as_chosen(saved: dict[str, Any], chosen: list[dict[str, Any]]) -> None:
    """Make a saved state look as the script's own optimizer would have written it."""
    for group, original in zip(saved["param_groups"], chosen, strict=False):
        group.update(original)
    # The inner dictionaries are the live ones: counters go to the host in copies of them.
    saved["state"] = {
        key: {
            k: v.cpu() if k in _COUNTERS and isinstance(v, Tensor) else v for k, v in state.items()
        }
        if isinstance(state, dict)
        else state
        for key, state in saved["state"].items()
    }


def to_best_form(
    optimizer: Optimizer, grads: list[Tensor], *, allowed: bool
) -> tuple[type[Switched] | None, str]:
    """Switch an optimizer to its cheapest skippable form; what was done, and why not more."""
    reason = reason_not_fused(optimizer, grads)
    if not allowed and not reason:
        reason = "switched off"
    if not reason:
        to_fused(optimizer)
        return SwitchedToFused, ""
    if grads[0].is_cuda and to_device_counters(optimizer):
        return SwitchedToCapturable, reason
    return None, reason


def to_foreach(optimizer: Optimizer, grads: list[Tensor]) -> bool:
    """Have steps on a CPU run by foreach, unless that would change the result.

    True where they did not before.
    """
    own = vars(optimizer)
    if reason_not_foreach(optimizer, grads):
        own.pop(BY_FOREACH, None)
        return False
    new = BY_FOREACH not in own
    own[BY_FOREACH] = True
    return new


def begin_foreach(optimizer: Any) -> list[dict[str, Any]]:
    """A step of one with ``BY_FOREACH`` begins: its groups say so until ``end_foreach``."""
    groups = [group for group in optimizer.param_groups if group.get("foreach", 0) is None]
    for group in groups:
        group["foreach"] = True
    return groups


def end_foreach(groups: list[dict[str, Any]]) -> None:
    """The step is over: these groups say again what the script chose."""
    for group in groups:
        group["foreach"] = None
