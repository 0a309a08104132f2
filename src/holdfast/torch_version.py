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
_READ = (2, 11), (2, 13)
"""The oldest and the newest torch of which those functions were read that we go a short way around,
and are compared with them by tests."""


def check_torch() -> None:
    """Raise if torch is older than holdfast can use.

    A torch without metadata (a folder on the path) is judged once it has been imported.

    Raises:
        HoldfastError: names the version found and the one needed.
    """
    found = installed_version()
    numbers = _numbers(found)
    if numbers is not None and numbers < NEEDED:
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


def was_read() -> bool:
    """Whether what torch does between a function of its own and the kernels is known here."""
    numbers = _numbers(installed_version())
    return numbers is not None and _READ[0] <= numbers <= _READ[1]


def _numbers(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def installed_version() -> str:
    """The version of torch in this environment, empty if nobody can say."""
    imported = getattr(sys.modules.get("torch"), "__version__", "")
    if imported:
        return str(imported)
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
