"""What a run takes, from its settings alone: memory by mode, and time by a short trial.

B batch, C carrier width, N rows of flows, T lattice steps.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from typing import Any, TypeVar

import torch
from torch import nn

from holdfast.training import Forecast, Place, free_memory

from .model import loop
from .model.energy_flow import EnergyFlow
from .model.noise import Key
from .model.settings import PRESETS, ModelSettings
from .model.stepping import LatticePass, Parts
from .modes.entry import SHARE, carrier_itemsize, preferred, why_not_fused
from .modes.memory import chunk_for, pass_bytes, rows, sample_bytes
from .run_settings import EnergyFlowSettings
from .text.bridge import TextBridge
from .text.tokens import Vocabulary

__all__ = ["forecast", "macs", "sketch"]

_Part = TypeVar("_Part", bound=nn.Module)

_WEIGHT_BYTES = 16  # of a parameter: itself, its gradient and two moments, fp32
_TOKENS = 24  # of a text, where none has been read yet; a guess
_TRAINED = 0.8  # of made pairs that are trained on
_TRIAL_FLOP = 4e9
_TRIAL_FLOWS = (64, 2048)
_TRIAL_STEPS = 2
# Of a GPU's rate of products that a step of the fused loop comes to, and the least time of a step,
# in which the host launches it: benchmarks/results/energy_flow_h200_*.md
_GPU_SHARE, _GPU_LEAST = 0.5, 0.01


def sketch(settings: EnergyFlowSettings) -> EnergyFlow:
    """A model of these settings that has shapes but no memory; its bridge knows no words yet."""
    lattice = settings.model.lattice
    with torch.device("meta"):
        bridge = None
        if settings.bridge.on:
            sides = (lattice.width, lattice.height, lattice.depth)
            bridge = TextBridge(Vocabulary.build(()), sides, settings.bridge)
        return EnergyFlow(settings.model, bridge, core=settings.core)


def macs(settings: ModelSettings) -> int:
    """Multiply-adds of a flow in a step: neuron, GRU, heads."""
    carrier = settings.carrier
    inner, out, wide = carrier.neuron_hidden, carrier.neuron_output, carrier.hidden
    neuron = 9 + 4 * inner + inner**2 + inner * out
    gru = 3 * wide * (out + 1 + wide) + (carrier.layers - 1) * 6 * wide**2
    return neuron + gru + wide**2 // 2 + wide // 2 + 64 * wide + 192


def forecast(settings: EnergyFlowSettings, place: Place) -> Forecast:
    """What a run of these settings takes on a device.

    Args:
        settings: of the run.
        place: whose memory and speed count; on a CPU a fraction of a second is spent on a trial.
    """
    model = sketch(settings)
    memory, chunked = _memory(settings, model, place)
    fits = ""
    if sum(memory.values()) > free_memory(place.device):
        fits = _what_fits(settings, place)
        return Forecast(memory=memory, fits=fits)
    seconds = _step_seconds(settings, model, place, chunked=chunked)
    return Forecast(
        memory=memory,
        step_seconds=seconds,
        steps=_steps(settings),
        quicker="without --preset it takes minutes on a CPU, --preset fields about one; the large "
        "presets are for a GPU, or set train.steps",
    )


def _memory(
    settings: EnergyFlowSettings, model: EnergyFlow, place: Place
) -> tuple[dict[str, float], bool]:
    """The least bytes that are needed, by what they are for, and whether in chunked mode."""
    weights = float(_WEIGHT_BYTES * sum(one.numel() for one in model.parameters()))
    kept = "weights, gradients and moments"
    if model.core is None:
        return {kept: weights}, False
    parts, flows = model.core.parts, settings.model.flows
    batch = max(1, settings.train.data.batch // place.world)
    surface_BHW = torch.empty(batch, *model.input.shape, device=place.device)
    with _autocast(settings, place):
        mode = preferred(parts, surface_BHW)
        itemsize = carrier_itemsize(place.device)
        fused = mode == "fused" or (mode == "chunked" and why_not_fused(parts, surface_BHW) is None)
    whole = float(pass_bytes(parts, batch, itemsize, fused=fused, chunk=None))
    room = math.inf
    if flows.activation_budget_gb is not None:
        room = flows.activation_budget_gb * 1e9
    elif flows.mode == "auto":
        room = SHARE * max(0.0, free_memory(place.device) - weights)
    if mode != "chunked" and whole <= room:
        return {kept: weights, f"a batch in {mode} mode": whole}, False
    one = sample_bytes(parts, batch, itemsize, fused=fused)
    chunk = 1
    if flows.chunk is not None or flows.activation_budget_gb is not None:
        chunk = chunk_for(settings.model, batch, one, place.device)
    least = float(pass_bytes(parts, batch, itemsize, fused=fused, chunk=chunk))
    return {kept: weights, f"a batch in chunks of {chunk}": least}, True


def _what_fits(settings: EnergyFlowSettings, place: Place) -> str:
    """Settings nearest to these that the memory suffices for."""
    free = free_memory(place.device)

    def need(one: EnergyFlowSettings) -> float:
        return sum(_memory(one, sketch(one), place)[0].values())

    def other(**flows: Any) -> EnergyFlowSettings:
        model = settings.model
        model = dataclasses.replace(model, flows=dataclasses.replace(model.flows, **flows))
        return dataclasses.replace(settings, model=model)

    if settings.model.flows.mode not in ("auto", "chunked") and need(other(mode="auto")) <= free:
        return "set model.flows.mode=auto, which computes it in chunks"
    batch = settings.train.data.batch // 2
    while batch >= place.world:
        data = dataclasses.replace(settings.train.data, batch=batch)
        train = dataclasses.replace(settings.train, data=data)
        if need(dataclasses.replace(settings, train=train)) <= free:
            return f"train.data.batch={batch} would fit"
        batch //= 2
    capacity = settings.model.flows.capacity // 2
    while settings.model.flows.overflow == "topk" and capacity >= settings.train.data.batch:
        if need(other(capacity=capacity)) <= free:
            return f"model.flows.capacity={capacity} would fit"
        capacity //= 2
    width = settings.model.width
    models = {name: ModelSettings(**one, width=width) for name, one in PRESETS.items()}
    found = {n: need(dataclasses.replace(settings, model=one)) for n, one in models.items()}
    able = {name: count for name, count in found.items() if count <= free}
    if not able:
        return "take a smaller lattice, or free some memory"
    return f"--preset {max(able, key=lambda name: able[name])} would fit, or a smaller lattice"


def _steps(settings: EnergyFlowSettings) -> int | None:
    train, data = settings.train, settings.data
    if train.epochs is None or data.source not in ("grammar", "fields"):
        return train.steps
    window = train.data.batch * train.accumulate
    whole = train.epochs * math.ceil(_TRAINED * data.count / window)
    return whole if train.steps is None else min(whole, train.steps)


def _step_seconds(
    settings: EnergyFlowSettings, model: EnergyFlow, place: Place, *, chunked: bool
) -> float:
    """Of an optimizer step."""
    batch = max(1, settings.train.data.batch // place.world)
    rest = 6.0 * batch * (_count(model.input) + _count(model.output))
    if model.bridge is not None:
        bridge = settings.bridge
        texts = batch + min(batch, bridge.decoder_most) / bridge.decoder_every
        rest += 6.0 * _TOKENS * texts * max(_count(model.bridge.encoder), 1)
    inner, moved = settings.model, 0.0
    if model.core is not None:
        moved = batch * rows(inner, batch) * _steps_taken(inner) * (4 / 3 if chunked else 1)
    if place.device.type == "cuda":
        rate = _GPU_SHARE * _product_rate(place.device, inner.carrier.hidden)
        work = (rest + 6.0 * macs(inner) * moved) / rate
        return settings.train.accumulate * max(_GPU_LEAST, work)
    each = 0.0 if model.core is None else _trial(model.core.parts)
    rate = 6.0 * macs(inner) / each if each else 2e10
    return settings.train.accumulate * (each * moved + rest / rate)


def _steps_taken(settings: ModelSettings) -> int:
    """Lattice steps of a pass: flows that drift have arrived before the last, where it may stop."""
    stop, steps = settings.convergence, settings.steps
    if not stop.on or not settings.z_drift:
        return steps
    return min(steps, max(math.ceil(1 / settings.z_drift), stop.least_steps))


def _trial(parts: Parts) -> float:
    """Seconds of a flow in a step of a training pass, on this CPU."""
    settings = parts.settings
    low, high = _TRIAL_FLOWS
    flows = int(min(high, max(low, _TRIAL_FLOP / (6 * _TRIAL_STEPS * macs(settings)))))
    batch = math.ceil(flows / settings.lattice.cells)
    quiet = dataclasses.replace(settings.flows, capacity=flows, spawn_most=0, mode="dense")
    whole = dataclasses.replace(settings.convergence, on=False)
    settings = dataclasses.replace(settings, flows=quiet, convergence=whole)
    field = None if parts.field is None else _drawn(parts.field)
    trial = Parts(_drawn(parts.neuron), _drawn(parts.carrier), field, settings)
    lattice = settings.lattice
    surface_BHW = torch.zeros(batch, lattice.height, lattice.width, requires_grad=True)
    lattice_pass = LatticePass(batch, _TRIAL_STEPS, Key(0, 0), training=False, scale=1.0)
    best = math.inf
    for _ in range(3):
        began = time.perf_counter()
        out = loop.run(trial, lattice_pass, surface_BHW)
        torch.autograd.grad(out.surface_BS.sum(), [surface_BHW, *trial.parameters()])
        best = min(best, time.perf_counter() - began)
    return best / (_TRIAL_STEPS * batch * (flows // batch))


def _drawn(sketched: _Part) -> _Part:
    """A module of the meta device with real numbers, drawn without touching the run's own."""
    generator = torch.Generator().manual_seed(0)
    module = copy.deepcopy(sketched).to_empty(device="cpu")
    with torch.no_grad():
        for one in (*module.parameters(), *module.buffers()):
            if one.is_floating_point():
                one.normal_(0, 0.02, generator=generator)
            else:
                one.zero_()
    return module


def _product_rate(device: torch.device, wide: int) -> float:
    """Operations per second of a product in bf16, of the shape that counts."""
    a = torch.ones(8192, wide, device=device, dtype=torch.bfloat16)
    b = torch.ones(wide, 3 * wide, device=device, dtype=torch.bfloat16)
    torch.mm(a, b)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(10):
        torch.mm(a, b)
    end.record()
    end.synchronize()
    return 10 * 2 * a.numel() * b.shape[1] / (begin.elapsed_time(end) / 1e3)


def _autocast(settings: EnergyFlowSettings, place: Place) -> torch.autocast:
    kind = place.device.type
    half = settings.train.precision in ("bf16", "fp16") or (
        settings.train.precision == "auto" and kind == "cuda"
    )
    return torch.autocast(kind, torch.bfloat16, enabled=half)


def _count(module: nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())
