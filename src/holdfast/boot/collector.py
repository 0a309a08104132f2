"""Python's collector while holdfast is loaded into a script."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def at_rest() -> Iterator[None]:
    """Nothing is collected in between, and what is loaded is old at once: modules stay.

    The collector would look through all of torch because of our modules, and find nothing; were
    they young afterwards, in a line of the script. It is stopped by its thresholds, so that whether
    it is enabled stays the script's.
    """
    before = gc.get_threshold()
    resting = (0, *before[1:])
    gc.set_threshold(*resting)
    try:
        yield
    finally:
        if gc.get_threshold() == resting:  # or a module has set its own
            gc.set_threshold(*before)
            # Python's way to make all that lives old; what a script has frozen must stay so.
            if before[0] and gc.isenabled() and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
