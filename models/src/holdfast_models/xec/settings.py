"""Settings of the three models: what they share, and what each has of its own.

How a model is trained (epochs, rates, batches, checkpoints) is the trainer's section ``train``.
The names that other programs of this detector use for all of them are in ``foreign_keys``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from holdfast import Section, bounded

Channel = Literal["npho", "time"]
LossName = Literal[
    "smooth_l1", "huber", "l1", "mse", "l2", "relative_l1", "relative_smooth_l1", "relative_mse",
    "gaussian_nll", "cosine",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormalizationSettings(Section):
    """How photon counts and times become numbers around one; part of every checkpoint."""

    npho_scheme: Literal["log1p", "anscombe", "sqrt", "linear"] = "log1p"
    npho_scale: float = bounded(1000.0, 0.0, above=True)
    npho_scale2: float = bounded(4.08, 0.0, above=True)  # log1p alone
    time_scale: float = bounded(1.14e-7, 0.0, above=True)  # s
    time_shift: float = -0.46
    sentinel_npho: float = -1.0  # what the network sees where nothing was measured
    sentinel_time: float = -1.0
    npho_threshold: float = bounded(100.0, 0.0)  # photons below which a time means nothing


_SQRT: Mapping[str, Any] = {"npho_scheme": "sqrt", "npho_scale": 20000.0, "npho_scale2": 1.0}
NORMALIZATIONS: Mapping[str, Mapping[str, Any]] = {
    "legacy": {"npho_scale": 0.58, "npho_scale2": 1.0, "time_scale": 6.5e-8, "time_shift": 0.5},
    "current": {},
    "sqrt": _SQRT,
    "synthetic": {**_SQRT, "time_scale": 2e-8, "time_shift": 0.0},
}
"""By name; what is not given is as in ``NormalizationSettings``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FiducialSettings(Section):
    """Events whose true first interaction lies in the middle of the detector; cm."""

    enabled: bool = False
    u_max: float = bounded(23.9, 0.0)
    v_max: float = bounded(67.9, 0.0)
    w_min: float = 0.0
    w_max: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SynthSettings(Section):
    """Events that are generated where no files are given; see ``holdfast xec synth``."""

    events: int = bounded(0, 0)  # to train on; 0: none are generated
    validation: int = bounded(512, 1)
    seed: int = bounded(1, 0)
    folder: str = "xec_synth"  # kept: the next run of the same settings reads what is there
    energy: Literal["flat", "mono"] = "flat"  # 15 to 60 MeV, or energy_mev
    energy_mev: float = bounded(52.8, 0.0, above=True)
    energy_width: float = bounded(0.0, 0.0)  # MeV
    source: Literal["gun", "target"] = "gun"
    deposit: Literal["shower", "point"] = "shower"
    exact_solid_angle: bool = False  # the four chips of each SiPM near a deposit, not a disc
    dead_share: float = bounded(0.013, 0.0, 1.0)  # of sensors, the same in all events
    dead_blocks: int = bounded(0, 0)  # 2 x 2 SiPMs
    dead_rows: int = bounded(0, 0)  # 8 SiPMs side by side
    dead_per_run: int = bounded(0, 0)  # sensors that are dead in one run alone
    run_events: int = bounded(1000, 1)
    pileup: float = bounded(0.0, 0.0, 1.0)  # share of events with a second photon
    corrupted: float = bounded(0.0, 0.0, 1.0)  # share of events with non-finite values
    clean: bool = False  # npho_clean as well: what dead sensors would have measured


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings(Section):
    """Which events; files, folders of files, or patterns such as ``run*.root``."""

    train_path: str = ""
    val_path: str = ""
    tree_name: str = "tree"
    npho_branch: str = "npho"
    time_branch: str = "relative_time"
    num_threads: int = bounded(4, 1)  # that decode and transform one chunk
    cache: Literal["none", "ram", "memmap"] = "none"  # where events are after the first epoch
    cache_dir: str = "xec_cache"  # of memmap
    device_transform: bool = False  # raw values to the device, normalised there
    log_invalid_npho: bool = True
    fiducial: FiducialSettings = FiducialSettings()
    synth: SynthSettings = SynthSettings()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSettings(Section):
    """The encoder that the three models share."""

    outer_mode: Literal["finegrid", "split"] = "finegrid"
    outer_fine_pool: tuple[int, int] | None = None
    encoder_dim: int = bounded(1024, 32)
    dim_feedforward: int | None = bounded(None, 1)  # four times encoder_dim
    num_fusion_layers: int = bounded(2, 1)
    hex_dim: int = bounded(96, 8)  # width of the nodes of the hexagonal faces
    pool: Literal["adaptive", "antialias", "attention", "bilinear"] = "adaptive"
    drop_path_rate: float = bounded(0.0, 0.0, 1.0)
    fusion_dropout: float = bounded(0.1, 0.0, 1.0)
    blocks: Literal["auto", "plain"] = "auto"  # by kernels on a GPU in bf16, once they are checked

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder_dim % 32:
            raise ValueError(f"encoder_dim is {self.encoder_dim}; it has to be divisible by 32")
        pool = self.outer_fine_pool
        if pool is not None and (min(pool) < 1 or pool[0] > 45 or pool[1] > 72):
            raise ValueError(f"outer_fine_pool is {list(pool)}; give two numbers up to 45 and 72")

    @property
    def feedforward(self) -> int:
        """Width of the feed-forward layers of the fusion transformer."""
        return self.dim_feedforward or 4 * self.encoder_dim


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressorSettings(EncoderSettings):
    """Encoder and heads."""

    hidden_dim: int = bounded(256, 1)
    head_dropout: float = bounded(0.2, 0.0, 1.0)
    channel_dropout_rate: float = bounded(0.1, 0.0, 1.0)  # sensors made dead while training


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSettings(Section):
    """One quantity that is reconstructed; ``loss_beta`` in its own unit."""

    enabled: bool = False
    loss_fn: LossName = "smooth_l1"
    loss_beta: float = bounded(1.0, 0.0, above=True)
    weight: float = bounded(1.0, 0.0)
    log_transform: bool = False
    against_light: bool = False  # energy, with log_transform: the network corrects the sum of light
    scale: tuple[float, ...] | None = None  # the network predicts (target - offset) / scale
    offset: tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TasksSettings(Section):
    """Which quantities."""

    angle: TaskSettings = TaskSettings()
    energy: TaskSettings = TaskSettings()
    timing: TaskSettings = TaskSettings()
    uvwFI: TaskSettings = TaskSettings()
    angleVec: TaskSettings = TaskSettings()
    n_gamma: TaskSettings = TaskSettings()

    def active(self) -> dict[str, TaskSettings]:
        """Those that are on, by name."""
        return {name: one for name, one in vars(self).items() if one.enabled}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HistogramSettings(Section):
    """Rare events of one quantity count more."""

    enabled: bool = False
    nbins: int = bounded(30, 1)
    nbins_2d: tuple[int, int] = (20, 20)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReweightingSettings(Section):
    """Weights of events from histograms of their truth."""

    angle: HistogramSettings = HistogramSettings()
    energy: HistogramSettings = HistogramSettings()
    timing: HistogramSettings = HistogramSettings()
    uvwFI: HistogramSettings = HistogramSettings()

    def active(self) -> dict[str, HistogramSettings]:
        """Those that are on, by name."""
        return {name: one for name, one in vars(self).items() if one.enabled}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaeSettings(EncoderSettings):
    """Encoder, what is hidden from it, and decoders."""

    mask_ratio: float = bounded(0.6, 0.0, 1.0)
    predict_channels: tuple[Channel, ...] = ("npho", "time")
    decoder_dim: int = bounded(128, 8)
    decoder: Literal["conv", "pixel"] = "conv"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaceRatios(Section):
    """The share of sensors to hide, face by face."""

    inner: float | None = bounded(None, 0.0, 1.0)
    us: float | None = bounded(None, 0.0, 1.0)
    ds: float | None = bounded(None, 0.0, 1.0)
    outer: float | None = bounded(None, 0.0, 1.0)
    top: float | None = bounded(None, 0.0, 1.0)
    bottom: float | None = bounded(None, 0.0, 1.0)

    def given(self) -> dict[str, float]:
        """The shares of the faces that have one."""
        return {name: share for name, share in vars(self).items() if share is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class InpainterSettings(EncoderSettings):
    """Encoder, what is hidden, and the heads that fill it in."""

    mask_ratio: float = bounded(0.05, 0.0, 1.0)
    mask_ratio_by_face: FaceRatios = FaceRatios()  # instead of mask_ratio; others: nothing hidden
    mask_npho_flat: bool = False  # hide as many bright as dark sensors
    predict_channels: tuple[Channel, ...] = ("npho",)
    freeze_encoder: bool = True
    use_local_context: bool = True
    against_neighbours: bool = False  # the network corrects the mean of a sensor's neighbours
    head_type: Literal["per_face", "masked_attention", "cross_attention"] = "per_face"
    cross_attn_k: int = bounded(16, 1, 256)
    cross_attn_hidden: int = bounded(64, 1)
    cross_attn_latent_dim: int = bounded(128, 4)
    cross_attn_pos_dim: int = bounded(96, 6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimeLossSettings(Section):
    """How much times count, and which sensors are hidden for them."""

    weight: float = bounded(1.0, 0.0)
    mask_ratio_scale: float = bounded(1.0, 0.0, above=True)  # > 1: bright sensors hidden more often
    use_npho_weight: bool = True
    npho_threshold: float | None = bounded(None, 0.0)  # that of the normalisation


@dataclasses.dataclass(frozen=True, kw_only=True)
class NphoWeightSettings(Section):
    """Bright sensors count more, by a power of their photons."""

    enabled: bool = False
    alpha: float = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntensitySettings(Section):
    """Events of rare total light count more."""

    enabled: bool = False
    nbins: int = bounded(5, 1)
    target: Literal["uniform", "sqrt"] = "uniform"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HiddenLossSettings(Section):
    """The loss on hidden sensors, of autoencoder and inpainter."""

    fn: Literal["smooth_l1", "huber", "l1", "mse", "l2"] = "smooth_l1"
    beta: float = bounded(1.0, 0.0, above=True)
    npho_unit: Literal["scaled", "spread"] = "scaled"  # spread: what a count scatters by
    npho_weight: float = bounded(1.0, 0.0)
    time: TimeLossSettings = TimeLossSettings()
    auto_channel_weight: bool = False
    npho_loss_weight: NphoWeightSettings = NphoWeightSettings()
    intensity_reweighting: IntensitySettings = IntensitySettings()


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitSettings(Section):
    """Weights to begin with, from another run."""

    encoder: str | None = None  # of a run folder or a checkpoint of any of the three models
    weights: str | None = None  # all of them, of a run of the same model; training begins anew
    allow_norm_mismatch: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputSettings(Section):
    """What a run leaves beside its checkpoints."""

    artifacts: bool = True  # plots and tables at each new best and at the end
    predictions: bool = True  # ROOT files of predictions
    max_events: int = bounded(1000, 1)  # of the autoencoder's predictions
    onnx: str | None = "model.onnx"  # regressor, in the run folder; null: none
