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


class MissingPackageError(HoldfastError, ImportError):
    """A package that is not installed; the message says how to install it."""


class SettingsError(HoldfastError):
    """A setting that is unknown, of the wrong type or impossible."""


class RunFolderError(HoldfastError):
    """A run folder that cannot be made, found, read or trusted."""


class UnwritableFolderError(RunFolderError):
    """A place that takes no run folder: no permission, a disk that is read-only or full.

    The training is not to blame, and goes on without a record.
    """


class CheckpointError(HoldfastError):
    """A state that cannot be saved, or a checkpoint that cannot be found, read or used."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that is not what was written: cut short, changed, or without its record."""

    exit_code = 1
    why = ""  # the damage alone, for a table


class Stopped(SystemExit):
    """A budget of the policy is spent: the run ends, with its last good state saved.

    A ``SystemExit``, so that a script that catches every ``Exception`` ends too; the message is
    what python prints.
    """

    exit_code = 3

    def __init__(self, message: str) -> None:
        super().__init__(self.exit_code)
        self.message = message

    def __str__(self) -> str:
        return self.message
