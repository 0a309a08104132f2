"""What a run on text takes, from its settings and one sample that is tried on this machine."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.training import Forecast, Place, kept_bytes, step_seconds

from .data.tokenizers import ByteTokenizer
from .model.model import LiquidNet, Sizes
from .run_settings import LiquidSettings

_STATE_BYTES = 16  # of a parameter: itself, its gradient and two numbers of the optimizer
_BPE = 8192  # tokens, where none are asked for
_TRIAL = 4  # samples of the step that is timed


def forecast(settings: LiquidSettings, place: Place) -> Forecast:
    """Memory of a training step, and on a CPU its time; nothing of images and robots.

    Those are small, and their sizes are not known before the data are read.
    """
    if settings.task != "llm":
        return Forecast()
    tokens = settings.data.vocab_size or (
        ByteTokenizer().size if settings.data.tokenizer == "byte" else _BPE
    )
    batch = -(-settings.train.data.batch // place.world)
    with torch.random.fork_rng(devices=[]):
        sizes = Sizes("llm", tokens, tokens)
        net = LiquidNet(settings.model, sizes, settings.plasticity).train()

        def forward(samples: int) -> list[Tensor]:
            x_BT = torch.zeros(samples, settings.data.sequence_length, dtype=torch.long)
            return [net(x_BT, target_BT=x_BT).y_BTV]

        each = kept_bytes(lambda: forward(1), net.parameters())
        seconds = None
        if place.device.type == "cpu":
            tried = min(_TRIAL, batch)
            seconds = step_seconds(lambda: forward(tried), net.parameters()) / tried
    return Forecast(
        memory={
            "weights and optimizer": float(
                _STATE_BYTES * sum(one.numel() for one in net.parameters())
            ),
            f"activations of {batch} samples": float(batch * each),
        },
        fits="set a smaller train.data.batch and a larger train.accumulate",
        step_seconds=None if seconds is None else seconds * batch * settings.train.accumulate,
        steps=settings.train.steps,
        quicker="the default and --preset tiny take minutes on a CPU; the phases are for a GPU",
    )
