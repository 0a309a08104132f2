"""The runs of this family: which of the three models, made with what, and ready to use."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from holdfast import HoldfastError, Run
from holdfast.training import load_weights, resolve, saved_config

from .assembly import make_model
from .geometry.survey import geometry_hash
from .recipe_settings import SETTINGS
from .run_settings import AnyRun

FACTS = "xec.json"
"""In the run folder: what the settings do not say."""


def settings_of(kind: str, args: argparse.Namespace, more: Sequence[str] = ()) -> Any:
    """The settings that the options of a verb say, as ``holdfast train`` reads them."""
    return resolve(SETTINGS[kind], args.config, args.preset, [*args.set, *more], "none")


def saved_run(source: str | os.PathLike[str]) -> tuple[AnyRun, Path]:
    """The settings and the folder of a run, or of that of a checkpoint.

    Raises:
        HoldfastError: it is no run of this family, or of another geometry.
    """
    path = Path(source)
    if not path.exists():
        raise HoldfastError(f"no run or checkpoint at {path}; check the path")
    folder = path if path.is_dir() else path.parent.parent
    run = Run.open(folder)
    name = str(run.meta.get("script"))
    family, _, kind = name.partition(".")
    if family != "xec" or kind not in ("reg", "mae", "inp"):
        raise HoldfastError(f"{source} is a run of {name}, not of xec.reg, xec.mae or xec.inp")
    settings = resolve(SETTINGS[kind], saved_config(run.path), platform="none")
    facts = folder / FACTS
    known = json.loads(facts.read_text(encoding="utf-8")) if facts.exists() else {}
    if known.get("geometry") not in (None, geometry_hash()):
        raise HoldfastError(
            f"{source} was trained on another geometry ({known['geometry']}, here "
            f"{geometry_hash()}); its sensors are elsewhere, so its weights mean nothing here"
        )
    return settings, run.path


def keep_facts(folder: Path, kind: str) -> None:
    """Leave in a run folder what the settings do not say."""
    facts = {"kind": kind, "geometry": geometry_hash(), "format": 1}
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


class Loaded(NamedTuple):
    """A model in evaluation mode, and where it comes from."""

    settings: AnyRun
    model: nn.Module
    checkpoint: Path
    folder: Path


def load_run(
    source: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    best: bool = True,
    averaged: bool | None = None,
) -> Loaded:
    """Load a run of ``holdfast train xec.reg``, ``xec.mae`` or ``xec.inp``.

    Args:
        source: a run folder or a checkpoint.
        device: where the model is put.
        best: the weights that were best in validation; the newest if False.
        averaged: the running average; where there is one by default.
    """
    settings, folder = saved_run(source)
    model = make_model(settings)
    checkpoint = load_weights(model, source, best=best, averaged=averaged)
    return Loaded(settings, model.to(device).eval(), checkpoint, folder)
