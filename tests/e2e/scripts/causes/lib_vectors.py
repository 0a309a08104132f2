"""Small vector helpers shared by the retrieval scripts."""

import torch


def unit(v):
    """Scale the vectors on the last axis to length one."""
    return v / v.pow(2).sum(dim=-1, keepdim=True).sqrt()


def cosine_matrix(a, b):
    return torch.einsum("id,jd->ij", unit(a), unit(b))


def prototypes(vectors, labels, n):
    """Mean direction of every class, as unit vectors."""
    one_hot = torch.nn.functional.one_hot(labels, n).float()
    return unit(torch.einsum("ic,id->cd", one_hot, vectors) + 1e-6)
