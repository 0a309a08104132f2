"""Metric learning losses used by trainer_contrastive.py."""

import torch


def euclidean(a, b):
    return ((a - b) ** 2).sum(dim=-1).sqrt()


class ContrastiveLoss(torch.nn.Module):
    """Pulls matching pairs together and pushes the others at least `margin` apart."""

    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin

    def forward(self, a, b, same):
        dist = euclidean(a, b)
        pull = same * dist.pow(2)
        push = (1 - same) * torch.relu(self.margin - dist).pow(2)
        return 0.5 * (pull + push).mean()
