"""Why a script cannot be resumed: a variable and its line, wherever one is to blame."""

from __future__ import annotations


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
