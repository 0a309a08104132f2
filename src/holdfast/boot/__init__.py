"""Getting into an unmodified script: the boot folder, the import hook, the table of patches.

``site/`` is put in front of ``PYTHONPATH``; its ``sitecustomize`` runs before the script, hands
over to the user's own, and waits for ``import torch``. Then the patches of ``patches.py`` go in.
Spawned children and ranks inherit the variable and get in the same way.
"""

from __future__ import annotations

import os

# No pathlib: this is imported before the script, which may bring modules of any name.
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")

# How the parent talks to the processes below it.
RUN_VARIABLE = "HOLDFAST_RUN"
OWNER_VARIABLE = "HOLDFAST_OWNER"
SETTINGS_VARIABLE = "HOLDFAST_SETTINGS"
