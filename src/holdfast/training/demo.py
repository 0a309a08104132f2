"""The built-in recipe: a character-level GRU that learns to write Python's own documentation.

The text comes with Python (``pydoc_data.topics``), so the recipe runs anywhere, offline:

    holdfast train demo
    holdfast train demo --set text=my_book.txt --set train.epochs=20

A model that knows nothing but how often each character occurs has a loss of about 3.2 (the
unigram entropy, printed at the start); this one ends near 1.6.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from ..config import Section, bounded
from ..errors import SettingsError
from .data.loading import DataSettings
from .device import Place
from .optimizers import OptimizerSettings
from .recipes import Recipe
from .schedules import ScheduleSettings
from .settings import TrainSettings
from .task import Task

# Of the text, its end: no window of the validation overlaps one of the training.
_HELD_OUT = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings(Section):
    """The size of the model."""

    embedding: int = bounded(48, 1)
    hidden: int = bounded(160, 1)
    layers: int = bounded(1, 1)
    dropout: float = bounded(0.0, 0.0, 1.0)  # between layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoSettings(Section):
    """Everything about the demo."""

    text: str | None = None  # a file of your own; Python's documentation by default
    length: int = bounded(64, 2)  # characters in a sample
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings(
        epochs=5,
        data=DataSettings(batch=64),
        optimizer=OptimizerSettings(lr=4e-3),
        schedule=ScheduleSettings(name="cosine", warmup=20, floor=0.05),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text is not None and not Path(self.text).is_file():
            raise ValueError(f"text is {self.text!r}, which is no file; give the path of a text")


class TextWindows(Dataset[Tensor]):
    """A text as rows of ``length + 1`` characters: what is read, and what follows it."""

    def __init__(self, codes: Tensor, length: int) -> None:
        self._codes, self._length = codes, length

    def __len__(self) -> int:
        return (len(self._codes) - 1) // self._length

    def __getitem__(self, index: int) -> Tensor:
        first = index * self._length
        return self._codes[first : first + self._length + 1]


class NextCharacter(nn.Module):
    """Which character comes next, after each one of a row."""

    def __init__(self, words: int, settings: ModelSettings) -> None:
        super().__init__()
        self.words = nn.Embedding(words, settings.embedding)
        dropout = settings.dropout if settings.layers > 1 else 0.0
        self.cells = nn.GRU(
            settings.embedding,
            settings.hidden,
            settings.layers,
            batch_first=True,
            dropout=dropout,
        )
        self.head = nn.Linear(settings.hidden, words)

    def forward(self, codes_BL: Tensor) -> Tensor:
        """Logits for the next character at every place."""
        hidden_BLH, _ = self.cells(self.words(codes_BL))
        return self.head(hidden_BLH)


def loss(model: nn.Module, batch_BL: Tensor) -> Tensor:
    """Cross-entropy of the next character."""
    logits_BLW = model(batch_BL[:, :-1])
    return functional.cross_entropy(logits_BLW.flatten(0, 1), batch_BL[:, 1:].flatten())


def measure(model: nn.Module, batch_BL: Tensor) -> Mapping[str, Tensor]:
    """The loss, and how often the likeliest character is the right one."""
    logits_BLW, right_BL = model(batch_BL[:, :-1]), batch_BL[:, 1:]
    return {
        "loss": functional.cross_entropy(logits_BLW.flatten(0, 1), right_BL.flatten()),
        "accuracy": (logits_BLW.argmax(-1) == right_BL).float().mean(),
    }


def predict(model: nn.Module, batch_BL: Tensor) -> Mapping[str, Tensor]:
    """The likeliest next character at each place, and how likely it is."""
    likely_BLW = model(batch_BL[:, :-1]).float().softmax(-1)
    probability_BL, code_BL = likely_BLW.max(-1)
    return {"code": code_BL.int(), "probability": probability_BL}


def build(settings: DemoSettings, place: Place) -> Task:
    """Text, windows, model."""
    text = _text(settings.text)
    alphabet = sorted(set(text))
    code = {character: number for number, character in enumerate(alphabet)}
    codes = torch.tensor([code[character] for character in text], device="cpu")
    cut = round(len(codes) * (1 - _HELD_OUT))
    train, held_out = codes[:cut], codes[cut:]
    if len(held_out) <= settings.length or len(set(text)) < 2:
        raise SettingsError(
            f"the text has {len(text)} characters, too few for windows of length="
            f"{settings.length}; give a longer text or a smaller length"
        )
    if place.main:
        print(
            f"{len(text)} characters, {len(alphabet)} different ones; "
            f"unigram entropy of the held-out part {entropy(train, held_out):.3f}"
        )
    return Task(
        model=NextCharacter(len(alphabet), settings.model),
        loss=loss,
        train=TextWindows(train, settings.length),
        validation=TextWindows(held_out, settings.length),
        measure=measure,
        predict=predict,
    )


def entropy(seen: Tensor, held_out: Tensor) -> float:
    """The loss on ``held_out`` of knowing how often each character occurs in ``seen``."""
    words = int(torch.cat((seen, held_out)).max()) + 1
    # One more of each: a character that does not occur in what was seen is not impossible.
    counts = torch.bincount(seen, minlength=words).double() + 1
    return float(-(counts / counts.sum()).log()[held_out].mean())


def _text(path: str | None) -> str:
    if path is not None:
        try:
            return Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"text {path} cannot be read ({error}); give a text in UTF-8"
            ) from None
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        raise SettingsError(
            "this Python comes without its documentation (pydoc_data); give a text of your own: "
            "--set text=FILE"
        ) from None
    return "\n\n".join(topics[name] for name in sorted(topics))


RECIPE = Recipe(
    name="demo",
    summary="a character-level GRU on the documentation that comes with Python",
    settings=DemoSettings,
    build=build,
    # The same gradient in four parts: a quarter of the memory.
    platforms={"shared": {"train.data.batch": 16, "train.accumulate": 4}},
    presets={"tiny": {"model.hidden": 32, "train.steps": 20, "train.data.batch": 16}},
)
