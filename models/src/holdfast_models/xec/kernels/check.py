"""Whether the kernels compute on this device what blocks should, tried once before they are used.

A small block of each width runs forward and backward through them and through its plain
form; who fails, or differs by more than rounding, is not used. The kernels are compiled on the way,
which is needed anyway.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from ..model.blocks import ConvNeXtBlock, seen

__all__ = ["fault", "take"]

_WIDEST = 64  # channels: sums of products over a tile have to fit into the registers
_IMAGES = 5
_LIMIT = 0.05  # of a norm; products are rounded to eight bits


def take(model: nn.Module, device: torch.device) -> str:
    """Have the blocks of a model use the kernels where they can; why some do not, or nothing.

    Args:
        model: changed in place, but not in what it computes or saves.
        device: where it will run, with products in bf16.
    """
    blocks = [one for one in model.modules() if isinstance(one, ConvNeXtBlock)]
    why = _unavailable(device)
    faults: dict[str, None] = {}
    for block in blocks:
        found = why or fault(len(block.norm.weight), device)
        block.fused = found is None
        if found is not None:
            faults[found] = None
    return "; ".join(faults)


@functools.cache
def fault(channels: int, device: torch.device) -> str | None:
    """What is wrong with the kernels for such blocks; None: nothing."""
    if channels > _WIDEST:
        return f"{channels} channels are too many for a tile"
    try:
        with torch.inference_mode(False), torch.enable_grad():
            return _compared(channels, device)
    except Exception as error:  # whatever it is, there is a plain form
        return f"{type(error).__name__}: {error}"


def _compared(channels: int, device: torch.device) -> str | None:
    places = (13, 11)
    random = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=random)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        block = ConvNeXtBlock(channels).to(device)
    with torch.no_grad():
        for one in block.parameters():
            one.copy_(normal(*one.shape) * (0.3 if one.dim() == 1 else one[0].numel() ** -0.5))
    x, toward = normal(_IMAGES, *places, channels), normal(_IMAGES, *places, channels)
    some = (normal(_IMAGES, *places, 1) < 0.5).float()
    names = ["the result", "x", *(name for name, _ in block.named_parameters())]
    for visible in (None, some):
        found: list[list[Tensor]] = []
        for fused in (False, True):
            block.fused = fused
            leaf = x.clone().requires_grad_()
            with torch.autocast(device.type, torch.bfloat16, enabled=fused):
                out = block(seen(leaf, visible), visible)
            wanted = [leaf, *block.parameters()]
            found.append([out, *torch.autograd.grad(out, wanted, toward)])
        for name, plain, own in zip(names, *found, strict=True):
            apart = float(((own - plain).norm() / plain.norm()).detach())
            if not apart <= _LIMIT:
                return f"{name} of {channels} channels is {apart:.1e} from plain torch"
    return None


def _unavailable(device: torch.device) -> str | None:
    if device.type != "cuda" or torch.version.hip is not None:
        return f"no kernels for {device.type}"
    if torch.cuda.get_device_capability(device)[0] < 8:
        return "the GPU is older than bf16"
    try:
        from . import depthwise, response  # noqa: F401
    except Exception as error:  # a broken installation is none
        return f"{type(error).__name__}: {error}"
    return None
