"""Fixes of a crash that are one call in the failing line, as a diff."""

from __future__ import annotations

import re

from ...records.crash import RaisedException
from ...source.diffs import replaced

# What the message says, what stands in the line, and what has to stand there.
_CALLS = (
    (r"Can't call numpy\(\) on Tensor that requires grad", ".numpy()", ".detach().cpu().numpy()"),
    (r"can't convert .+ device type tensor to numpy", ".numpy()", ".cpu().numpy()"),
    (r"grad can be implicitly created only for scalar", ".backward()", ".mean().backward()"),
)


def line_fix(raised: RaisedException) -> str:
    """The failing statement with the call that it lacks; empty where more has to change.

    >>> said = "grad can be implicitly created only for scalar outputs"
    >>> print(line_fix(RaisedException(message=said, file="train.py", line=9,
    ...                                code="loss.backward()")))
    @@ train.py:9 @@
    -loss.backward()
    +loss.mean().backward()
    """
    code = raised.code or ""
    for said, old, new in _CALLS:
        # Of two calls only one may be to blame.
        if re.search(said, raised.message) and code.count(old) == 1:
            return replaced(raised.to_dict(), code.replace(old, new))
    return ""
