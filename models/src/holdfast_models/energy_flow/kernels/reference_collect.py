"""Plain torch forms of the two kernels of the collection.

N flows, X = B·S cells of all samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gather", "splat"]


def splat(
    e_N: Tensor,
    p_3N: Tensor,
    k_N: Tensor,
    sample_N: Tensor,
    got_N: Tensor,
    sums_2X: Tensor,
    width: int,
    height: int,
) -> None:
    """Adds each flow's part to its four cells: energies to the first row, weights to the second."""
    cell_N, x_N, y_N, _, _ = _corner(p_3N, width, height)
    cell_N = cell_N + sample_N * (width * height)
    strong_N = torch.where(got_N, _weight(e_N, p_3N, k_N).exp(), 0.0)
    e_N = torch.where(got_N, e_N, 0.0)
    for over, share_N in _shares(x_N, y_N, width):
        part_N = torch.where(got_N, strong_N * share_N, 0.0)
        sums_2X[0].index_add_(0, cell_N + over, part_N * e_N)
        sums_2X[1].index_add_(0, cell_N + over, part_N)


def gather(
    e_N: Tensor,
    p_3N: Tensor,
    k_N: Tensor,
    sample_N: Tensor,
    got_N: Tensor,
    surface_X: Tensor,
    total_X: Tensor,
    dsurface_X: Tensor,
    de_N: Tensor,
    dp_3N: Tensor,
    width: int,
    height: int,
) -> None:
    """Gradients of energies and positions."""
    cell_N, x_N, y_N, inside_x, inside_y = _corner(p_3N, width, height)
    cell_N = cell_N + sample_N * (width * height)
    strong_N = _weight(e_N, p_3N, k_N).exp()
    by_e, by_weight, by_x, by_y = (torch.zeros_like(e_N) for _ in range(4))
    slopes = ((y_N - 1, x_N - 1), (1 - y_N, -x_N), (-y_N, 1 - x_N), (y_N, x_N))
    for (over, share_N), (on_x, on_y) in zip(_shares(x_N, y_N, width), slopes, strict=True):
        at_N = cell_N + over
        total_N = total_X[at_N]
        rate_N = torch.where(total_N != 0, dsurface_X[at_N] / total_N, 0.0) * strong_N
        apart_N = rate_N * (e_N - surface_X[at_N])
        by_e += rate_N * share_N
        by_weight += apart_N * share_N
        by_x += apart_N * on_x
        by_y += apart_N * on_y
    below, above = (p_3N[2] + 1).abs(), (p_3N[2] - 1).abs()
    near_N = torch.minimum(below, above)
    grown_N = (1 + 0.1 * k_N) / (1 + near_N)
    # minimum shares the slope where both are alike
    side_N = torch.where(below < above, 1.0, torch.where(below > above, -1.0, 0.0))
    side_N = torch.where(near_N == 0, 0.0, side_N)
    de_N.copy_(torch.where(got_N, by_e + by_weight * grown_N * e_N.sign(), 0.0))
    dp_3N[0] = torch.where(got_N & inside_x, by_x * ((width - 1) / 2), 0.0)
    dp_3N[1] = torch.where(got_N & inside_y, by_y * ((height - 1) / 2), 0.0)
    dz_N = -by_weight * e_N.abs() * grown_N / (1 + near_N) * side_N
    dp_3N[2] = torch.where(got_N, dz_N, 0.0)


def _weight(e_N: Tensor, p_3N: Tensor, k_N: Tensor) -> Tensor:
    near_N = torch.minimum((p_3N[2] + 1).abs(), (p_3N[2] - 1).abs())
    return e_N.abs() / (1 + near_N) * (1 + 0.1 * k_N)


def _corner(p_3N: Tensor, width: int, height: int) -> tuple[Tensor, ...]:
    x_N, y_N = (p_3N[0] + 1) / 2 * (width - 1), (p_3N[1] + 1) / 2 * (height - 1)
    left_N = x_N.floor().clamp(0, width - 2).nan_to_num(0.0)
    low_N = y_N.floor().clamp(0, height - 2).nan_to_num(0.0)
    x_N, y_N = x_N - left_N, y_N - low_N
    inside_x, inside_y = (x_N >= 0) & (x_N <= 1), (y_N >= 0) & (y_N <= 1)
    cell_N = low_N.long() * width + left_N.long()
    return cell_N, x_N.clamp(0, 1), y_N.clamp(0, 1), inside_x, inside_y


def _shares(x_N: Tensor, y_N: Tensor, width: int) -> tuple[tuple[int, Tensor], ...]:
    return (
        (0, (1 - x_N) * (1 - y_N)),
        (1, x_N * (1 - y_N)),
        (width, (1 - x_N) * y_N),
        (width + 1, x_N * y_N),
    )
