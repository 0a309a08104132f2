"""Found first on PYTHONPATH: lets holdfast in, then steps aside as if it had never been there."""

import os
import sys


def _step_aside() -> None:
    """Leave ``sys.path`` as the script expects it and run the user's own sitecustomize."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or os.curdir) != here]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401 # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        # Whoever imported us expects to find a module of this name.
        sys.modules.setdefault("sitecustomize", ours)


def _let_in() -> None:
    if not os.environ.get("HOLDFAST_RUN"):
        return
    try:
        from holdfast.boot import hook
    except ImportError:
        # A bare checkout that is not on the path of this process.
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
        sys.path.append(root)
        try:
            from holdfast.boot import hook
        finally:
            sys.path.remove(root)
    hook.wait_for_torch()


try:
    _let_in()
except Exception as error:  # the script must run, with us or without
    sys.stderr.write(f"holdfast: could not get in ({error}); the script runs unguarded\n")
_step_aside()
