"""Divergences between discrete distributions, used for soft labels."""

import torch
import torch.nn.functional as F


def soft_cross_entropy(logits, target):
    return -(target * F.log_softmax(logits, dim=-1)).sum(dim=-1).mean()


def kl_to_target(logits, target, temperature, weight=1.0):
    """Mean KL(target || softmax(logits / temperature)), on the scale of Hinton et al."""
    return (
        weight
        * temperature**2
        * (target * (target.log() - F.log_softmax(logits / temperature, dim=-1))).sum(dim=-1)
    ).mean()


def entropy(logits):
    log_q = F.log_softmax(logits, dim=-1)
    return -(log_q.exp() * log_q).sum(dim=-1).mean()


def agreement(logits, target):
    same = logits.argmax(dim=-1) == target.argmax(dim=-1)
    return torch.mean(same.float())
