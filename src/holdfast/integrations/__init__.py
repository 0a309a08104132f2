"""Experiment trackers as readers of the run folder: MLflow, TensorBoard, JSON lines.

Nothing here runs in the training process. ``tracker`` reads what a run recorded and hands it to a
sink; each sink is one file and knows one tracker. ``holdfast track`` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable

from ..config import TrackSettings
from ..run import Run
from .base import Sink


def make_sink(name: str, run: Run, settings: TrackSettings, say: Callable[[str], None]) -> Sink:
    """The sink of this name for a run; its package must be there."""
    if name == "mlflow":
        from .mlflow import MlflowSink

        return MlflowSink(run, settings, say)
    if name == "tensorboard":
        from .tensorboard import TensorboardSink

        return TensorboardSink(run)
    from .json_lines import JsonLinesSink

    return JsonLinesSink(run)
