"""``holdfast liquid``: training with the specification's flags, and what a trained network does.

Nothing heavy is imported before a verb is carried out: the help of holdfast lists this command.
"""

from __future__ import annotations

import argparse

from ...answers import verbs_of
from .generating import add_generate_verb
from .runs import add_run_verbs
from .speeds import add_bench_verb
from .training import add_train_verbs

__all__ = ["LiquidCommand"]


class LiquidCommand:
    """Train networks of spiking, liquid and Mamba layers, write text with them, look at them.

    RUN is a folder that `holdfast liquid train` or `holdfast train liquid` made; its best weights
    are used. The exit code is 0 when all is well, 1 when an exported file is not right, 2 when
    something that was given is wrong.

      holdfast liquid train --task llm --num-layers 2 --hidden-dim 128 --use-mamba
      holdfast liquid config --num-layers 2 --use-mamba    settings that flags stand for
      holdfast liquid generate RUN --prompt "def " --temperature 0.8 --top-k 40
      holdfast liquid eval RUN                             loss and baselines on held-out data
      holdfast liquid show RUN                             sizes, time constants, firing rates
      holdfast liquid continual RUN RUN2                   what was kept of earlier tasks
      holdfast liquid export RUN --out model.pt2           or .onnx; verified
      holdfast liquid bench --preset phase1                tokens per second here
    """

    name = "liquid"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the verbs and their options."""
        verb = verbs_of(parser)
        add_train_verbs(verb)
        add_generate_verb(verb)
        add_run_verbs(verb)
        add_bench_verb(verb)

    def run(self, args: argparse.Namespace) -> int:
        """Carry out one verb."""
        return args.act(args)
