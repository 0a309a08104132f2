"""``python -m holdfast``: the command line, also where no script is on the path."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
