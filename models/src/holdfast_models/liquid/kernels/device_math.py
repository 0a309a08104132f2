"""Small functions that the kernels share; imported only where there is triton."""

# Triton is there only where it can be used, and makes something else of its functions.
# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["sigmoid", "tanh"]


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)); an overflow ends at 0."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    """By one exponential; an overflow ends at 1."""
    return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
