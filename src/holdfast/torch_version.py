"""Is the installed torch new enough? Checked at start, because the metadata has no floor.

A floor in the metadata would let pip replace a torch that works on its machine by one that does
not. Nothing here imports torch.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys

from .errors import HoldfastError

NEEDED = (2, 11)


def check_torch() -> None:
    """Raise if torch is older than holdfast can use.

    A torch without metadata (a folder on the path) is judged once it has been imported.

    Raises:
        HoldfastError: names the version found and the one needed.
    """
    found = installed_version()
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < NEEDED:
        needed = ".".join(map(str, NEEDED))
        raise HoldfastError(
            f"torch {found} is installed, holdfast needs {needed} or newer; "
            f"pip install 'torch>={needed}'"
        )


def require_torch() -> None:
    """Raise if there is no torch that holdfast can use, for a command that is nothing without it.

    Raises:
        HoldfastError: says that it is missing or too old.
    """
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        raise HoldfastError(
            "this needs torch, which is not installed here; pip install torch "
            "(pytorch.org says which build is for this machine)"
        )
    check_torch()


def installed_version() -> str:
    """The version of torch in this environment, empty if nobody can say."""
    imported = getattr(sys.modules.get("torch"), "__version__", "")
    if imported:
        return str(imported)
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
