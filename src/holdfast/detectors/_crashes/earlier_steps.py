"""Whether a layer has worked before: then its input has changed, and the layer is right."""

from __future__ import annotations

from collections.abc import Sequence

from .facts import Crash, shown

# From so many steps on the changes of a weight are those of an optimizer; initialising and loading
# change it a few times, too. A guess.
_MANY = 20


def steps_before(crash: Crash) -> int:
    """Complete steps in which the layer at work was trained; 0 where that is not known."""
    layer, steps = crash.data.module, crash.data.steps or 0
    if layer is None:
        return 0
    used = layer.graded or (layer.changed or 0) >= steps >= _MANY
    return steps if used else 0


def other_input(crash: Crash, expects: str, shape: Sequence[int] = (), came: str = "") -> str:
    """What to do about an input unlike that of earlier steps; empty where there were none."""
    if not (steps := steps_before(crash)):
        return ""
    layer = crash.data.module
    evaluates = layer is not None and layer.training is False
    where = "an evaluation set" if evaluates else "another dataset"
    given = f", {shown(shape)}{came}," if shape else ""
    return (
        f"the layer is right, {steps:,} step{'s' * (steps != 1)} gave it {expects}: this input"
        f"{given} is made in another way. Compare its samples with those of training ({where} "
        "without the crop, resize or transform, another path through the model) and make them alike"
    )
