"""Small training scripts that each go wrong in one known way, one for each detector.

Every module is an ordinary PyTorch script, runnable on its own, that trains on synthetic data
and falls into one fault category; it has the name of its detector. Each has ``CODE`` (the
category), ``FIRST_STEP`` (the 0-based optimizer step at which the fault first appears) and
``main()``; ``LINE_OF`` is text of the faulty line, where there is one, and ``OPTIONS`` what
``holdfast run`` is given. Nothing is imported here.
"""

from pathlib import Path

_HERE = Path(__file__).parent

ON_GPU = ("fragmentation",)
"""Those that show nothing on a CPU: they are run by name only."""
# Modules that read and run them.
_READERS = ("catalogue", "running")
ALL = tuple(sorted({path.stem for path in _HERE.glob("[!_]*.py")} - {*ON_GPU, *_READERS}))
