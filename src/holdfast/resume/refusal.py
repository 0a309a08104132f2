"""Why a script cannot be resumed: a variable and its line, wherever one is to blame.

In a first run that is an error which nobody but us sees; a resumed process ends with one line.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

from ..errors import HoldfastError
from ..harmless import visible_line
from ..source.paths import from_here


class RefusedError(Exception):
    """A run of this script cannot be resumed bit for bit.

    Args:
        reason: what stands in the way, in one sentence without file and line.
        file: of the user's code; empty where no line is to blame.
        line: in it.
    """

    def __init__(self, reason: str, file: str = "", line: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.file, self.line = reason, file, line

    def alone(self) -> RefusedError:
        """The same without a traceback, which would keep the variables of its frames alive."""
        return RefusedError(self.reason, self.file, self.line)

    def at(self, file: str, line: int) -> RefusedError:
        """The same with a place, where it has none yet."""
        return self if self.file else RefusedError(self.reason, file, line)


@contextlib.contextmanager
def or_refuse() -> Iterator[None]:
    """What goes wrong while a script is resumed ends it."""
    try:
        yield
    except RefusedError as refusal:
        refuse_at(refusal.reason, refusal.file, refusal.line)
    except HoldfastError as error:
        refuse(str(error))
    except Exception as error:
        refuse(f"{type(error).__name__}: {error}")


def refuse_at(reason: str, file: str, line: int) -> NoReturn:
    """End the process with one line that names a place in the user's code."""
    refuse(f"{reason}, at {from_here(file)}:{line}" if file else reason)


def refuse(reason: str) -> NoReturn:
    """End the process with one line, before anything is trained."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    text = " ".join(reason.split())
    say(f"cannot resume: {text}; start anew without --resume")
    os._exit(2)


def say(text: str) -> None:
    """Tell the user something, beside what the script writes."""
    with contextlib.suppress(OSError):
        os.write(2, f"holdfast: {visible_line(text)}\n".encode())
