"""What a run takes, from its settings alone."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from holdfast.training import Forecast, Place, free_memory, kept_bytes, step_seconds

from .assembly import make_model
from .geometry.layout import SENSORS
from .model.blocks import ConvNeXtBlock
from .run_settings import AnyRun, InpainterRun

_STATE_BYTES = 16  # of a parameter: itself, its gradient and two numbers of the optimizer
_TRIAL = 4  # events of a trial step on a CPU
_HALF_SHARE = 0.7  # of fp32, measured on an H200 with batches of 1024 and 2048: 0.65 to 0.75
_QUICK = 0.25  # seconds of an event, from which on one of them has told enough


def forecast_of(settings: AnyRun, place: Place) -> Forecast:
    """Memory of a training step; on a CPU also its time, by a trial with few events.

    Args:
        settings: of the run.
        place: whose memory and speed count.
    """
    with torch.device("meta"):
        # Index tables come from the host all the same.
        model = make_model(settings).to("meta")
    for block in model.modules():
        if isinstance(block, ConvNeXtBlock):
            block.fused = by_kernels(settings, place)
    batch = settings.train.data.batch // place.world
    bytes_each = _saved_bytes(model, settings) * (_HALF_SHARE if _half(settings, place) else 1.0)
    memory = {
        "weights and optimizer": float(
            _STATE_BYTES * sum(one.numel() for one in model.parameters())
        ),
        f"activations of {batch} events": float(batch * bytes_each),
    }
    free = free_memory(place.device)
    room, enough = free - memory["weights and optimizer"], sum(memory.values()) <= free
    fits = ""
    if not enough and room > bytes_each:
        parts = -(-batch // max(1, int(room // bytes_each)))
        fits = (
            f"set train.data.batch={max(1, settings.train.data.batch // parts)} "
            f"train.accumulate={settings.train.accumulate * parts}"
        )
    events = settings.data.synth.events if not settings.data.train_path else 0
    steps = None
    if events and settings.train.epochs:
        per_epoch = events // (settings.train.data.batch * settings.train.accumulate)
        steps = max(1, per_epoch) * settings.train.epochs
    seconds = None
    if enough and place.device.type == "cpu":
        seconds = _trial(settings) * batch * settings.train.accumulate
    return Forecast(
        memory=memory,
        fits=fits,
        step_seconds=seconds,
        steps=steps,
        quicker="--preset small takes minutes on a CPU; the default size is for a GPU",
    )


def _saved_bytes(model: nn.Module, settings: AnyRun) -> float:
    """What autograd keeps of one event, counted on tensors without memory."""
    # Two events: some layers treat a batch of one in a way of their own.
    with torch.device("meta"):
        arguments = _arguments(2, settings)
    return kept_bytes(lambda: model.train()(*arguments), model.parameters()) / 2


def _trial(settings: AnyRun) -> float:
    """Seconds of an event in a training step on this CPU."""
    with torch.random.fork_rng(devices=[]):
        model = make_model(settings).train()
        one = _seconds(model, _arguments(1, settings))
        return one if one >= _QUICK else _seconds(model, _arguments(_TRIAL, settings)) / _TRIAL


def _seconds(model: nn.Module, arguments: tuple[Tensor, ...]) -> float:
    def forward() -> list[Tensor]:
        out = model(*arguments)
        return list(cast("dict[str, Tensor]", out).values()) if isinstance(out, dict) else [out]

    return step_seconds(forward, model.parameters())


def _arguments(events: int, settings: AnyRun) -> tuple[Tensor, ...]:
    """What the model of a run takes, of all sensors and with nothing hidden."""
    x_BSC = torch.zeros(events, SENSORS, 2)
    hidden_BS = torch.zeros(events, SENSORS, dtype=torch.bool)
    if isinstance(settings, InpainterRun):
        return x_BSC, hidden_BS, ~hidden_BS
    return x_BSC, hidden_BS


def _half(settings: AnyRun, place: Place) -> bool:
    named = settings.train.precision
    return named in ("bf16", "fp16") or (named == "auto" and place.device.type == "cuda")


def by_kernels(settings: AnyRun, place: Place) -> bool:
    """Whether blocks are to go through kernels, should these prove right on the device."""
    half = settings.train.precision in ("auto", "bf16")
    return settings.model.blocks == "auto" and half and place.device.type == "cuda"
