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
OWNER_VARIABLE = "HOLDFAST_OWNER"
SETTINGS_VARIABLE = "HOLDFAST_SETTINGS"
