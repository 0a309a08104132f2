"""Settings of the lattice model, and its presets.

    ModelSettings(lattice={"width": 12, "height": 12, "depth": 6}, flows={"coupling": True})
    ModelSettings(**PRESETS["debug"])

Lengths are in normalised units (the box is [-1, 1] on every axis) unless a name says cells.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from holdfast import Section, bounded

__all__ = [
    "PRESETS",
    "CarrierSettings",
    "ConvergenceSettings",
    "FlowSettings",
    "LatticeSettings",
    "MapperSettings",
    "ModelSettings",
]

# Up to so many cells a mapper may grow with their square (41 million numbers at 2500 cells).
_FULL_MAPPER_CELLS = 1024
_LOW_RANK = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatticeSettings(Section):
    """The box the flows travel in: cells in x and y, layers in z."""

    width: int = bounded(20, 2)
    height: int = bounded(20, 2)
    depth: int = bounded(10, 2)

    @property
    def cells(self) -> int:
        """Cells of a surface, S."""
        return self.width * self.height

    @property
    def steps(self) -> int:
        """Lattice steps T where nothing else is set: from the middle plane to a face."""
        return self.depth // 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class CarrierSettings(Section):
    """The network that all flows share, and how far it may move them in a step."""

    hidden: int = bounded(256, 2)  # C
    layers: int = bounded(2, 1)  # L
    neuron_hidden: int = bounded(32, 1)
    neuron_output: int = bounded(64, 1)
    energy: Literal["residual", "tanh"] = "residual"  # added to the energy, or in its place
    bound: Literal["tanh", "clamp"] = "tanh"  # how displacements are kept within ±0.5
    scale: float = bounded(1.0, 0.0, above=True)  # of displacements, in the first steps of a run
    scale_warmup: int = bounded(100, 0)  # optimizer steps before it begins to fall
    scale_decay: float = bounded(0.9, 0.0, 1.0, above=True)
    scale_min: float = bounded(1.0, 0.0, above=True)
    scale_every: int = bounded(10, 1)  # optimizer steps from one decay to the next
    z_drift: float | None = bounded(None, 0.0, 2.0)  # outwards in each step; null: 2/T
    input_clip: float = bounded(10.0, 0.0, above=True)  # largest input the GRU is given

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale_min > self.scale:
            raise ValueError(
                f"scale_min is {self.scale_min}, above scale {self.scale}, which falls towards it; "
                "raise scale or lower scale_min"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowSettings(Section):
    """The life of flows: how many, how they wander, multiply and end, and how they are computed."""

    capacity: int = bounded(100_000, 1)  # flows of a whole batch, spawned ones among them
    # where B·S is more: keep the cells of largest energy, as many of each sample, or refuse
    overflow: Literal["topk", "error"] = "topk"
    # Children of a flow in a step; 0: none. They multiply the work by up to four in each step, keep
    # the kernels away, and the model learns as well without them: docs/energy_flow.md
    spawn_most: int = bounded(0, 0)
    spawn_threshold: float = bounded(0.1, 0.0, 2.0, above=True)  # way in a step that makes children
    noise_cells: float = bounded(0.1, 0.0)  # standard deviation in cells, in training; 0: none
    noise_anneal: int = bounded(1000, 1)  # optimizer steps over which the noise falls to nothing
    noise_on_z: bool = True
    reflect: bool = True  # at the side walls; flows stop there if not
    filter_below: float | None = bounded(None, 0.0, 2.0, above=True)  # flows moving less die
    end: Literal["project", "drop"] = "project"  # what becomes of flows that never reached a face
    splat: Literal["bilinear", "nearest"] = "bilinear"
    steps: int | None = bounded(None, 1)  # T; null: depth // 2
    # auto: fused on a GPU where it does what dense mode would; elsewhere compact where flows can
    # have children, dense where they cannot
    mode: Literal["auto", "dense", "compact", "chunked", "fused"] = "auto"
    graph: bool = True  # replay a training pass as a CUDA graph, in fused mode
    compact_every: int = bounded(4, 1)  # steps between two packings, in compact mode
    activation_budget_gb: float | None = bounded(None, 0.0, above=True)
    chunk: int | None = bounded(None, 1)  # samples computed at once, in chunked mode
    coupling: bool = False  # flows feel a smoothed field of the energies around them
    deterministic: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvergenceSettings(Section):
    """When the loop ends before its last step."""

    on: bool = True
    threshold: float = bounded(0.95, 0.0, 1.0, above=True)  # share of flows that have finished
    least_steps: int = bounded(5, 0)
    patience: int = bounded(3, 1)  # checks in a row without growth
    every: int = bounded(4, 1)  # steps between two looks of the host at the counters


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapperSettings(Section):
    """The maps from an embedding to a surface and back."""

    # deep: hidden layers; linear: none, and at first number n of an embedding is cell n, for data
    # that have the layout of the lattice already; skip: the sum of both
    form: Literal["deep", "linear", "skip"] = "deep"
    rank: int | None = bounded(None, 1)  # width of the low-rank form; null: chosen by the cells
    dropout1: float = bounded(0.1, 0.0, 1.0)  # on the side of the embedding
    dropout2: float = bounded(0.05, 0.0, 1.0)  # on the side of the surface; full form only

    def rank_for(self, cells: int) -> int | None:
        """Hidden width of the low-rank form for so many cells; None: the full form is used."""
        if self.rank is not None or cells <= _FULL_MAPPER_CELLS:
            return self.rank
        return min(_LOW_RANK, 2 * cells)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings(Section):
    """Everything about the lattice model; what is trained on it is set elsewhere."""

    lattice: LatticeSettings = LatticeSettings()
    carrier: CarrierSettings = CarrierSettings()
    flows: FlowSettings = FlowSettings()
    convergence: ConvergenceSettings = ConvergenceSettings()
    mapper: MapperSettings = MapperSettings()
    width: int = bounded(384, 2)  # E, of the teacher's embeddings

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_batch(1)

    @property
    def steps(self) -> int:
        """Lattice steps T."""
        return self.lattice.steps if self.flows.steps is None else self.flows.steps

    @property
    def z_drift(self) -> float:
        """Outward drift of a flow in each step."""
        return 2 / self.steps if self.carrier.z_drift is None else self.carrier.z_drift

    def check_batch(self, batch: int) -> None:
        """Raise ``ValueError`` when the capacity cannot serve so many samples."""
        capacity, cells = self.flows.capacity, self.lattice.cells
        if self.flows.overflow == "error" and capacity < batch * cells:
            raise ValueError(
                f"flows.capacity is {capacity}, but {batch} x {cells} cells need {batch * cells}; "
                "raise it, take a smaller batch, or set flows.overflow=topk"
            )
        if capacity < batch:
            raise ValueError(
                f"flows.capacity is {capacity}, less than one flow for each of {batch} samples; "
                "raise it or take a smaller batch"
            )


def _preset(
    size: tuple[int, int, int],
    carrier: tuple[int, int],
    flows: tuple[int, float],
    convergence: tuple[int, float, int],
) -> Mapping[str, Any]:
    width, height, depth = size
    hidden, layers = carrier
    capacity, spawn_threshold = flows
    patience, threshold, least_steps = convergence
    return {
        "lattice": {"width": width, "height": height, "depth": depth},
        "carrier": {"hidden": hidden, "layers": layers},
        "flows": {"capacity": capacity, "spawn_threshold": spawn_threshold},
        "convergence": {
            "patience": patience,
            "threshold": threshold,
            "least_steps": least_steps,
        },
    }


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # Noise is the same in all: in cells it does not depend on the size of the lattice.
        "debug": _preset((20, 20, 10), (256, 2), (50_000, 0.15), (5, 0.8, 3)),
        "experiment": _preset((28, 28, 40), (512, 3), (200_000, 0.5), (8, 0.95, 5)),
        "optimized": _preset((100, 100, 50), (1024, 3), (200_000, 0.1), (12, 0.95, 5)),
        # 16 samples of 2500 cells need 40 000 flows.
        "exp50": _preset((50, 50, 20), (512, 2), (40_000, 0.5), (3, 0.95, 5)),
        "max80": _preset((80, 80, 60), (1024, 3), (20_000, 0.5), (3, 0.95, 5)),
    }
)
"""Settings of the model under a name, as nested plain data."""
