"""What can be set about the text bridge, and its values in the presets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from holdfast import Section, bounded

PLACES = 512
"""The most pieces of a text that encoder and decoder have a position for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BridgeSettings(Section):
    """The text bridge: text to surface, surface to text."""

    on: bool = True
    weight: float = bounded(0.1, 0.0, 1.0)  # of the text loss in the whole loss
    # The decoder's gradient reaches the core: it is let in slowly, while the core is untrained.
    # As long as the displacement's warm-up (specification 5.3); a guess.
    warmup: int = bounded(100, 0)
    width: int = bounded(256, 1)
    layers: int = bounded(2, 1)
    heads: int = bounded(8, 1)
    decoder_layers: int = bounded(2, 1)
    memories: int = bounded(8, 1)  # vectors a surface is shown to the decoder as
    length: int = bounded(64, 1, PLACES - 1)  # the most pieces that are written
    beams: int = bounded(4, 1)  # 1: the likeliest piece each time
    temperature: float = bounded(1.0, 0.0, above=True)
    corrections: int = bounded(3, 0)  # further beams read again, the closest is taken; 0: none
    decoder_every: int = bounded(50, 1)  # steps between two with a decoder loss
    decoder_most: int = bounded(4, 1)  # samples of a batch it is taken of
    graph: bool = True  # replay the losses of a training pass as a CUDA graph
    cache: int = bounded(0, 0)  # entries kept in each direction; 0: none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} cannot be shared by {self.heads} heads; "
                "take a width that is a multiple of heads"
            )

    def weight_at(self, step: int) -> float:
        """The weight of the text loss at an optimizer step: it rises over ``warmup`` steps."""
        return self.weight * min(1.0, (step + 1) / max(1, self.warmup))

    def decodes_at(self, step: int) -> bool:
        """Whether the decoder loss is taken at an optimizer step."""
        return step % self.decoder_every == 0


def _preset(
    weight: float, length: int, beams: int, temperature: float, corrections: int
) -> dict[str, Any]:
    return {
        "width": 256,
        "heads": 8,
        "weight": weight,
        "length": length,
        "beams": beams,
        "temperature": temperature,
        "corrections": corrections,
    }


_EXPERIMENT = _preset(0.15, 48, 3, 0.9, 3)
_OPTIMIZED = _preset(0.1, 64, 4, 1.0, 3) | {"cache": 10_000}

BRIDGE_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "debug": _preset(0.2, 32, 2, 0.8, 2),
    "experiment": _EXPERIMENT,
    "optimized": _OPTIMIZED,
    "exp50": _EXPERIMENT,
    "max80": _OPTIMIZED,
}
"""The bridge's values under the names of the model's presets."""
