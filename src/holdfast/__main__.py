"""``python -m holdfast``."""

import os
import sys

# -m puts the working directory in front of the standard library; a random.py in it is meant for
# the script, not for us.
if sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from holdfast.cli import main

if __name__ == "__main__":
    sys.exit(main())
