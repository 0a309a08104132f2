"""The exception that a script caught and gave up on: ``sys.exit(1)`` inside of an ``except``.

Python forgets it with the exit. What was being handled is noted when ``sys.exit`` is called.
"""

from __future__ import annotations

import dis
from types import FrameType

from ...source.ownership import kind_of
from .traceback_frames import calls, chain

# What argparse, click and others exit with after wrong arguments, having said so themselves.
_USAGE = 2


def given_up(
    handled: BaseException | None, code: object, caller: FrameType | None
) -> BaseException | None:
    """The exception behind an exit; None where there is none, or none that is worth a word.

    Args:
        handled: what was being handled when the exit was asked for.
        code: of the exit.
        caller: the call that asked for it.
    """
    if handled is None or code is None or (isinstance(code, int) and code == 0):
        return None
    found = next((each for each in chain(handled) if not isinstance(each, SystemExit)), None)
    if found is None:
        return None
    own = caller is not None and kind_of(caller.f_code.co_filename) == "user"
    if own:
        return found
    # A library that gives up on an error of the user's code (hydra does) has told of it.
    users = any(call.is_users for call in calls(found.__traceback__))
    return found if users and code != _USAGE else None


def behind(leaving: SystemExit) -> BaseException | None:
    """The same for an exit that is on its way."""
    asked = calls(leaving.__traceback__)
    return given_up(leaving.__context__, leaving.code, asked[-1].frame if asked else None)


def returned(outermost: FrameType) -> bool:
    """Whether a call that is over ended by ``return``: what was raised in it was caught."""
    code = outermost.f_code.co_code
    last = outermost.f_lasti
    return 0 <= last < len(code) and dis.opname[code[last]].startswith("RETURN_")
