"""Whether weights of one run can be used with other settings, and what that would change.

Three levels: an *error* where the weights do not fit or would mean something else, a *warning*
where the model behaves in another way than it was trained, a *note* where only training differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, Literal

from holdfast import HoldfastError
from holdfast.training import Difference

__all__ = ["Difference", "check", "differences", "resume_differences"]

_Level = Literal["error", "warning", "note"]

_SIZES = (
    "model.lattice.width",
    "model.lattice.height",
    "model.lattice.depth",
    "model.carrier.hidden",
    "model.carrier.layers",
    "model.carrier.neuron_hidden",
    "model.carrier.neuron_output",
    "model.width",
    "model.flows.coupling",
    "model.mapper.form",
    "core",
)
_BRIDGE_SIZES = (
    "bridge.width",
    "bridge.layers",
    "bridge.heads",
    "bridge.decoder_layers",
    "bridge.memories",
)
_BEHAVIOUR = (
    "bridge.on",
    "model.flows.reflect",
    "model.flows.spawn_most",
    "model.flows.spawn_threshold",
    "model.flows.filter_below",
    "model.flows.end",
    "model.flows.splat",
    "model.carrier.energy",
    "model.carrier.bound",
    "model.carrier.scale",
    "model.carrier.input_clip",
    "model.convergence.on",
    "model.convergence.threshold",
    "model.convergence.least_steps",
    "model.convergence.patience",
    "data.teacher",  # of the same width, its vectors still mean something else
)
_TRAINING = {  # how far apart, as a share of the run's value, is worth a line
    "train.optimizer.lr": 0.0,
    "train.data.batch": 0.0,
    "model.flows.capacity": 0.0,
    "bridge.weight": 0.2,
    "model.flows.noise_cells": 0.1,
}


def differences(saved: Any, wanted: Any) -> list[Difference]:
    """What differs between two settings of the family, errors first.

    Args:
        saved: of the run that the weights come from.
        wanted: of the model they are meant for.
    """
    return [*_errors(saved, wanted), *_warnings(saved, wanted), *_notes(saved, wanted)]


def resume_differences(saved: Any, wanted: Any) -> list[Difference]:
    """What differs for a run that goes on: a bridge cannot be added to it, or removed.

    Args:
        saved: of the run.
        wanted: to go on with.
    """
    return [
        one._replace(level="error") if one.key == "bridge.on" else one
        for one in differences(saved, wanted)
    ]


def check(saved: Any, wanted: Any, source: str) -> list[Difference]:
    """Refuse what cannot work in one line; what is left to tell is returned.

    Args:
        saved: of the run that the weights come from.
        wanted: of the model they are meant for.
        source: what a person calls the run.
    """
    found = differences(saved, wanted)
    wrong = [one for one in found if one.level == "error"]
    if wrong:
        listed = ", ".join(f"{one.key} is {one.was} there and {one.now} here" for one in wrong)
        raise HoldfastError(
            f"{source}: its weights do not fit: {listed}; leave these as they were, or train anew"
        )
    return found


def _errors(saved: Any, wanted: Any) -> Iterator[Difference]:
    yield from _unequal("error", _SIZES, saved, wanted)
    if saved.bridge.on and wanted.bridge.on:
        yield from _unequal("error", _BRIDGE_SIZES, saved, wanted)
    # Not as it was written: null and the value that null stands for are the same model.
    yield from _derived(
        "error",
        "model.mapper.rank",
        saved,
        wanted,
        lambda one: one.model.mapper.rank_for(one.model.lattice.cells),
    )


def _warnings(saved: Any, wanted: Any) -> Iterator[Difference]:
    yield from _unequal("warning", _BEHAVIOUR, saved, wanted)
    yield from _derived("warning", "model.flows.steps", saved, wanted, lambda one: one.model.steps)
    if saved.model.steps == wanted.model.steps:  # the drift follows the steps, and is said once
        yield from _derived(
            "warning", "model.carrier.z_drift", saved, wanted, lambda one: one.model.z_drift
        )


def _notes(saved: Any, wanted: Any) -> Iterator[Difference]:
    for key, share in _TRAINING.items():
        was, now = _value(saved, key), _value(wanted, key)
        if abs(now - was) > share * abs(was):
            yield Difference("note", key, was, now)


def _unequal(level: _Level, keys: Sequence[str], saved: Any, wanted: Any) -> Iterator[Difference]:
    for key in keys:
        was, now = _value(saved, key), _value(wanted, key)
        if was != now:
            yield Difference(level, key, was, now)


def _derived(
    level: _Level, key: str, saved: Any, wanted: Any, value: Callable[[Any], Any]
) -> Iterator[Difference]:
    was, now = value(saved), value(wanted)
    if was != now:
        yield Difference(level, key, was, now)


def _value(settings: Any, key: str) -> Any:
    return reduce(getattr, key.split("."), settings)
