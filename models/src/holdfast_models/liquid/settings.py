"""Settings of the liquid family, section by section.

    ModelSettings(hidden_dim=128, mamba={"on": True, "mode": "parallel"})

Names are those of the specification's flags where there is one; ``flags.py`` lists them.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from holdfast import Section, bounded

Backbone = Literal["cfc", "ltc", "ncp", "ltc_scan"]
Decode = Literal["none", "rate", "temporal", "first_spike", "probabilistic", "hybrid"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpikingSettings(Section):
    """The leaky integrate-and-fire neurons of the encoders and of the attention."""

    threshold: float = bounded(1.0, 0.0, above=True)
    beta: float = bounded(0.95, 0.0, 1.0)  # what is left of the membrane after a step
    steps: int = bounded(10, 1)  # spike steps per token, S
    reset: Literal["subtract", "zero", "none"] = "subtract"
    surrogate: Literal["fast_sigmoid", "atan", "sigmoid", "triangle"] = "fast_sigmoid"
    slope: float = bounded(25.0, 0.0, above=True)  # of the surrogate
    slope_from: float | None = bounded(5.0, 0.0, above=True)  # annealed from here; null: constant
    anneal: int = bounded(500, 1)  # optimizer steps until slope is reached
    learn_beta: bool = False
    learn_threshold: bool = False
    persist: bool = False  # one step per token, the membrane is carried from token to token
    dropout: float = bounded(0.2, 0.0, 1.0)  # of spikes between the two stages
    decode_method: Decode = "rate"  # what the spike train itself adds to a block


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSettings(Section):
    """Causal self-attention after every second block."""

    on: bool = True
    heads: int = bounded(8, 1)
    spiking: bool = True  # queries, keys and values are spike rates
    steps: int = bounded(8, 1)  # spike steps of these rates
    window: int | None = bounded(None, 1)  # tokens that are seen; null: all before
    dropout: float = bounded(0.0, 0.0, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MambaSettings(Section):
    """The selective state space in every block, and how it meets the liquid cell."""

    on: bool = False
    mode: Literal["sequential", "parallel", "bidirectional"] = "bidirectional"
    state: int = bounded(16, 1)
    conv: int = bounded(4, 1)
    expand: int = bounded(2, 1)
    kind: Literal["selective", "ssd"] = "selective"
    form: Literal["chunk", "loop", "associative"] = "chunk"  # how the recurrence is computed
    conversion: Literal["rate", "temporal", "potential"] = "temporal"  # of spikes
    tau: float = bounded(20.0, 0.0, above=True)  # tokens, of the temporal conversion
    exchange: Literal["next_block", "two_pass"] = "next_block"
    feedback: bool = False  # its output is a current of the next block's encoder
    gate: bool = False  # how much of each path, per head and token; a learned mix otherwise
    gate_heads: int = bounded(4, 1)
    gate_floor: float = bounded(0.0, 0.0, 1.0)  # least entropy, of the most there is
    cross_attention: bool = False
    cross_heads: int = bounded(8, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionSettings(Section):
    """The convolutions in front of images."""

    channels: tuple[int, ...] = (32, 64, 128)
    kernels: tuple[int, ...] = (3, 3, 3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings(Section):
    """Widths, and what is in a block."""

    num_layers: int = bounded(2, 1)
    hidden_dim: int = bounded(128, 8)
    liquid_units: int = bounded(64, 1)
    spiking_units: int = bounded(32, 1)
    embedding_dim: int = bounded(128, 1)
    max_position_embeddings: int = bounded(1024, 1)
    tie_embeddings: bool = False
    liquid_backbone: Backbone = "cfc"
    residual: Literal["addition", "concatenation"] = "addition"  # blocks without Mamba
    dropout: float = bounded(0.1, 0.0, 1.0)
    embedding_dropout: float = bounded(0.1, 0.0, 1.0)
    graph: bool = True  # replay a training pass as CUDA graphs, on a GPU
    spikes: SpikingSettings = SpikingSettings()
    attention: AttentionSettings = AttentionSettings()
    mamba: MambaSettings = MambaSettings()
    vision: VisionSettings = VisionSettings()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.vision.channels) != len(self.vision.kernels):
            raise ValueError(
                f"vision.channels has {len(self.vision.channels)} numbers, vision.kernels "
                f"{len(self.vision.kernels)}; give as many"
            )
        attention, mamba, width = self.attention, self.mamba, self.hidden_dim
        for name, on, heads in (
            ("attention.heads", attention.on and self.num_layers > 1, attention.heads),
            ("mamba.gate_heads", mamba.on and mamba.gate, mamba.gate_heads),
        ):
            if on and width % heads:
                raise ValueError(
                    f"hidden_dim is {width}, {name} {heads}; choose heads that divide it"
                )
        if mamba.on and mamba.mode == "sequential" and (mamba.gate or mamba.cross_attention):
            raise ValueError(
                "mamba.gate and mamba.cross_attention need two paths; set mamba.mode to parallel "
                "or bidirectional"
            )
        if mamba.on and mamba.mode != "bidirectional" and mamba.cross_attention:
            raise ValueError("mamba.cross_attention is part of mamba.mode bidirectional")
        if mamba.on and mamba.cross_attention:
            narrow = min(self.liquid_units, width)
            if narrow < mamba.cross_heads:
                raise ValueError(
                    f"mamba.cross_heads is {mamba.cross_heads}, and there are {narrow} units to "
                    "share; choose fewer"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetaSettings(Section):
    """The controller that learns how plastic each layer is."""

    on: bool = False
    lr: float = bounded(0.001, 0.0, above=True)
    history_length: int = bounded(100, 10)
    hidden_dim: int = bounded(128, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlasticitySettings(Section):
    """Fast weights that change by the timing of events, not by gradients."""

    on: bool = False
    rule: Literal["classical", "triplet", "homeostatic", "bcm"] = "homeostatic"
    lr: float = bounded(0.01, 0.0)
    tau_plus: float = bounded(20.0, 0.0, above=True)
    tau_minus: float = bounded(20.0, 0.0, above=True)
    target_rate: float = bounded(0.1, 0.0, 1.0)
    interval: int = bounded(10, 1)  # optimizer steps
    bound: float = bounded(1.0, 0.0, above=True)  # of every fast weight
    cap: float = bounded(1.0, 0.0, above=True)  # of the norm of one update
    non_negative: bool = False
    meta: MetaSettings = MetaSettings()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.meta.on and not self.on:
            raise ValueError("meta.on needs plasticity: set plasticity.on=true")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContinualSettings(Section):
    """Tasks one after the other, and what keeps the earlier ones."""

    on: bool = False
    num_tasks: int = bounded(1, 1)
    order: Literal["sequence", "joint"] = "sequence"  # joint: all at once, to compare with
    tasks: Literal[
        "auto", "domains", "permuted_vocabulary", "classes", "rotation",
        "permuted_pixels", "dynamics",
    ] = "auto"  # fmt: skip
    consolidation: bool = True
    consolidation_strength: float = bounded(1000.0, 0.0)
    plasticity_decay: float = bounded(0.9, 0.0, 1.0)  # of the importance of earlier tasks
    importance_interval: int = bounded(100, 0)  # batches; 0: only at the end of a task
    importance_samples: int = bounded(200, 1)
    importance_labels: Literal["sampled", "given"] = "sampled"
    normalise: bool = True  # the importance of a task has mean 1
    replay: bool = False
    replay_buffer_size: int = bounded(1000, 1)
    replay_strategy: Literal["uniform", "importance", "balanced"] = "balanced"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings(Section):
    """What is learned; everything is there without a network."""

    sources: tuple[str, ...] = ("python",)  # corpora by name, text files, folders
    megabytes: float = bounded(2.0, 0.0, above=True)  # of each named corpus, at most
    tokenizer: str = "byte"  # byte, bpe, random
    vocab_size: int | None = bounded(None, 2)  # of bpe (8192 where null) and random
    sequence_length: int = bounded(64, 2)
    folder: str = "liquid_data"  # token files and tokenizers are kept here
    seed: int = bounded(0, 0)
    samples: int = bounded(2000, 16)  # of shapes and trajectories, which are generated
    images: Literal["digits", "shapes"] = "shapes"
    robot: Literal["pendulum", "cart-pole", "arm", "navigation"] = "pendulum"
