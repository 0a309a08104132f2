"""What turns tokens, images and signals into a sequence of width H.

B batch, T tokens or time steps, E embedding, H width, C channels, I signals.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..settings import ModelSettings
from .linear import he_linear

_SIDE = 4  # an image ends as 4 x 4 positions, which are read row by row
_EMBEDDING_STD = 0.02


class TextFront(nn.Module):
    """Token and position embeddings, and a projection to the width."""

    def __init__(self, settings: ModelSettings, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, settings.embedding_dim)
        self.positions = nn.Embedding(settings.max_position_embeddings, settings.embedding_dim)
        self.dropout = nn.Dropout(settings.embedding_dropout)
        self.project = he_linear(settings.embedding_dim, settings.hidden_dim)
        for one in (self.embedding, self.positions):
            nn.init.normal_(one.weight, std=_EMBEDDING_STD)

    def forward(self, tokens_BT: Tensor, place_B: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sequence, and where the next token stands."""
        if place_B is None:
            place_B = tokens_BT.new_zeros(tokens_BT.shape[0])  # len() would fix it in an export
        steps_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        place_BT = place_B[:, None] + steps_T
        # Beyond the last position that was trained the last one is used: the state goes on.
        place_BT = place_BT.clamp_max(self.positions.num_embeddings - 1)
        x_BTE = self.embedding(tokens_BT) + self.positions(place_BT)
        return self.project(self.dropout(x_BTE)), place_B + tokens_BT.shape[1]


class SignalFront(nn.Module):
    """A projection of the signals of every time step."""

    def __init__(self, settings: ModelSettings, signals: int) -> None:
        super().__init__()
        self.project = he_linear(signals, settings.hidden_dim)

    def forward(self, x_BTI: Tensor, state: None = None) -> tuple[Tensor, None]:
        """The sequence; nothing is remembered."""
        return self.project(x_BTI), state


class ImageFront(nn.Module):
    """Convolutions, and the positions that are left as a sequence, row by row."""

    def __init__(self, settings: ModelSettings, channels: int, side: int) -> None:
        super().__init__()
        layers, inputs = list[nn.Module](), channels
        sizes = list(zip(settings.vision.channels, settings.vision.kernels, strict=True))
        for number, (outputs, kernel) in enumerate(sizes):
            layers += [
                nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
            if number + 1 < len(sizes) and side >= 2 * _SIDE:
                layers.append(nn.MaxPool2d(2))
                side //= 2
            inputs = outputs
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(_SIDE))
        self.project = he_linear(inputs, settings.hidden_dim)

    def forward(self, x_BCHW: Tensor, state: None = None) -> tuple[Tensor, None]:
        """16 positions of every image."""
        return self.project(self.layers(x_BCHW).flatten(2).mT), state
