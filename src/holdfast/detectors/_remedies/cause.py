"""Parse a recorded cause; the file may be damaged, old, or of another version.

>>> cause = Cause.read({"op": "SqrtBackward0", "phase": "backward", "line": "?"})
>>> cause.name, cause.line, cause.code
('sqrt', 0, '')
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from .source import Statement

LIMITS = {
    "float16": 65504.0,
    "bfloat16": 3.39e38,
    "float32": 3.4028234e38,
    "float64": 1.7976931e308,
}
SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
# The smallest number above zero; what is below half of it is stored as zero.
_SMALLEST = {"float16": 6e-8, "bfloat16": 9.2e-41, "float32": 1.4e-45, "float64": 5e-324}

# Autograd nodes whose name in snake case is not the one of the function.
_NODES = {"log1_p": "log1p", "nll_loss2_d": "nll_loss2d", "special_entr": "entr"}
_SYNONYMS = {
    "true_divide": "div", "divide": "div", "square": "pow", "rsub": "sub", "subtract": "sub",
    "multiply": "mul", "special_entr": "entr", "safe_softmax": "softmax", "pdist": "cdist",
    "convolution_overrideable": "convolution", "euclidean_dist": "cdist", "var_mean": "var",
    "std_mean": "std", "nll_loss_nd": "nll_loss", "nll_loss2d": "nll_loss",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Stat:
    """One tensor in numbers; ``low`` and ``high`` are over finite values, NaN without any."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    low: float = math.nan
    high: float = math.nan
    mean: float = math.nan
    zeros: int = 0
    negative: int = 0
    nan: int = 0
    inf: int = 0
    numel: int = 0

    @property
    def bad(self) -> int:
        """Number of non-finite values."""
        return self.nan + self.inf

    @property
    def largest(self) -> float:
        """The largest finite magnitude; 0 when there is none."""
        return max((abs(v) for v in (self.low, self.high) if not math.isnan(v)), default=0.0)

    @property
    def integral(self) -> bool:
        """Whether it holds whole numbers or truth values."""
        return self.dtype.startswith(("int", "uint", "bool", "long"))

    @property
    def binary(self) -> bool:
        """Whether it is a mask: nothing but 0 and 1, some of each or 0 alone."""
        if self.dtype == "bool":
            return True
        if self.bad or self.negative or not self.numel or self.high not in (0, 1):
            return False
        ones = self.numel - self.zeros
        return abs(self.mean * self.numel - ones) < 1e-3 * max(1, ones)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The training side's record of where a NaN first appeared."""

    how: str = ""
    phase: str = "unknown"
    op: str = ""
    name: str = ""
    """The function meant by ``op``: "softmax" for "_softmax", "sqrt" for "SqrtBackward0"."""
    file: str = ""
    line: int = 0
    code: str = ""
    start: int = 0
    excerpt: tuple[tuple[int, str], ...] = ()
    module: str = ""
    inputs: tuple[Stat, ...] = ()
    output: Stat | None = None
    dtype: str = ""
    sample: object = None
    layer: str = ""

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Cause:
        """Accept fields of the right type and ignore the rest."""
        op, phase = _text(data.get("op")), _text(data.get("phase"))
        inputs = [
            Stat() if (stat := _stat(given)) is None else stat
            for given in _list(data.get("inputs"))
        ]
        output = _stat(data.get("output"))
        sample = data.get("sample")
        line = _whole(data.get("line"))
        return cls(
            how=_text(data.get("how")),
            phase=phase if phase in ("forward", "backward", "parameter", "input") else "unknown",
            op=op,
            name=_name(op),
            file=_text(data.get("file")),
            line=line,
            code=_text(data.get("code")),
            start=_whole(data.get("start")) or line,
            excerpt=_excerpt(data.get("excerpt")),
            module=_text(data.get("module")),
            inputs=tuple(inputs),
            output=output,
            dtype=_dtype(data.get("dtype")) or (output.dtype if output else ""),
            sample=sample if isinstance(sample, int | str) else None,
            layer=_text(data.get("layer")),
        )

    @cached_property
    def statement(self) -> Statement | None:
        """The user's statement, parsed; None when it is not known or is no whole statement."""
        around = "\n".join(text for _, text in self.excerpt)
        return Statement.parse(self.code, around) if self.code.strip() else None

    @property
    def backward(self) -> bool:
        """Whether it arose in the backward pass."""
        return self.phase == "backward"

    @property
    def incoming(self) -> Stat:
        """The incoming gradient; it is last, behind the saved tensors of the forward pass."""
        return self.inputs[-1] if self.backward and self.inputs else Stat()

    @property
    def masked(self) -> bool:
        """Whether a gradient of zero came in and NaN went out: 0 * inf, a masked value."""
        return self.backward and self.incoming.zeros > 0 and (self.output or Stat()).nan > 0

    @property
    def limit(self) -> float:
        """The largest number of the format it was computed in."""
        return LIMITS.get(self.dtype, LIMITS["float32"])

    @property
    def half(self) -> bool:
        """Whether it was computed in fp16, where 1e-8 is zero and 65,505 infinity."""
        return self.dtype == "float16"

    def input(self, index: int) -> Stat | None:
        """One input, None when it was not recorded or is no tensor."""
        return self.inputs[index] if index < len(self.inputs) else None

    def vanishes(self, value: float) -> bool:
        """Whether a small number is stored as zero in the format of the result."""
        return 0 < abs(value) < _SMALLEST.get(self.dtype, 0.0) / 2


def _name(op: str) -> str:
    name = op.rpartition("::")[2].partition(".")[0]
    node = re.fullmatch(r"(\w+?)Backward\d*", name)
    if node:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node[1]).lower()
        name = _NODES.get(name, name)
    name = name.strip("_").removesuffix("_forward").removesuffix("_legit")
    name = re.sub(r"^(native|cudnn|miopen|mkldnn|thnn|slow)_", "", name)
    return _SYNONYMS.get(name, name)


def _stat(given: object) -> Stat | None:
    if not isinstance(given, Mapping):
        return None
    data = cast("Mapping[str, Any]", given)
    low, high, mean = (_real(data.get(key)) for key in ("min", "max", "mean"))
    counts = {key: _whole(data.get(key)) for key in ("zeros", "negative", "nan", "inf", "numel")}
    shape = tuple(size for size in _list(data.get("shape")) if isinstance(size, int))
    return Stat(
        shape=shape, dtype=_dtype(data.get("dtype")), low=low, high=high, mean=mean, **counts
    )


def _excerpt(given: object) -> tuple[tuple[int, str], ...]:
    pairs = [_list(pair) for pair in _list(given)]
    return tuple(
        (int(pair[0]), pair[1])
        for pair in pairs
        if len(pair) == 2 and isinstance(pair[0], int) and isinstance(pair[1], str)
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dtype(value: object) -> str:
    return _text(value).removeprefix("torch.")


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _real(value: object) -> float:
    """A number; files hold the words "NaN" and "Infinity" for those that JSON lacks."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def _list(value: object) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()
