"""The model of a run from its settings and its pairs: the same for training and for loading."""

from __future__ import annotations

from .data.pairs import Pairs
from .model.energy_flow import EnergyFlow
from .model.settings import ModelSettings
from .text.bridge import BridgeSettings, TextBridge
from .text.tokens import Vocabulary

__all__ = ["make_model", "make_vocabulary"]


def make_vocabulary(trained: Pairs) -> Vocabulary:
    """The pieces of all training texts; the same pairs always give the same vocabulary."""
    texts = (trained.text(index) for index in range(len(trained)))
    return Vocabulary.build(text for one in texts for text in (one.input, one.target))


def make_model(
    model: ModelSettings, bridge: BridgeSettings, trained: Pairs, *, core: bool = True
) -> EnergyFlow:
    """The model, with a text bridge where one is wanted and the pairs have texts.

    Args:
        model: sizes and behaviour.
        bridge: of the text bridge.
        trained: the training part, whose texts make the vocabulary.
        core: False leaves the lattice out.
    """
    text = None
    if bridge.on and trained.has_texts:
        lattice = model.lattice
        sides = (lattice.width, lattice.height, lattice.depth)
        text = TextBridge(make_vocabulary(trained), sides, bridge)
    return EnergyFlow(model, text, core=core)
