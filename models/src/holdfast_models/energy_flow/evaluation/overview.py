"""What settings mean, in numbers and sentences: sizes, parameters, flows, arithmetic."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from ..forecast import macs
from ..model.energy_flow import EnergyFlow
from ..model.settings import ModelSettings
from ..modes.memory import activation_bytes, first_flows, rows
from ..run_settings import EnergyFlowSettings

__all__ = ["Overview", "overview"]


class Overview(NamedTuple):
    """A model described.

    Args:
        sizes: numbers by name.
        parameters: how many each part has.
        meaning: what the settings say, a sentence each.
    """

    sizes: dict[str, float]
    parameters: dict[str, int]
    meaning: list[str]

    def lines(self) -> list[str]:
        """For people."""
        total = sum(self.parameters.values())
        parts = {**self.parameters, "all": total}
        return [
            *self.meaning,
            "",
            "parameters",
            *(f"  {name:<14}{count:>14,}" for name, count in parts.items()),
            "",
            "a batch",
            f"  first flows   {self.sizes['first_flows']:>14,}",
            f"  and children  {self.sizes['rows']:>14,} at most; dense mode computes so many",
            f"  training step {self.sizes['train_tflop']:>14.4g} TFLOP in dense mode",
            f"  kept for it   {self.sizes['activation_gb']:>14.4g} GB in bf16",
        ]


def overview(settings: EnergyFlowSettings, model: EnergyFlow) -> Overview:
    """Describe a model.

    Args:
        settings: of its run.
        model: made of them; its parameters are counted, not read.
    """
    inner = settings.model
    batch, cells = settings.train.data.batch, inner.lattice.cells
    each = first_flows(inner, batch)
    each_step = macs(inner)
    all_rows = batch * rows(inner, batch) if settings.core else 0
    sizes = {
        "cells": cells,
        "lattice_steps": inner.steps,
        "batch": batch,
        "first_flows": batch * each if settings.core else 0,
        "rows": all_rows,
        "macs_per_flow_step": each_step,
        # Two operations to each, and a backward pass costs twice the forward.
        "train_tflop": 6e-12 * each_step * all_rows * inner.steps,
        "activation_gb": activation_bytes(inner, all_rows, inner.steps, 2) / 1e9,
    }
    return Overview(sizes, _parameters(model), _meaning(settings, model, each))


def _parameters(model: EnergyFlow) -> dict[str, int]:
    parts: dict[str, nn.Module | None] = {"input mapper": model.input}
    if model.core is not None:
        core = model.core
        parts |= {"neuron": core.neuron, "carrier": core.carrier, "coupling": core.field}
    parts["output mapper"] = model.output
    if model.bridge is not None:
        parts |= {"text encoder": model.bridge.encoder, "text decoder": model.bridge.decoder}
    return {
        name: sum(one.numel() for one in part.parameters())
        for name, part in parts.items()
        if part is not None
    }


def _meaning(settings: EnergyFlowSettings, model: EnergyFlow, each: int) -> list[str]:
    inner = settings.model
    lattice = inner.lattice
    rank = inner.mapper.rank_for(lattice.cells)
    lines = [
        f"lattice {lattice.width} x {lattice.height} x {lattice.depth}: a surface has "
        f"{lattice.cells} cells, flows start in plane {lattice.depth // 2}",
        f"embeddings of width {inner.width} by {_teacher(settings)}; mappers "
        + _form(inner.mapper.form, rank),
    ]
    lines += _of_flows(inner, each) if settings.core else ["the core is left out: mappers only"]
    if model.bridge is not None:
        bridge = settings.bridge
        lines.append(
            f"text bridge: knows {len(model.bridge.vocabulary)} pieces, writes up to "
            f"{bridge.length} (beams: {bridge.beams}), weighs {bridge.weight:g} in the loss"
        )
    return lines


def _form(form: str, rank: int | None) -> str:
    if form == "linear":
        return "are linear"
    hidden = "in full form" if rank is None else f"of rank {rank}"
    return hidden if form == "deep" else f"{hidden} beside a linear one"


def _of_flows(settings: ModelSettings, each: int) -> list[str]:
    flows, lattice = settings.flows, settings.lattice
    share = f"all {each}" if each == lattice.cells else f"the {each} strongest of {lattice.cells}"
    lines = [
        f"flows: {share} cells of a sample send one, for {settings.steps} steps at most, drifting "
        f"{settings.z_drift:.3g} outwards in each (a face is 1 away)",
        f"carrier: {settings.carrier.layers} layers of {settings.carrier.hidden}; each step "
        f"{'adds to' if settings.carrier.energy == 'residual' else 'replaces'} a flow's energy",
    ]
    if flows.spawn_most:
        lines.append(
            f"children: up to {flows.spawn_most} in a step, of a flow that moves more than "
            f"{2 * flows.spawn_threshold:g}; {flows.capacity} flows in a batch at most"
        )
    if flows.noise_cells:
        lines.append(
            f"noise: {flows.noise_cells:g} cells in training, gone after {flows.noise_anneal} steps"
        )
    stop = settings.convergence
    if stop.on and stop.least_steps < settings.steps:
        lines.append(
            f"early stop: from step {stop.least_steps} on, when {stop.threshold:.0%} have arrived"
        )
    ends = "count at the nearer face" if flows.end == "project" else "are left out"
    walls = "reflected" if flows.reflect else "held"
    lines.append(f"flows are {walls} at the side walls; those that do not arrive {ends}")
    return lines


def _teacher(settings: EnergyFlowSettings) -> str:
    data = settings.data
    if data.source == "fields":
        return f"the fields of task {data.task}"
    return f"{data.path}" if data.source == "precomputed" else f"teacher {data.teacher}"
