"""``holdfast completion``."""

from __future__ import annotations

import argparse
import os

from ..detectors import ALL, load_plugins
from ..errors import UsageError
from . import _output
from ._commands import all_commands
from ._completion import bash_script, fish_script, node_of, zsh_script

_SHELLS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}


class CompletionCommand:
    """Print a script that completes commands, options, runs and codes in your shell.

    Commands of plugins are included; make the script again when one is added.

      eval "$(holdfast completion bash)"                 in ~/.bashrc
      eval "$(holdfast completion zsh)"                  in ~/.zshrc, after compinit
      holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """

    name = "completion"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument(
            "shell",
            metavar="SHELL",
            nargs="?",
            choices=tuple(_SHELLS),
            help="bash, zsh or fish (default: the one of $SHELL)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Describe every command to the shell."""
        shell = args.shell or os.path.basename(os.environ.get("SHELL", ""))
        if shell not in _SHELLS:
            reported = f"$SHELL is {shell!r}" if shell else "$SHELL is not set"
            raise UsageError(f"{reported}; name one: holdfast completion bash, zsh or fish")
        codes = sorted(d.code for d in (*ALL, *load_plugins(os.environ, ALL).detectors))
        _output.write(_SHELLS[shell]([node_of(command()) for command in all_commands()], codes))
        return 0
