"""holdfast keeps PyTorch training runs alive, fast and explained.

The public names are resolved when they are used, so that reading a run never imports torch:

    import holdfast

    watch = holdfast.watch(model, optimizer)
    for x, y in watch(loader):
        loss = loss_function(model(x), y)
        watch.backward(loss)
        watch.step()
    watch.close()  # says how it went and where the report is
"""

from __future__ import annotations

# Nothing is imported: under ``holdfast run`` this comes before the script and its own modules.
TYPE_CHECKING = False

__version__ = "0.1.0"

_HOME = {
    "Detector": "detectors",
    "Event": "types",
    "Finding": "types",
    "HoldfastError": "errors",
    "Run": "run",
    "Section": "config",
    "Settings": "config",
    "Severity": "types",
    "Step": "types",
    "Stopped": "errors",
    "Watch": "watching",
    "Window": "detectors",
    "bounded": "config",
    "run_path": "run",
    "apply_scaler_policy": "actions.scaler_policy",
    "load_checkpoint": "checkpoint.plain_state",
    "watch": "watching",
}
_NEEDS_TORCH = {"Watch", "apply_scaler_policy", "load_checkpoint", "watch"}

if TYPE_CHECKING:
    from typing import Any

    from .actions.scaler_policy import apply_scaler_policy
    from .checkpoint.plain_state import load_checkpoint
    from .config import Section, Settings, bounded
    from .detectors import Detector, Window
    from .errors import HoldfastError, Stopped
    from .run import Run, run_path
    from .types import (
        Event,
        Finding,
        Severity,
        Step,
    )
    from .watching.watch import Watch, watch

__all__ = [
    "Detector",
    "Event",
    "Finding",
    "HoldfastError",
    "Run",
    "Section",
    "Settings",
    "Severity",
    "Step",
    "Stopped",
    "Watch",
    "Window",
    "apply_scaler_policy",
    "bounded",
    "load_checkpoint",
    "run_path",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        import importlib

        if name in _NEEDS_TORCH:
            from .torch_version import check_torch

            check_torch()
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext holdfast``: imports it for the notebook and says how a loop is guarded."""
    import sys

    shell.push({"holdfast": sys.modules[__name__]})
    print(
        "holdfast: guard a loop with `watch = holdfast.watch(model, optimizer)`, "
        "`watch.backward(loss)` and `watch.step()`; `watch` in a cell shows how it stands. A whole "
        "notebook is guarded as it is by `holdfast run jupyter execute NOTEBOOK.ipynb`"
    )


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
