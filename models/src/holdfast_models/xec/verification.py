"""Whether an exported file says the same as the model it came from.

Shapes: B events, S sensors, C channels, K outputs of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from .data.normalization import NOT_AVAILABLE, lowest_npho, normalise, npho_to_scale
from .data.synthetic import generate
from .export import InpainterGraph, OnnxRegressor, load_program
from .loading import Loaded
from .model.masking import valid_of
from .run_settings import AnyRun, InpainterRun, RegressorRun
from .settings import NormalizationSettings, SynthSettings

ALLOWED = 1e-4
"""The largest difference, in units of the scale that the network is trained on."""
_EVENTS = 64
_HIDDEN = 0.05  # sensors an inpainter is asked for beside the dead ones


class SameEvents(NamedTuple):
    """Events that were given to both."""

    name: str
    events: int
    worst: float
    unchanged: bool = True
    """What was not asked for came back to the bit."""


class Verification(NamedTuple):
    """How far the file is from the model."""

    path: Path
    cases: list[SameEvents]

    @property
    def ok(self) -> bool:
        """Nothing differs by more than is allowed; NaN does."""
        return all(case.worst <= ALLOWED and case.unchanged for case in self.cases)

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"{'case':<12}{'events':>7}  largest difference / scale (allowed {ALLOWED:g})"]
        for case in self.cases:
            other = "" if case.unchanged else "  and changed what it was to leave alone"
            lines.append(f"{case.name:<12}{case.events:>7}  {case.worst:.2g}{other}")
        verdict = "agrees with the model" if self.ok else "DOES NOT agree with the model"
        return [*lines, f"{self.path} {verdict}"]

    def plain(self) -> dict[str, Any]:
        """For programs."""
        cases = [case._asdict() for case in self.cases]
        return {"file": str(self.path), "ok": self.ok, "allowed": ALLOWED, "cases": cases}


def verify(loaded: Loaded, path: Path) -> Verification:
    """Give the same events to the model of a run and to the file."""
    model = loaded.model.to("cpu").eval()
    with torch.no_grad():
        if loaded.settings.kind == "reg":
            settings = cast(RegressorRun, loaded.settings)
            compare = _regressors(model, settings, OnnxRegressor(path))
        else:
            settings = cast(InpainterRun, loaded.settings)
            compare = _inpainters(model, settings, load_program(path, loaded.folder))
        return Verification(path, [compare(name, raw) for name, raw in _cases(settings)])


def _regressors(
    model: nn.Module, settings: RegressorRun, exported: OnnxRegressor
) -> Callable[[str, Tensor], SameEvents]:
    def compare(name: str, raw_BSC: Tensor) -> SameEvents:
        inputs = normalise(raw_BSC[..., 0], raw_BSC[..., 1], settings.normalization)
        own = model(inputs.x_BSC, valid_BSC=valid_of(inputs))
        theirs = exported.run(raw_BSC if exported.raw else inputs.x_BSC)
        if own.keys() != theirs.keys():
            return SameEvents(name, len(raw_BSC), float("nan"))
        targets = cast(Any, model).targets
        worst = [_difference(own[task], theirs[task], targets[task]) for task in own]
        return SameEvents(name, len(raw_BSC), float(torch.stack(worst).max()))

    return compare


def _difference(own: Tensor, theirs: Tensor, target: Any) -> Tensor:
    """In units of the target's scale; logarithms of variances have their own."""
    count = target.scale_K.shape[0]
    means = target.scaled(own[:, :count]) - target.scaled(theirs[:, :count])
    return torch.cat((means, own[:, count:] - theirs[:, count:]), -1).abs().max()


def _inpainters(
    model: nn.Module, settings: InpainterRun, exported: nn.Module
) -> Callable[[str, Tensor], SameEvents]:
    graph = InpainterGraph(model, settings)
    generator = torch.Generator().manual_seed(1)

    def compare(name: str, raw_BSC: Tensor) -> SameEvents:
        dead_BS = raw_BSC[..., 0] == NOT_AVAILABLE
        asked_BS = torch.rand(dead_BS.shape, generator=generator) < _HIDDEN
        mask_BS = dead_BS & False if name == "none dead" else dead_BS | asked_BS
        own, theirs = graph(raw_BSC, mask_BS), exported(raw_BSC, mask_BS)
        unchanged = torch.equal(theirs[~mask_BS], raw_BSC[..., 0][~mask_BS])
        scaled = [_scaled(one[mask_BS], settings.normalization) for one in (own, theirs)]
        worst = (scaled[0] - scaled[1]).abs().max() if mask_BS.any() else torch.zeros(())
        return SameEvents(name, len(raw_BSC), float(worst), unchanged)

    return compare


def _scaled(npho: Tensor, normalization: NormalizationSettings) -> Tensor:
    return npho_to_scale(npho.clamp(min=max(lowest_npho(normalization), -1e30)), normalization)


def _cases(settings: AnyRun) -> Iterator[tuple[str, Tensor]]:
    """Synthetic events, and those at the edges."""
    time = "time" if settings.data.time_branch == "time" else "relative_time"

    def raw(count: int, **given: Any) -> Tensor:
        made = generate(SynthSettings(seed=5, **given), count)
        return torch.stack((made["npho"], made[time]), -1)

    events = raw(_EVENTS)
    yield "synthetic", events
    yield "all dead", torch.full_like(events[:2], NOT_AVAILABLE)
    yield "none dead", raw(4, dead_share=0.0)
    yield "batch of 1", events[:1]
    yield "batch of 7", events[1:8]
