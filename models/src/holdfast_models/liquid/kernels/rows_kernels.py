"""A linear layer of few rows in Triton: ``F.linear`` where a token is written.

R rows, N outputs, K inputs. One program has some outputs of one row; a matrix product of libraries
takes two or three kernels for what is over in a microsecond.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TILE = 4096  # weights that a program looks at at once
_DEEPEST = 1024  # of them in a row


@triton.jit
def _rows_kernel(
    x, weight, bias, y, outputs, inputs, stride_x, stride_w,
    BIAS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    there = n < outputs
    sums = tl.zeros([BN], tl.float32)
    if BIAS:
        sums = tl.load(bias + n, mask=there, other=0.0)
    for begin in range(0, inputs, BK):
        k = begin + tl.arange(0, BK)
        known = k < inputs
        given = tl.load(x + row * stride_x + k, mask=known, other=0.0)
        inside = there[:, None] & known[None, :]
        tile = tl.load(weight + n[:, None] * stride_w + k[None, :], mask=inside, other=0.0)
        sums += tl.sum(tile * given[None, :], 1)
    tl.store(y + row * outputs + n, sums, mask=there)


def rows(x_RK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    """(R, N); the inner dimension of both is read as it lies."""
    (count, inputs), outputs = x_RK.shape, weight_NK.shape[0]
    x_RK, weight_NK = (one if one.stride(1) == 1 else one.contiguous() for one in (x_RK, weight_NK))
    y_RN = x_RK.new_empty(count, outputs)
    deep = min(_DEEPEST, triton.next_power_of_2(inputs))
    wide = max(4, min(16, _TILE // deep))
    _rows_kernel[(triton.cdiv(outputs, wide), count)](
        x_RK, weight_NK, weight_NK if bias_N is None else bias_N, y_RN,
        outputs, inputs, x_RK.stride(0), weight_NK.stride(0),
        BIAS=bias_N is not None, BN=wide, BK=deep, num_warps=4,
    )  # fmt: skip
    return y_RN
