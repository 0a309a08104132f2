"""What a model looks at: gradients by face and channel, and the weights of its heads by token.

Shapes: B events, S sensors, C channels, F faces, K outputs, T tokens, D width of a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
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


def saliency(
    model: nn.Module, batches: Iterable[Tensor | tuple[Tensor, ...]], *, most_batches: int = 8
) -> Saliency:
    """Differentiate every output of a model by its input.

    Args:
        model: takes x_BSC and gives outputs by task, (B, numbers) each; used in evaluation mode
            and given back as it was. The second half of doubled outputs is a log variance and
            is not looked at.
        batches: x_BSC, or a tuple of x_BSC and what else the model takes.
        most_batches: no more than so many are used.
    """
    was_training = model.training
    model.eval()
    table_SF: Tensor | None = None
    names: tuple[str, ...] = ()
    total_KFC: Tensor | None = None
    try:
        for batch in islice(batches, most_batches):
            x_BSC, *others = batch if isinstance(batch, tuple) else (batch,)
            x_BSC = x_BSC.detach().float().requires_grad_()
            if table_SF is None:
                table_SF = _faces().to(x_BSC.device)
            with torch.enable_grad():
                outputs = _components(model(x_BSC, *others))
                slopes = [
                    torch.autograd.grad(one.sum(), x_BSC, retain_graph=True)[0]
                    for one in outputs.values()
                ]
            names = tuple(outputs)
            mean_KFC = torch.stack([(one.abs().mean(0).T @ table_SF).T for one in slopes])
            total_KFC = mean_KFC if total_KFC is None else total_KFC + mean_KFC
    finally:
        model.train(was_training)
    if total_KFC is None:
        return Saliency((), torch.zeros(0, len(FACES), 2))
    whole_K = total_KFC.sum((1, 2), keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return Saliency(names, (total_KFC / whole_K).cpu())


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
