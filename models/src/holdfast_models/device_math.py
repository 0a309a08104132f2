"""Small functions that the Triton kernels share; imported only where there is triton.

Made of what is one instruction of the device: powers of two and the inverse square root. An
exponential to base e takes five instructions, a division eight, the error function thirty; next to
the memory they read, the kernels would have no time for that.
"""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["gelu", "gelu_both", "sigmoid", "tanh"]

_LOG2_E = tl.constexpr(1.4426950408889634)
_BELL = tl.constexpr(0.3989422804014327)

# The error function of Abramowitz and Stegun, 7.1.26, which is right to 1.5e-7; halved, for the
# normal distribution's share beyond x.
_NEAR = tl.constexpr(0.3275911 * 0.7071067811865476)
_A1 = tl.constexpr(0.5 * 0.254829592)
_A2 = tl.constexpr(0.5 * -0.284496736)
_A3 = tl.constexpr(0.5 * 1.421413741)
_A4 = tl.constexpr(0.5 * -1.453152027)
_A5 = tl.constexpr(0.5 * 1.061405429)


@triton.jit
def _inverse(x):
    """Of a number above 0."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return _inverse(1 + tl.exp2(x * -_LOG2_E))


@triton.jit
def tanh(x):
    """By the sigmoid."""
    return 2 * _inverse(1 + tl.exp2(x * (-2 * _LOG2_E))) - 1


@triton.jit
def _beyond(x):
    """Share of the normal distribution beyond abs(x), and its density there without the factor."""
    t = _inverse(1 + _NEAR * tl.abs(x))
    bell = tl.exp2(x * x * (-0.5 * _LOG2_E))
    return t * (_A1 + t * (_A2 + t * (_A3 + t * (_A4 + t * _A5)))) * bell, bell


@triton.jit
def gelu(x):
    """The exact GELU, to the rounding of fp32."""
    beyond, _ = _beyond(x)
    return tl.maximum(x, 0.0) - tl.abs(x) * beyond


@triton.jit
def gelu_both(x):
    """GELU and its derivative."""
    beyond, bell = _beyond(x)
    share = tl.where(x < 0, beyond, 1 - beyond)
    return x * share, share + x * bell * _BELL
