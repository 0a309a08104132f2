"""``holdfast xec``: what can be done with events and trained models, beside training them.

Nothing heavy is imported before a verb is carried out: the help of holdfast lists this command.
"""

from __future__ import annotations

import argparse

from ...answers import verbs_of
from .comparisons import add_comparison_verbs
from .events import add_event_verbs
from .models import add_model_verbs

__all__ = ["XecCommand"]


class XecCommand:
    """Make and check events, use trained calorimeter models, and compare them.

    RUN is a folder that `holdfast train xec.reg`, `xec.mae` or `xec.inp` made; its best weights
    are used, averaged where they were. FILES is a ROOT file, a folder of them or a pattern. The
    exit code is 0 when all is well, 1 when data or an exported file is not right, 2 when
    something that was given is wrong.

      holdfast xec synth sets --events 4096 --val 512    events without a detector
      holdfast xec check-data sets/train.root            NaN, sentinels, ranges, dead sensors
      holdfast xec info RUN                              kind, step, sizes, what it can be put into
      holdfast xec predict RUN sets/val.root --out predictions.root
      holdfast xec predict RUN FILES --inpainter RUN2 --out study.root   with dead sensors filled
      holdfast xec export RUN --raw-input                ONNX or .pt2, verified
      holdfast xec plot RUN                              figures again, from the tables
      holdfast xec baseline sets/val.root --fill         what a model has to beat
      holdfast xec compare-pretrain RUN_OF_MAE --preset small --labels 512 2048 --seeds 1 2
      holdfast xec bench reg --preset small --batch 64
      holdfast xec geometry --check --display event.png
      holdfast xec config inp --preset small --full
    """

    name = "xec"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the verbs and their options."""
        verb = verbs_of(parser)
        add_event_verbs(verb)
        add_model_verbs(verb)
        add_comparison_verbs(verb)

    def run(self, args: argparse.Namespace) -> int:
        """Carry out one verb."""
        return args.act(args)
