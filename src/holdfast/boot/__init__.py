"""Load holdfast into an unmodified script: boot folder, import hook, table of patches.

``site/`` is put in front of ``PYTHONPATH``; its ``sitecustomize`` runs before the script, calls
the user's own, and waits for ``import torch``. Then the patches of ``patches.py`` are installed.
Spawned children and ranks inherit the variable and load holdfast the same way.
"""

from __future__ import annotations

import os

# No pathlib: this is imported before the script, which may bring modules of any name.
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")

# Environment variables by which the parent configures its child processes.
RUN_VARIABLE = "HOLDFAST_RUN"
NO_RUN = "-"
"""In place of the run folder: guarded, and not recorded, which the parent has said."""
OWNER_VARIABLE = "HOLDFAST_OWNER"
SETTINGS_VARIABLE = "HOLDFAST_SETTINGS"
RESUME_VARIABLE = "HOLDFAST_RESUME"
"""The checkpoint that the script goes on from."""

# The parent asks a process for the stacks of its threads by this signal, a real-time one that no
# launcher uses, and reads them from the file in memory of this name.
STACKS_SIGNAL = 59
STACKS_FILE = "holdfast-stacks"
REPORTED = b"#holdfast "
"""Begins the line of the stacks in which a process says what it is doing."""

PYTHON = (3, 11)
"""The oldest Python that holdfast can enter."""
NEEDED = ("torch", "numpy", "psutil", "yaml")
"""Modules that the interpreter of a training must have for holdfast to guard it."""

LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "torch.distributed.launch"),
    "accelerate": ("accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
    "accelerate-launch": (),
    "deepspeed": ("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
    "uv": ("uv",),
    "poetry": ("poetry",),
}
"""Programs that start the python that trains, with the modules that ``python -m`` runs them by."""


def is_launcher(argv: list[str], words: list[str]) -> bool:
    """Whether a python only starts others: holdfast enters those, and not the launcher.

    Args:
        argv: its ``sys.argv`` before the script begins.
        words: its ``sys.orig_argv``.

    >>> is_launcher(["/bin/torchrun", "a.py"], ["python", "/bin/torchrun", "a.py"])
    True
    >>> is_launcher(["-m", "a.py"], ["python", "-m", "torch.distributed.run", "a.py"])
    True
    >>> is_launcher(["a.py", "-m", "uv"], ["python", "a.py", "-m", "uv"])
    False
    """
    if not argv or argv[0] != "-m":
        return bool(argv) and os.path.basename(argv[0]) in LAUNCHERS
    # The module stands before what argv has after its "-m"; -mNAME is one word.
    module = words[-len(argv)]
    module = module.partition("m")[2] if module.startswith("-") else module
    return any(module in modules for modules in LAUNCHERS.values())


def unguarded(why: str, advice: str) -> str:
    """The one line that says that holdfast is not in a training, by the parent or the child."""
    return f"holdfast: unguarded: {why}; the command runs without holdfast; {advice}"
