"""Small functions that the Triton kernels share; imported only where there is triton."""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["gelu", "gelu_both", "gelu_slope", "tanh"]

_ROOT_HALF = tl.constexpr(0.7071067811865476)
_BELL = tl.constexpr(0.3989422804014327)


@triton.jit
def gelu(x):
    """The exact GELU."""
    return 0.5 * x * (1 + tl.erf(x * _ROOT_HALF))


@triton.jit
def gelu_slope(x):
    """Its derivative."""
    return 0.5 * (1 + tl.erf(x * _ROOT_HALF)) + x * tl.exp(-0.5 * x * x) * _BELL


@triton.jit
def gelu_both(raw):
    """GELU and its derivative."""
    share = 0.5 * (1 + tl.erf(raw * _ROOT_HALF))
    return raw * share, share + raw * tl.exp(-0.5 * raw * raw) * _BELL


@triton.jit
def tanh(x):
    """By the sigmoid, which is one instruction of the device."""
    return 2 * tl.sigmoid(2 * x) - 1
