"""Wait for ``import torch`` and then install the patches; no cost for scripts without torch."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Finds torch like everybody else and asks to be told when it has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Announcing(spec.loader, self)
                return spec
        return None


class _Announcing(importlib.abc.Loader):
    """Executes torch with its real loader, restores that loader, then lets holdfast in."""

    def __init__(self, real: Any, finder: _TorchFinder) -> None:
        self._real = real
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on nobody who looks at torch shall find us.
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        from . import session

        session.begin()


def wait_for_torch() -> None:
    """Install the import hook."""
    sys.meta_path.insert(0, _TorchFinder())
