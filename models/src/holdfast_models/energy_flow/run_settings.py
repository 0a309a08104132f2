"""Everything that can be set about a run of the lattice."""

from __future__ import annotations

import dataclasses

from holdfast import Section
from holdfast.training import (
    BandSettings,
    HealthSettings,
    OptimizerSettings,
    ScheduleSettings,
    StopSettings,
    TrainSettings,
)
from holdfast.training import DataSettings as Loading

from .data.pairs import DataSettings
from .losses import LossSettings
from .model.settings import CarrierSettings, LatticeSettings, ModelSettings
from .text.bridge import BridgeSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnergyFlowSettings(Section):
    """Everything about a run of the lattice."""

    # Small enough for two CPU cores: see docs/energy_flow.md for what it learns in how long.
    model: ModelSettings = ModelSettings(
        lattice=LatticeSettings(width=12, height=12, depth=6), carrier=CarrierSettings(hidden=48)
    )
    core: bool = True  # false: mappers only, the baseline
    pictures: bool = True  # drawn at the end, for the report
    data: DataSettings = DataSettings()
    loss: LossSettings = LossSettings()
    # The specification's decoder loss, every 50 steps on 4 samples, does not teach it to write:
    # after 300 steps 0 % of texts right, with a loss in every step 100 %.
    bridge: BridgeSettings = BridgeSettings(width=128, heads=4, decoder_every=1, decoder_most=8)
    train: TrainSettings = TrainSettings(
        epochs=None,
        steps=300,
        data=Loading(batch=32),
        optimizer=OptimizerSettings(lr=1e-3, weight_decay=1e-5),
        schedule=ScheduleSettings(name="cosine", warmup=20, floor=0.01),
        stop=StopSettings(metric="fvu"),
        # Seen in healthy runs: 10 to 23 with texts, 0.3 to 1.4 on fields.
        health=HealthSettings(bands={"grad_norm": BandSettings(low=0.03, high=60.0)}),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.width != self.data.width:
            raise ValueError(
                f"model.width is {self.model.width}, data.width {self.data.width}; "
                "the model maps embeddings of the teacher, so set both alike"
            )
        if self.bridge.on and self.data.source == "fields":
            raise ValueError("data.source fields has no texts for the bridge; set bridge.on=false")
        self.model.check_batch(self.train.data.batch)
