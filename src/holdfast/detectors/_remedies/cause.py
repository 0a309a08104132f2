"""Parse a recorded cause; the file may be damaged, old, or of another version.

>>> cause = Cause.read({"op": "SqrtBackward0", "phase": "backward", "line": "?"})
>>> cause.name, cause.line, cause.code
('sqrt', 0, '')
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
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

# Names in the record that are not those of the function in the source.
_SYNONYMS = {
    "log1_p": "log1p", "nll_loss2_d": "nll_loss", "nll_loss2d": "nll_loss", "var_mean": "var",
    "safe_softmax": "softmax", "std_mean": "std", "linalg_vector_norm": "norm", "rsub": "sub",
}  # fmt: skip
_FIELDS = {
    "how": str, "phase": str, "op": str, "file": str, "line": int, "code": str, "start": int,
    "module": str, "dtype": str, "layer": str, "variable": str, "origin": str,
}  # fmt: skip
_STAT_FIELDS = {"dtype": str, "zeros": int, "negative": int, "nan": int, "inf": int, "numel": int}


@dataclass(frozen=True, kw_only=True, slots=True)
class Stat:
    """One tensor in numbers; ``low`` and ``high`` are over finite values, NaN without any."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    low: float = math.nan
    high: float = math.nan
    zeros: int = 0
    negative: int = 0
    nan: int = 0
    inf: int = 0
    numel: int = 0

    @classmethod
    def read(cls, given: object) -> Stat | None:
        """Accept fields of the right type; None when there is no record."""
        if not isinstance(given, Mapping):
            return None
        data = cast("Mapping[str, Any]", given)
        return cls(
            shape=tuple(size for size in _items(data.get("shape")) if isinstance(size, int)),
            low=_real(data.get("min")),
            high=_real(data.get("max")),
            **_fitting(data, _STAT_FIELDS),
        )

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
        return self.dtype.startswith(("int", "uint", "bool"))


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The training side's record of where a NaN first appeared."""

    how: str = ""
    phase: str = ""
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
    samples: tuple[object, ...] = ()
    """Dataset indices of all that were found in the batch."""
    columns: tuple[int, ...] = ()
    """The columns of a table that hold all of its bad values."""
    layer: str = ""
    variable: str = ""
    """The variable of the loop that held it before the model saw it, or carries it on."""
    origin: str = ""
    """Where it came into such a variable, as far as that is known."""

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Cause:
        """Accept fields of the right type and ignore the rest."""
        known = {"start": data.get("line"), **data}
        fields = _fitting(known, _FIELDS)
        pairs = [tuple(_items(pair)) for pair in _items(data.get("excerpt"))]
        sample = data.get("sample")
        return cls(
            name=_name(fields.get("op", "")),
            excerpt=tuple(pair for pair in pairs if tuple(map(type, pair)) == (int, str)),
            inputs=tuple(Stat.read(given) or Stat() for given in _items(data.get("inputs"))),
            output=Stat.read(data.get("output")),
            sample=sample if isinstance(sample, int | str) else None,
            samples=_samples(data, sample),
            columns=tuple(c for c in _items(data.get("columns")) if isinstance(c, int)),
            **fields,
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


def _name(op: str) -> str:
    name = op.rpartition("::")[2].partition(".")[0]
    node = re.fullmatch(r"(\w+?)Backward\d*", name)
    if node:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node[1]).lower()
    name = name.strip("_").removesuffix("_forward").removesuffix("_legit")
    name = re.sub(r"^(native|cudnn|miopen|mkldnn)_", "", name)
    return _SYNONYMS.get(name, name)


def _fitting(data: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    """The fields that have the type they should have."""
    return {name: data[name] for name, kind in kinds.items() if isinstance(data.get(name), kind)}


def _items(value: object) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else []


def _samples(data: Mapping[str, Any], sample: object) -> tuple[object, ...]:
    """Runs of version 0.1 know at most one."""
    pairs = [_items(pair) for pair in _items(data.get("samples"))]
    named = [pair[1] for pair in pairs if len(pair) == 2] or [sample]
    return tuple(index for index in named if isinstance(index, int | str))


def _real(value: object) -> float:
    """A number; files hold the words "NaN" and "Infinity" for those that JSON lacks."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan
