"""Remedies: from a recorded cause to the code change that fixes it.

``remedy`` reads the operation, its inputs and the user's statement, and returns the fault in a few
words, the fix in a sentence and, where that is safe, as a diff.

    >>> from holdfast.records.nonfinite import Cause, TensorStats
    >>> cure = remedy(Cause(
    ...     how="replay", phase="forward", op="log", file="train.py", line=88,
    ...     code="loss = -torch.log(p).mean()",
    ...     inputs=(TensorStats(min=0.0, max=1.0, zeros=3, numel=640, dtype="float32"),),
    ... ))
    >>> cure.headline
    'log of 0'
    >>> print(cure.diff)
    @@ train.py:88 @@
    -loss = -torch.log(p).mean()
    +loss = -torch.log(p.clamp_min(1e-12)).mean()
"""

from .explanation import Explanation, remedy
from .prescription import Remedy

__all__ = ["Explanation", "Remedy", "remedy"]
