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


class _TooOld:
    """Says at ``import torch`` that this python is too old; until then it is nobody's business."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing, and step aside once torch was asked for."""
        if name == "torch":
            sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
            # Nothing of holdfast can be imported here, not even its words.
            sys.stderr.write(
                f"holdfast: unguarded: {sys.executable} is Python {sys.version.split()[0]}, "
                "holdfast needs 3.11 or newer; the command runs without holdfast; to guard it, "
                "use a python 3.11 that has holdfast and torch\n"
            )


def _let_in() -> None:
    if not os.environ.get("HOLDFAST_RUN"):
        return
    if sys.version_info < (3, 11):  # noqa: UP036 # the user's python, not the one we are built for
        sys.meta_path.insert(0, _TooOld())  # pyright: ignore[reportArgumentType]
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
