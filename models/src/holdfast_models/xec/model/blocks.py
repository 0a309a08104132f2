"""Blocks that encoder, decoders and heads are built of.

B events, H x W cells of an image, N nodes of a hexagonal face, C channels. Channels are last
everywhere; a convolution sees a view of the same memory.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from ..geometry.neighbours import ABSENT, SLOTS, hexagonal_links
from ..kernels import ops

__all__ = [
    "ConvNeXtBlock",
    "GlobalResponseNorm",
    "HexNeXtBlock",
    "channels_first",
    "channels_last",
    "seen",
]

_EPS = 1e-6
_LINK_STD = 0.02
_STREAM = torch.bfloat16  # of images between blocks that go through kernels


class GlobalResponseNorm(nn.Module):
    """Strengthens the channels that respond more than others, over all positions of an event."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is (B, positions..., C), with one or two axes of positions."""
        places = tuple(range(1, x.dim() - 1))
        norm = torch.linalg.vector_norm(x, dim=places, keepdim=True)
        share = norm / (norm.mean(-1, keepdim=True) + _EPS)
        return self.gamma * x * share + self.beta + x


class _Block(nn.Module):
    """What both kinds of blocks do after they have mixed neighbouring positions."""

    def __init__(self, channels: int, drop_path: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=_EPS)
        self.widen = nn.Linear(channels, 4 * channels)
        self.response = GlobalResponseNorm(4 * channels)
        self.narrow = nn.Linear(4 * channels, channels)
        self.drop_path = drop_path

    @abstractmethod
    def mix(self, x: Tensor) -> Tensor:
        """Mix neighbouring positions."""

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        """``visible`` is 1 or 0 per position, with one channel.

        Hidden positions are treated as a sparse convolution treats empty ones: nothing is read
        from them, and 0 is written to them.
        """
        x = seen(x, visible)
        y = seen(self.mix(x), visible)
        y = seen(nn.functional.gelu(self.widen(self.norm(y))), visible)
        y = seen(self.narrow(self.response(y)), visible)
        return x + self._dropped(y)

    def _dropped(self, y: Tensor) -> Tensor:
        """Stochastic depth: the branch of some events is skipped while training."""
        if not self.training or self.drop_path == 0.0:
            return y
        kept = 1.0 - self.drop_path
        shape = (y.shape[0], *(1 for _ in y.shape[1:]))
        keep = torch.rand(shape, device=y.device) < kept
        return y * (keep.to(y.dtype) / max(kept, _EPS))


class ConvNeXtBlock(_Block):
    """ConvNeXtV2 block on images (B, H, W, C)."""

    def __init__(self, channels: int, drop_path: float = 0.0) -> None:
        super().__init__(channels, drop_path)
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.fused = False
        """Whether it goes through kernels where products are in bf16; ``kernels.check`` decides."""

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        """The kernels rely on ``x`` being 0 where it is hidden, which it is behind a block."""
        if not (self.fused and self._fusible(x)):
            return super().forward(x, visible)
        # Rounding the sum moves an energy by a ten-thousandth, and halves what is read.
        x = x if x.is_meta else x.to(_STREAM)
        norm, response = self.norm, self.response
        return ops.convnext(
            x, visible, self.depthwise.weight, self.depthwise.bias, norm.weight, norm.bias,
            self.widen.weight, self.widen.bias, response.gamma, response.beta,
            self.narrow.weight, self.narrow.bias,
        )[0]  # fmt: skip

    def mix(self, x: Tensor) -> Tensor:
        """Depthwise convolution of 7 x 7 cells."""
        x_BCHW = channels_first(x)
        if x.device.type == "cpu":
            # Its backward pass takes twice as long on memory in the other order.
            x_BCHW = x_BCHW.contiguous()
        return channels_last(self.depthwise(x_BCHW))

    def _fusible(self, x: Tensor) -> bool:
        if self.training and self.drop_path > 0.0:
            return False
        # A forecast counts what the kernels would keep, without a device.
        return x.is_meta or (x.is_cuda and torch.is_autocast_enabled("cuda"))


class HexNeXtBlock(_Block):
    """The same block on the nodes (B, N, C) of a hexagonal face."""

    links: Tensor
    present: Tensor

    def __init__(self, channels: int, drop_path: float = 0.0) -> None:
        super().__init__(channels, drop_path)
        self.weight = nn.Parameter(torch.randn(len(SLOTS), channels) * _LINK_STD)
        self.bias = nn.Parameter(torch.zeros(channels))
        table = torch.as_tensor(hexagonal_links().copy())
        self.register_buffer("links", table.clamp(min=0).flatten(), persistent=False)
        present = (table != ABSENT).float().unsqueeze(-1)
        self.register_buffer("present", present, persistent=False)

    def mix(self, x: Tensor) -> Tensor:
        """Weighted sum of a node and its neighbours; absent ones add nothing."""
        x_BNSC = x.index_select(1, self.links).unflatten(1, self.present.shape[:2])
        return (x_BNSC * (self.present * self.weight).to(x.dtype)).sum(2) + self.bias


def channels_first(x_BHWC: Tensor) -> Tensor:
    """An image as convolutions take it; a view."""
    return x_BHWC.permute(0, 3, 1, 2)


def channels_last(x_BCHW: Tensor) -> Tensor:
    """An image as everything else takes it; a view."""
    return x_BCHW.permute(0, 2, 3, 1)


def seen(x: Tensor, visible: Tensor | None) -> Tensor:
    """0 in hidden positions."""
    return x if visible is None else x * visible
