"""Wait for ``import torch`` and then install the patches; no cost for scripts without torch.

Nothing but ``sys`` and ``atexit``, which are part of the interpreter, is imported here: a module
that is loaded before the script can no longer be replaced by one of the same name beside it.
"""

from __future__ import annotations

import atexit
import sys

from . import exits, is_launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


class _TorchFinder:
    """Finds torch as usual and wraps its loader."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """The spec of torch with its loader wrapped; None for everything else."""
        if fullname != "torch":
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    wrapped: Any = _Announcing(spec.loader, self)
                    spec.loader = wrapped
                return spec
        return None


class _Announcing:
    """Executes torch with its real loader, restores that loader, then starts holdfast."""

    def __init__(self, real: Any, finder: _TorchFinder) -> None:
        self._real = real
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: Any) -> ModuleType | None:
        """Leave it to the real loader."""
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute torch and remove every trace of the hook."""
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)  # pyright: ignore[reportArgumentType]
        from . import session

        session.begin()
        # From here on the session knows how the script ends.
        atexit.unregister(_crashed)


def wait_for_torch() -> None:
    """Install the import hook, and note what ends a script before ``import torch``.

    Not in a launcher: the pythons that it starts are the ones that train.
    """
    if is_launcher(sys.argv, sys.orig_argv):
        return
    sys.meta_path.insert(0, _TorchFinder())  # pyright: ignore[reportArgumentType]
    atexit.register(_crashed)
    exits.note_exits()


def _crashed() -> None:
    error = getattr(sys, "last_value", None)
    # After Ctrl-C nothing is imported: code that runs now would change how python exits.
    if not isinstance(error, Exception) and exits.leaving is None:
        return
    from contextlib import suppress

    with suppress(Exception):  # a folder that is gone: what the script printed must stay its own
        from . import session

        session.record_without_torch()
