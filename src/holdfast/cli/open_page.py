"""``holdfast open``."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from collections.abc import Mapping

from ..config import RunSettings
from ..errors import UsageError
from ..report import write_page
from ..run import find_run, life_of
from . import _output
from ._parser import RUN_OR_NEWEST
from ._warning import warn


class OpenCommand:
    """Open the report of a run in the browser.

    The path of the page is printed, too. Where there is no display, as on a cluster or over ssh,
    nothing else is done. The page is written anew while the run is going.

      holdfast open                       the newest run under runs/
      holdfast open 2026-11-15-12         the run whose name begins so
    """

    name = "open"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("run", metavar="RUN", nargs="?", help=RUN_OR_NEWEST)

    def run(self, args: argparse.Namespace) -> int:
        """Make the page where there is none, and show it."""
        run = find_run(args.run, RunSettings().root)
        if not run.page_path.is_file() or life_of(run).state != "ended":
            try:
                write_page(run)
            except OSError as error:
                raise UsageError(
                    f"cannot write {run.page_path}: {error.strerror}; write it elsewhere: "
                    f"holdfast report {run.path} --format html --output FILE"
                ) from error
        _output.write(f"{run.page_path}\n")
        if not has_display(os.environ):
            warn("no display here; open this file in a browser")
        elif not webbrowser.open(run.page_path.resolve().as_uri()):
            warn("no browser could be started; open this file in one")
        return 0


def has_display(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether a browser that is started here can be seen.

    >>> has_display({}, "linux"), has_display({"DISPLAY": ":0"}, "linux"), has_display({}, "darwin")
    (False, True, True)
    """
    if environment.get("BROWSER"):
        return True
    if platform in ("darwin", "win32", "cygwin"):
        return not environment.get("SSH_CONNECTION")
    # Under WSL the browser is that of Windows.
    return any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"))
