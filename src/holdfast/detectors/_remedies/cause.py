"""What the rules compute from a recorded cause.

>>> cause = Cause(how="replay", phase="backward", file="", line=0, op="SqrtBackward0")
>>> name_of(cause), statement_of(cause), limit_of(cause)
('sqrt', None, 3.4028234e+38)
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from ...records.nonfinite import Cause, TensorStats
from ...source.edits import Statement

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


def name_of(cause: Cause) -> str:
    """The function meant by its operation: "softmax" for "_softmax", "sqrt" for "SqrtBackward0"."""
    name = cause.op.rpartition("::")[2].partition(".")[0]
    node = re.fullmatch(r"(\w+?)Backward\d*", name)
    if node:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node[1]).lower()
    name = name.strip("_").removesuffix("_forward").removesuffix("_legit")
    name = re.sub(r"^(native|cudnn|miopen|mkldnn)_", "", name)
    return _SYNONYMS.get(name, name)


def statement_of(cause: Cause) -> Statement | None:
    """The user's statement, parsed; None when it is not known or is no whole statement."""
    around = "\n".join(text for _, text in cause.excerpt)
    return _parsed(cause.code, around) if cause.code.strip() else None


@lru_cache(maxsize=16)
def _parsed(code: str, around: str) -> Statement | None:
    return Statement.parse(code, around)


def input_of(cause: Cause, index: int) -> TensorStats | None:
    """One input, None when it was not recorded or is no tensor."""
    return cause.inputs[index] if index < len(cause.inputs) else None


def incoming(cause: Cause) -> TensorStats:
    """The incoming gradient; it is last, behind the saved tensors of the forward pass."""
    return cause.inputs[-1] if cause.backward and cause.inputs else TensorStats()


def limit_of(cause: Cause) -> float:
    """The largest number of the format it was computed in."""
    return LIMITS.get(cause.dtype, LIMITS["float32"])


def is_half(cause: Cause) -> bool:
    """Whether it was computed in fp16, where 1e-8 is zero and 65,505 infinity."""
    return cause.dtype == "float16"


def sample_of(cause: Cause) -> int | str | None:
    """Dataset index of the one sample to blame, where it is a number or a name."""
    return cause.sample if isinstance(cause.sample, int | str) else None


def samples_of(cause: Cause) -> tuple[int | str, ...]:
    """Dataset indices of all samples to blame; runs of version 0.1 know at most one."""
    named = [index for _, index in cause.samples] or [cause.sample]
    return tuple(index for index in named if isinstance(index, int | str))


def largest_of(stats: TensorStats) -> float:
    """The largest finite magnitude; 0 when there is none."""
    return max((abs(v) for v in (stats.low, stats.high) if not math.isnan(v)), default=0.0)


def is_integral(stats: TensorStats) -> bool:
    """Whether it holds whole numbers or truth values."""
    return stats.dtype.startswith(("int", "uint", "bool"))
