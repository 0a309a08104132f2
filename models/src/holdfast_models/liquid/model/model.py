"""The whole network: what is in front of the blocks, the blocks, and a head.

B batch, T tokens or time steps, V vocabulary, E embedding, H width, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from holdfast import HoldfastError
from holdfast.training import Graphs

from ..kernels import check, choice
from ..plasticity.synapses import PlasticLinear
from ..settings import ModelSettings, PlasticitySettings
from .block import Block, Inside, lif_options
from .fronts import ImageFront, SignalFront, TextFront
from .heads import ImageHead, SignalHead, TextHead
from .mamba_path import Sent
from .mixing.attention import SpikingAttention
from .replaying import replayed
from .spiking.lif import LIF

State = dict[str, Any]

choice.try_by(check.fault)  # here, above the parts that a trial runs and that ask for kernels


class Sizes(NamedTuple):
    """What comes in and goes out; the data say so."""

    task: str
    inputs: int
    """Tokens of the vocabulary, channels of an image, or signals."""
    outputs: int
    """Tokens of the vocabulary, classes, or signals."""
    side: int = 0
    """Rows of an image."""


class Output(NamedTuple):
    """Of one pass."""

    y_BTV: Tensor
    """Logits or signals; (B, C) for images; where targets were given, ``TextHead.scored``."""
    state: State
    inside: tuple[Inside, ...]


class LiquidNet(nn.Module):
    """Blocks with attention after every second one.

    Args:
        settings: widths and features.
        sizes: of the data.
        plasticity: whether and how synapses have fast weights.
    """

    def __init__(
        self, settings: ModelSettings, sizes: Sizes, plasticity: PlasticitySettings
    ) -> None:
        super().__init__()
        self.settings, self.sizes = settings, sizes
        self.graphs = Graphs()
        self.front = _front(settings, sizes)
        self.blocks = nn.ModuleList(
            Block(settings, plasticity, first=number == 0, last=number == settings.num_layers - 1)
            for number in range(settings.num_layers)
        )
        attention = settings.attention
        self.attentions = nn.ModuleList(
            SpikingAttention(
                settings.hidden_dim,
                attention.heads,
                steps=attention.steps,
                spiking=attention.spiking,
                window=attention.window,
                dropout=attention.dropout,
                **lif_options(settings),
            )
            for _ in range(settings.num_layers // 2 if attention.on else 0)
        )
        self.head = _head(settings, sizes)
        if sizes.task == "llm" and settings.tie_embeddings:
            self._tie()

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        dt_BT: Tensor | None = None,
        target_BT: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> Output:
        """One pass; with the state of the one before it goes on where that ended.

        A training pass that is replayed as a graph leaves no state. ``target_BT``: of tokens; then
        the result is the loss of each, ``smoothing`` that of their labels.
        """
        if self.settings.graph and state is None and dt_BT is None:
            found = replayed(self, self.graphs, x, target_BT, smoothing)
            if found is not None:
                return Output(found[0], {}, found[1])
        return self.run(x, state, dt_BT, target_BT, smoothing)

    def run(
        self,
        x: Tensor,
        state: State | None = None,
        dt_BT: Tensor | None = None,
        target_BT: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> Output:
        """One pass, operation by operation."""
        old: State = state or {}
        new: State = {}  # literals: the compiler cannot call an alias of a type
        x_BTH, new["front"] = self.front(x, old.get("front"))
        sent: Sent = Sent()
        inside: list[Inside] = []
        for number, block in enumerate(self.blocks):
            x_BTH, new[f"block{number}"], sent, one = block(
                x_BTH, old.get(f"block{number}"), sent, dt_BT
            )
            inside.append(one)
            if number % 2 and number // 2 < len(self.attentions):
                name = f"attention{number // 2}"
                x_BTH, new[name] = self.attentions[number // 2](x_BTH, old.get(name))
        if target_BT is None:
            y_BTV = self.head(x_BTH)
        else:
            assert isinstance(self.head, TextHead)
            y_BTV = self.head.scored(x_BTH, target_BT, smoothing)
        return Output(y_BTV, new, tuple(inside))

    def with_room(self, state: State, tokens: int) -> State:
        """The state with room for so many tokens more in every cache: its size never changes."""
        new = dict(state)
        for number, attention in enumerate(self.attentions):
            assert isinstance(attention, SpikingAttention)
            name = f"attention{number}"
            new[name] = attention.attention.with_room(state[name], tokens)
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            cross = None if block.path is None else block.path.cross
            if cross is not None:
                old = state[f"block{number}"]
                new[f"block{number}"] = old | {"cross": cross.with_room(old["cross"], tokens)}
        return new

    @property
    def synapses(self) -> list[PlasticLinear]:
        """Those that plasticity changes, one per block."""
        found = [block.get_submodule("synapses") for block in self.blocks]
        return [one for one in found if isinstance(one, PlasticLinear)]

    @torch.no_grad()
    def time_constants(self, driven: Sequence[Tensor]) -> list[Tensor]:
        """Of the liquid cells under what drives each of them, detached."""
        cells = [block.get_submodule("liquid") for block in self.blocks]
        return [cell.time_constants(x_BTU) for cell, x_BTU in zip(cells, driven, strict=True)]  # type: ignore[operator]

    def set_slope(self, slope: float) -> None:
        """Of the surrogate of all neurons."""
        slopes = [module.slope for module in self.modules() if isinstance(module, LIF)]
        torch._foreach_copy_(slopes, [torch.full_like(slopes[0], slope)] * len(slopes))

    def _tie(self) -> None:
        embedding = self.front.get_submodule("embedding")
        last = self.head.get_submodule("last")
        assert isinstance(embedding, nn.Embedding)
        assert isinstance(last, nn.Linear)
        if embedding.weight.shape != last.weight.shape:
            raise HoldfastError(
                f"model.tie_embeddings: the embedding is {tuple(embedding.weight.shape)}, the last "
                f"layer {tuple(last.weight.shape)}"
            )
        last.weight = embedding.weight


def _front(settings: ModelSettings, sizes: Sizes) -> nn.Module:
    if sizes.task == "llm":
        return TextFront(settings, sizes.inputs)
    if sizes.task == "vision":
        return ImageFront(settings, sizes.inputs, sizes.side)
    return SignalFront(settings, sizes.inputs)


def _head(settings: ModelSettings, sizes: Sizes) -> nn.Module:
    kinds = {"llm": TextHead, "vision": ImageHead, "robotics": SignalHead}
    return kinds[sizes.task](settings, sizes.outputs)


def inputs_of(task: str, batch: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """What the net is called with."""
    if task == "llm":
        return (batch["tokens"],)
    return (batch["image"],) if task == "vision" else (batch["x"], None, batch["dt"])


def rows_of(state: Any, index_B: Tensor) -> Any:
    """The state of some rows of the batch."""
    return tree_map_only(Tensor, lambda part: part.index_select(0, index_B), state)
