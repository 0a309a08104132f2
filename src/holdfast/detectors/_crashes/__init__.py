"""Causes of crashes that people meet daily: small rules over what was recorded, by theme.

>>> explain(RaisedException(type="ZeroDivisionError")).headline
'the divisor is 0'
"""

from __future__ import annotations

from ...records.crash import RaisedException
from .facts import Crash, CrashCause, clip
from .line_fixes import line_fix
from .table import RULES


def explain(recorded: RaisedException) -> CrashCause:
    """The cause and the fix of a recorded exception; a general one where no rule knows it."""
    crash = Crash(data=recorded)
    if (found := _known(crash)) is not None:
        return found
    values = [f"{v.name} {v.size if v.shape is not None else v.text}" for v in crash.operands[:4]]
    reported = f" ({', '.join(values)})" if values else ""
    where = f" at {crash.place.where}" if crash.place.line else ""
    return CrashCause(
        headline="",
        advice=f"look at the values of the line{where}{reported}; the report has the variables of "
        "the "
        "function and the whole traceback",
    )


def root(recorded: RaisedException) -> RaisedException:
    """The error to explain: the recorded one, or the one that it was raised for.

    ``raise … from error`` names the cause itself; an error that merely happened while another was
    handled is the one to look at, unless nothing is known of it and something of the other.
    """
    if recorded.behind is None:
        return recorded
    inner = root(recorded.behind)
    if _known(Crash(data=inner)) is None:
        return recorded
    outer = not recorded.raised_from and _known(Crash(data=recorded)) is not None
    return recorded if outer else inner


def _known(crash: Crash) -> CrashCause | None:
    return next((found for rule in RULES if (found := rule(crash)) is not None), None)


__all__ = ["RULES", "Crash", "CrashCause", "clip", "explain", "line_fix", "root"]
