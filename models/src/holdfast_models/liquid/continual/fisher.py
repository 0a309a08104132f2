"""Diagonal Fisher information: how much the likelihood depends on every single weight.

Squared are gradients of single samples; the square of a mean gradient is something else. One sample
at a time works for every model, whatever its loops and custom gradients.

B batch, C classes or outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

Batch = Mapping[str, Tensor]


def fisher_of(
    model: nn.Module,
    outputs: Callable[[nn.Module, Batch], Tensor],
    batches: Iterable[Batch],
    samples: int = 1000,
    *,
    target: str,
    gaussian: bool = False,
    empirical: bool = False,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Mean over the first ``samples`` of (d log p(y|x) / d weight)^2, by parameter names.

    ``outputs(model, batch)`` gives logits (B, ..., C), or with ``gaussian`` means of Gaussians of
    variance 1; it sees the model in evaluation mode. Labels y are drawn from the model (true
    Fisher) or, ``empirical``, those that the batch has under the name ``target``. Classes below 0
    do not count. The model keeps its mode and gets no gradients.
    """
    random = torch.Generator().manual_seed(seed)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = [torch.zeros_like(p, requires_grad=False) for p in named.values()]
    training, taken = model.training, 0
    model.eval()
    for sample in _samples(batches, samples):
        out_BC = outputs(model, sample).float()
        likelihood = _gaussian if gaussian else _categorical
        log_p = likelihood(out_BC, sample[target], None if empirical else random)
        gradients = torch.autograd.grad(
            log_p, list(named.values()), allow_unused=True, materialize_grads=True
        )
        torch._foreach_addcmul_(sums, gradients, gradients)
        taken += 1
    model.train(training)
    return {name: value / max(1, taken) for name, value in zip(named, sums, strict=True)}


def _samples(batches: Iterable[Batch], most: int) -> Iterable[dict[str, Tensor]]:
    """Batches of one sample."""
    for batch in batches:
        for row in range(len(next(iter(batch.values())))):
            if most <= 0:
                return
            most -= 1
            yield {name: value[row : row + 1] for name, value in batch.items()}


def _gaussian(out_BC: Tensor, label_BC: Tensor, random: torch.Generator | None) -> Tensor:
    if random is not None:
        noise_BC = torch.randn(out_BC.shape, generator=random).to(out_BC.device, non_blocking=True)
        label_BC = out_BC.detach() + noise_BC
    return -0.5 * (label_BC - out_BC).square().sum()


def _categorical(out_BC: Tensor, label_B: Tensor, random: torch.Generator | None) -> Tensor:
    log_p_BC, counts_B = out_BC.log_softmax(-1), label_B >= 0
    if random is not None:
        level_B1 = torch.rand((*label_B.shape, 1), generator=random)
        level_B1 = level_B1.to(out_BC.device, non_blocking=True)
        below_BC = log_p_BC.detach().exp().cumsum(-1) < level_B1
        label_B = below_BC.sum(-1).clamp(max=log_p_BC.shape[-1] - 1)
    picked_B = log_p_BC.gather(-1, label_B.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (picked_B * counts_B).sum()
