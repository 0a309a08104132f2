"""What a model looks at: gradients by face and channel, and the weights of its heads by token.

Shapes: B events, S sensors, C channels, F faces, K outputs, T tokens, D width of a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..geometry.layout import FACES, face_of_sensor
from .regression_metrics import QUANTITIES

_NAMES: Mapping[str, tuple[str, ...]] = {**QUANTITIES, "angleVec": ("x", "y", "z")}


class Saliency(NamedTuple):
    """Mean absolute gradient of each output by face and channel; the shares of one output add up
    to 1."""

    outputs: tuple[str, ...]
    shares_KFC: Tensor


def saliency(model: nn.Module, x_BSC: Tensor, *others: Tensor) -> Saliency:
    """Differentiate every output of a model by its input.

    Args:
        model: takes x_BSC and gives outputs by task, (B, numbers) each; used in evaluation mode
            and given back as it was. The second half of doubled outputs is a log variance and
            is not looked at.
        x_BSC: some events.
        others: what else the model takes.
    """
    was_training = model.training
    x_BSC = x_BSC.detach().float().requires_grad_()
    table_SF = _faces().to(x_BSC.device)
    try:
        with torch.enable_grad():
            outputs = _components(model.eval()(x_BSC, *others))
            slopes = [
                torch.autograd.grad(one.sum(), x_BSC, retain_graph=True)[0]
                for one in outputs.values()
            ]
    finally:
        model.train(was_training)
    mean_KFC = torch.stack([(one.abs().mean(0).T @ table_SF).T for one in slopes])
    whole_K = mean_KFC.sum((1, 2), keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return Saliency(tuple(outputs), (mean_KFC / whole_K).cpu())


def _faces() -> Tensor:
    """Takes sensors to the mean of their face."""
    codes_S = torch.from_numpy(face_of_sensor().copy())
    table_SF = nn.functional.one_hot(codes_S, len(FACES)).float()
    return table_SF / table_SF.sum(0)


def _components(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each number that a model gives, by name; without log variances."""
    found: dict[str, Tensor] = {}
    for task, out_BO in outputs.items():
        known = _NAMES.get(task)
        for at in range(len(known) if known else out_BO.shape[1]):
            name = known[at] if known else f"{at}"
            found[task if known == (task,) else f"{task} {name}"] = out_BO[:, at]
    return found


@torch.no_grad()
def face_weights(heads: Mapping[str, nn.Module], tokens: Sequence[str]) -> dict[str, list[float]]:
    """Norm of the first layer of each head, token by token; 1 is the mean of the tokens."""
    found: dict[str, list[float]] = {}
    for task, head in heads.items():
        first = next(layer for layer in head.modules() if isinstance(layer, nn.Linear))
        norm_T = first.weight.unflatten(1, (len(tokens), -1)).float().square().sum((0, 2)).sqrt()
        found[task] = (norm_T / norm_T.mean()).tolist()
    return found
