"""Synthetic events for the tests of the calorimeter, generated once."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from holdfast_models.xec.data.synth_files import ensure_synth
from holdfast_models.xec.data.synthetic import generate
from holdfast_models.xec.settings import NORMALIZATIONS, NormalizationSettings, SynthSettings


class Synth(NamedTuple):
    """A small set: folders of files, and the events that are in them."""

    settings: SynthSettings
    train: str
    val: str
    events: dict[str, Tensor]
    """Those of ``train``."""
    normalization: NormalizationSettings


@pytest.fixture(scope="session")
def synth(tmp_path_factory: pytest.TempPathFactory) -> Synth:
    """192 events to train and 64 to validate on, in three runs, dead sensors in each."""
    folder = tmp_path_factory.mktemp("xec")
    settings = SynthSettings(
        events=192, validation=64, folder=str(folder), run_events=80, dead_per_run=5, clean=True
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train, val = ensure_synth(settings, say=lambda _: None)
    events = generate(settings, settings.events)
    torch.set_num_threads(threads)
    normalization = NormalizationSettings(**NORMALIZATIONS["synthetic"])
    return Synth(settings, train, val, events, normalization)
