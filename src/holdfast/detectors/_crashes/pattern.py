"""A verdict that needs no value of a crash: a pattern of what was said, and what to do then."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .facts import Crash, CrashCause


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A cause that the words of an exception, and where they were said, are enough for."""

    says: str
    """What the message holds, as a regular expression; empty for any message."""
    headline: str
    advice: str
    type: str = ""
    """Class of the exception; empty for any."""
    phase: str = ""
    """What the script was doing, see ``Crash.phase``; empty for anything."""
    library: str = ""
    """A part of the file that it was raised in; empty for any."""

    def __call__(self, crash: Crash) -> CrashCause | None:
        """The cause, where all of it fits."""
        fits = (
            self.type in ("", crash.type)
            and self.phase in ("", crash.phase)
            and self.library in crash.library
            and re.search(self.says, crash.message) is not None
        )
        return CrashCause(headline=self.headline, advice=self.advice) if fits else None
