"""A trained run, opened again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast import HoldfastError, Run
from holdfast.training import load_weights, resolve, saved_config

from .data.opening import Opened, open_data
from .data.tokenizers import Tokenizer, load_tokenizer
from .model.model import LiquidNet, Sizes
from .recipe import RECIPE, SIZES, TOKENIZER, read_table
from .run_settings import LiquidSettings


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A run and its best weights."""

    run: Path
    settings: LiquidSettings
    net: LiquidNet
    """In evaluation mode."""
    tokenizer: Tokenizer | None
    checkpoint: Path
    opened: Callable[[], Opened]
    """Opens its data; what is not there any more is an error then."""


def load_run(source: str) -> Loaded:
    """The network of a run folder or a checkpoint in it, with the best weights it saved."""
    path = Path(source)
    if not path.exists():
        raise HoldfastError(f"no run or checkpoint at {path}; check the path")
    opened = Run.open(path if path.is_dir() else path.parent.parent)
    name, run = str(opened.meta.get("script")), opened.path
    if name != RECIPE.name:
        raise HoldfastError(f"{source} is a run of {name}, not of holdfast train liquid")
    settings = resolve(RECIPE, saved_config(run), platform="none")
    net = LiquidNet(settings.model, Sizes(**read_table(run, SIZES)), settings.plasticity)
    checkpoint = load_weights(net, source)
    tokenizer = load_tokenizer(run / TOKENIZER) if settings.task == "llm" else None
    return Loaded(run, settings, net.eval(), tokenizer, checkpoint, partial(open_data, settings))
