"""Is the installed torch new enough? Checked at start, because the metadata has no floor.

A floor in the metadata would let pip replace a torch that works on its machine by one that does
not. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
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
    return str(imported) or _installed()


def _installed() -> str:
    """As the name of the folder with its metadata says, which is the first that python would read.

    ``importlib.metadata`` imports what reads letters: a sixth of the time until a script starts.
    """
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or os.curdir):
                found = re.fullmatch(r"torch-([^-]+)\.dist-info", name, re.IGNORECASE)
                if found is not None:
                    return found[1]
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
