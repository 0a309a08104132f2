"""Talking to a trained run: a text in, the nearest sentence it knows and its own words out.

Shapes: B batch (of one), K distinct training targets, E teacher width, W and H the surface.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from holdfast import HoldfastError

from .loading import Loaded

__all__ = ["Answer", "Conversation"]


class Answer(NamedTuple):
    """What a run makes of one text.

    Args:
        text: that was given.
        nearest: training targets by cosine, the nearest first.
        written: the output surface in words; None without a text bridge.
    """

    text: str
    nearest: list[tuple[str, float]]
    written: str | None

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        nearest = [{"text": text, "cosine": cosine} for text, cosine in self.nearest]
        return {"text": self.text, "nearest": nearest, "written": self.written}

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"  {cosine:6.3f}  {text}" for text, cosine in self.nearest]
        return lines if self.written is None else [*lines, f"  writes  {self.written}"]


class Conversation:
    """Answers texts; the training targets are looked through once, at the start.

    Args:
        loaded: from ``load_run``.
        nearest: how many training targets an answer names.
    """

    def __init__(self, loaded: Loaded, nearest: int = 3) -> None:
        train = loaded.sets.train
        if not train.has_texts:
            raise HoldfastError(
                f"data.source {loaded.settings.data.source}: the run was trained on embeddings "
                "without texts, so there are no words to talk in; see: holdfast energy_flow eval"
            )
        if loaded.sets.teacher is None and loaded.model.bridge is None:
            raise HoldfastError(
                "the embeddings came from a file and there is no text bridge, so nobody can read a "
                "text; train with bridge.on=true"
            )
        self._model, self._teacher = loaded.model, loaded.sets.teacher
        self._device = next(loaded.model.parameters()).device
        _, y_NE = train.tensors()
        place = {train.text(index).target: index for index in reversed(range(len(train)))}
        self._targets = list(place)
        unit_KE = functional.normalize(y_NE[list(place.values())], dim=-1)
        self._unit_KE = unit_KE.to(self._device)
        self._nearest = min(nearest, len(self._targets))

    @torch.no_grad()
    def answer(self, text: str) -> Answer:
        """Send a text through the model."""
        y_BE, out_BS = self._carried(text)
        similar_K = (functional.normalize(y_BE, dim=-1) @ self._unit_KE.mT)[0]
        cosines, places = similar_K.topk(self._nearest)
        nearest = [
            (self._targets[place], cosine)
            for place, cosine in zip(places.tolist(), cosines.tolist(), strict=True)
        ]
        bridge = self._model.bridge
        return Answer(text, nearest, None if bridge is None else bridge.write(out_BS)[0])

    def _carried(self, text: str) -> tuple[Tensor, Tensor]:
        model = self._model
        if self._teacher is not None:
            out = model(self._teacher.encode([text]).to(self._device))
            return out.y_BE, out.out_BS
        # Only embeddings were given in training: the bridge has learned to read beside them.
        assert model.bridge is not None  # refused at the start
        lattice = model.settings.lattice
        out_BS = model.bridge.read([text])
        if model.core is not None:
            surface_BHW = out_BS.unflatten(1, (lattice.height, lattice.width))
            out_BS = model.core(surface_BHW, step=0, seed=0).surface_BS
        return model.output(out_BS).float(), out_BS
