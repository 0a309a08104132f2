"""Whether a network is what its settings say: whole, causal, with memory, and trained everywhere.

The predecessor of this family saw the future, had liquid cells without a state, and carried 40 %
of parameters that nothing depended on; its losses looked like those of a training all the same.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from .data.sequences import TaskData
from .data.tensor_rows import first_batch
from .model.mamba.mamba import Mamba
from .model.mixing.attention import SpikingAttention
from .model.mixing.cross_attention import CrossAttention
from .model.mixing.gate import AdaptiveGate
from .model.model import LiquidNet
from .plasticity.synapses import PlasticLinear
from .run_settings import LiquidSettings

_STEPS = 5
_ROUNDING = 1e-5  # of the largest output: what kernels may differ by
_COMPARED = 8  # samples by which tasks are told apart
_OFF = "or set self_check=false"


def check_network(net: LiquidNet, settings: LiquidSettings, inputs: Sequence[Any]) -> None:
    """Refuse a network without a part that is set, or one that forgets, or sees the future.

    Args:
        net: in its place, before the first step.
        settings: what it was made from.
        inputs: what it is called with, a few samples; images have no future.
    """
    training = net.training
    net.eval()
    _check_parts(net, settings)
    _check_memory(net, inputs)
    if net.sizes.task != "vision":
        _check_causality(net, inputs)
    net.train(training)


def _check_parts(net: LiquidNet, settings: LiquidSettings) -> None:
    """That a part is there; whether it does something its gradients say."""
    model, blocks = settings.model, settings.model.num_layers
    mamba = model.mamba
    for name, on, kind, count in (
        ("model.mamba.on", mamba.on, Mamba, blocks),
        ("model.mamba.gate", mamba.on and mamba.gate, AdaptiveGate, blocks),
        ("model.mamba.cross_attention", mamba.on and mamba.cross_attention, CrossAttention, blocks),
        ("model.attention.on", model.attention.on, SpikingAttention, blocks // 2),
        ("plasticity.on", settings.plasticity.on, PlasticLinear, blocks),
    ):
        found = sum(isinstance(module, kind) for module in net.modules())
        if on and found != count:
            raise HoldfastError(
                f"{name} is set, and the network has {found} of {count} {kind.__name__}: the "
                f"setting has no effect; see how the blocks are made, {_OFF}"
            )


def _check_memory(net: LiquidNet, inputs: Sequence[Any]) -> None:
    """What comes out of the second token depends on the first, in every part that remembers.

    By gradients: a difference of outputs would be lost in rounding where little is remembered.
    """
    names = {
        module: name
        for name, module in net.named_modules()
        if fnmatch.fnmatch(name, "blocks.*.liquid") or _attends(module)
    }
    called: dict[nn.Module, tuple[Any, Any]] = {}

    def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
        called[module] = args, kwargs

    hooks = [module.register_forward_pre_hook(keep, with_kwargs=True) for module in names]
    with torch.no_grad():
        net(*inputs)
    for hook in hooks:
        hook.remove()
    for module, (args, kwargs) in called.items():
        leaves = [_two_tokens(one).requires_grad_() for one in args if isinstance(one, Tensor)]
        *outputs, _ = module(*leaves, **{key: _two_tokens(one) for key, one in kwargs.items()})
        for y_BTH in outputs:
            reported = (
                y_BTH[:, 1] * torch.linspace(1, 2, y_BTH.shape[-1], device=y_BTH.device)
            ).sum()
            found = torch.autograd.grad(reported, leaves, retain_graph=True, allow_unused=True)
            if not any(one is not None and bool(one[:, 0].any()) for one in found):
                raise HoldfastError(
                    f"{names[module]} ({type(module).__name__}): the second token does not depend "
                    "on the first, so this part has no memory; look for a state that is ignored "
                    f"or for units that never fire, {_OFF}"
                )


def _attends(module: nn.Module) -> bool:
    if isinstance(module, SpikingAttention):
        return module.attention.window != 1
    return isinstance(module, CrossAttention)


def _two_tokens(given: Any) -> Any:
    return given[:, :2].detach().clone() if isinstance(given, Tensor) else given


@torch.no_grad()
def _check_causality(net: LiquidNet, inputs: Sequence[Any]) -> None:
    """Other tokens in the second half leave the outputs of the first half as they are."""
    half = inputs[0].shape[1] // 2
    changed = [one.clone() if isinstance(one, Tensor) else one for one in inputs]
    for later in (one[:, half:] for one in changed if isinstance(one, Tensor)):
        later += 1
        if not later.is_floating_point():
            later %= net.sizes.inputs
    before, after = (net(*given).y_BTV[:, :half].float() for given in (inputs, changed))
    difference = (before - after).abs().max()
    if difference > _ROUNDING * before.abs().max():
        raise HoldfastError(
            f"outputs of the first {half} tokens change by {float(difference):.2g} where only "
            "later tokens change: the network sees the future; look for attention without a "
            f"mask or a mean over the sequence, {_OFF}"
        )


def check_tasks(tasks: Sequence[TaskData]) -> None:
    """Refuse tasks that begin with the same samples: nothing could be forgotten between them."""
    for one, other in combinations(tasks, 2):
        own, theirs = (first_batch(task.train, _COMPARED) for task in (one, other))
        if all(torch.equal(own[name], theirs[name]) for name in own):
            raise HoldfastError(
                f"tasks {one.name!r} and {other.name!r} begin with the same samples; give sources "
                f"that differ, or fewer continual.num_tasks, {_OFF}"
            )


class SelfCheck:
    """Looks at the gradients of the first steps, and asks the host once, after the last of them.

    Args:
        model: all of its trainable parameters are looked at.
        exempt: patterns of names that may be without a gradient for longer.
    """

    def __init__(self, model: nn.Module, exempt: Sequence[str] = ()) -> None:
        self._found: dict[str, Tensor] = {}
        self._named = {
            name: one
            for name, one in model.named_parameters()
            if one.requires_grad and not any(fnmatch.fnmatch(name, each) for each in exempt)
        }
        self._hooks = [
            one.register_post_accumulate_grad_hook(self._looking(name))
            for name, one in self._named.items()
        ]

    def stepped(self, step: int) -> None:
        """After a step; the fifth of a process is the last that is looked at."""
        if not self._hooks or step < _STEPS:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        names = list(self._found)
        fine = torch.stack([self._found[name] for name in names]).tolist() if names else []
        reached = {name for name, one in zip(names, fine, strict=True) if one}
        missing = [name for name in self._named if name not in reached]
        self._found.clear()
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise HoldfastError(
                f"{', '.join(missing[:3])}{more}: no finite gradient other than 0 in the first "
                f"{_STEPS} steps, so this part is not trained; look for a detached path or a dead "
                f"activation, {_OFF}"
            )

    def _looking(self, name: str) -> Callable[[Tensor], None]:
        def look(parameter: Tensor) -> None:
            if parameter.grad is None:
                return
            gradient = parameter.grad.detach()
            fine = gradient.isfinite().all() & (gradient != 0).any()
            known = self._found.get(name)
            self._found[name] = fine if known is None else known | fine

        return look
