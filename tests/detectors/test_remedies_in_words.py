"""What a remedy says in words is run: the fault is NaN, its repair finite, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.detectors import remedy
from holdfast.records.nonfinite import Cause, TensorStats

MASK = torch.tensor([[False, True, False], [False, False, False]])


def softmaxed(low: float) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.log_softmax(x.masked_fill(MASK, low), -1)


def entropy(x: Tensor) -> Tensor:
    logp = softmaxed(-math.inf)(x)
    return logp.exp() * logp


def entropy_masked_after(x: Tensor) -> Tensor:
    return entropy(x).masked_fill(MASK, 0)


def entropy_masked_before(x: Tensor) -> Tensor:
    logp = softmaxed(-math.inf)(x)
    return logp.exp() * logp.masked_fill(MASK, 0)


def entropy_of_lowest(x: Tensor) -> Tensor:
    logp = softmaxed(torch.finfo(x.dtype).min)(x)
    return logp.exp() * logp


def difference_masked(after: bool) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        high = (x * 1e38 * 1e38).where(MASK, x)  # inf where it is masked
        if after:
            return (high - high.detach()).masked_fill(MASK, 0) * high
        high = high.masked_fill(MASK, 0)
        return (high - high.detach()) * high

    return run


def attention(low: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x.masked_fill(torch.ones_like(MASK), low).softmax(-1)


def stats(**numbers: Any) -> TensorStats:
    return TensorStats(shape=(2, 3), dtype="float32", numel=6, **numbers)


INF = stats(inf=1, min=-3.0, max=-1.0)
FINE = stats(zeros=1, min=0.0, max=1.0)
NAN = stats(nan=1, min=0.0, max=1.0)
ALL_INF = INF.replace(inf=6)
EQUAL = stats(min=1.0, max=1.0)


def cause(op: str, *inputs: TensorStats, phase: str = "forward") -> Cause:
    return Cause(
        op=op, phase=phase, how="replay", file="", line=0, inputs=inputs, output=NAN,
        dtype="float32",
    )  # fmt: skip


# What is told of, words of the remedy, what is NaN, and what these words make of it.
CASES: list[tuple[Cause, str, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
    (cause("aten::mul", FINE, INF), "before this operation, x.masked_fill(mask, 0)",
     entropy, entropy_masked_before),
    (cause("aten::mul", FINE, INF), "masking the result is too late",
     entropy_masked_after, entropy_masked_before),
    (cause("aten::mul", FINE, INF), "mask with torch.finfo(x.dtype).min",
     entropy, entropy_of_lowest),
    (cause("aten::sub", INF, INF), "before this operation, x.masked_fill(mask, 0)",
     difference_masked(after=True), difference_masked(after=False)),
    (cause("MulBackward0", INF, FINE, phase="backward"),
     "keep that factor finite before the product, masking its result is too late",
     lambda x: (x * (x - x).log()).masked_fill(x == x, 0),
     lambda x: x * (x - x + 1).log()),
    (cause("aten::_softmax", ALL_INF), "mask with a low finite number",
     attention(-math.inf), attention(-6e4)),
    (cause("aten::_softmax", ALL_INF),
     "nan_to_num after it leaves the gradient NaN where the mask was added",
     lambda x: (x - math.inf).softmax(-1).nan_to_num() * x, lambda x: (x - 6e4).softmax(-1) * x),
    (cause("StdBackward0", EQUAL, EQUAL, phase="backward"),
     "use (x.var(correction=0) + 1e-12).sqrt()",
     lambda x: ((x * 0).var(correction=0)).sqrt(),
     lambda x: ((x * 0).var(correction=0) + 1e-12).sqrt()),
    (cause("aten::div.Tensor", FINE, FINE), "torch.where",
     lambda x: x * 0 / (x - x), lambda x: x * 0 / torch.where(x - x == 0, 1e-12, x - x)),
    (cause("aten::std", FINE), "use correction=0",
     lambda x: x[:1, :1].std(), lambda x: x[:1, :1].std(correction=0)),
    (cause("aten::layer_norm", EQUAL), "eps of 1e-5",
     lambda x: F.layer_norm(x * 0, [3], eps=0), lambda x: F.layer_norm(x * 0, [3], eps=1e-5)),
]  # fmt: skip


def finite(run: Callable[[Tensor], Tensor]) -> bool:
    x = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.25, 1.0]], requires_grad=True)
    result = run(x)
    result.sum().backward()
    assert x.grad is not None
    return bool(result.isfinite().all() and x.grad.isfinite().all())


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("number", range(len(CASES)))
def test_what_is_said_in_words_is_finite_forward_and_backward(number: int) -> None:
    recorded, words, bad, good = CASES[number]
    text = remedy(recorded).text
    assert words in text, text
    assert not finite(bad) and finite(good)
