"""Everything holdfast raises on purpose.

A sick training run is a Finding, never an exception: these say that the command, the
settings or a file given to holdfast is wrong. Each message has three parts: what happened
with the value, where, and the next move. The command line prints it as one line and exits
with ``exit_code``.
"""

from __future__ import annotations


class HoldfastError(Exception):
    """Root of the tree; ``str(error)`` is the one line a user reads."""

    exit_code = 2


class UsageError(HoldfastError):
    """A command line that cannot be carried out."""


class SettingsError(HoldfastError):
    """A setting that is unknown, of the wrong type or impossible."""


class RunFolderError(HoldfastError):
    """A run folder that cannot be made, found, read or trusted."""


class MissingExtraError(HoldfastError):
    """An optional dependency is not installed; the message names the extra."""
