"""What tests of the calorimeter share: events that are generated once, and runs on them."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from holdfast.training import resolve, run_recipe
from holdfast_models.xec.assembly import make_model, make_objective
from holdfast_models.xec.data.synth_files import ensure_synth
from holdfast_models.xec.data.synthetic import generate
from holdfast_models.xec.model.fillings import SolidAngleMean
from holdfast_models.xec.recipes import recipe_of
from holdfast_models.xec.settings import NORMALIZATIONS, NormalizationSettings, SynthSettings

TINY = [
    "model.encoder_dim=64", "train.data.batch=4", "train.data.workers=0", "train.device=cpu",
    "train.epochs=null", "train.steps=1", "train.validation.batches=1", "data.cache=none",
    "data.num_threads=1", "output.artifacts=false", "output.predictions=false", "output.onnx=null",
]  # fmt: skip
MORE = {
    "reg": ["model.hidden_dim=16", "tasks.timing.enabled=false", "tasks.uvwFI.enabled=false"],
    "mae": ["model.decoder_dim=8"],
    "inp": ["model.head_type=cross_attention", "model.cross_attn_hidden=8"],
}


class Synth(NamedTuple):
    """A small set: folders of files, and the events that are in them."""

    settings: SynthSettings
    train: str
    val: str
    events: dict[str, Tensor]
    """Those of ``train``."""
    normalization: NormalizationSettings


class Parts(NamedTuple):
    """A model of a run in training mode, and what is asked of it."""

    settings: Any
    model: nn.Module
    objective: Any


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Events that are in memory."""

    def __init__(self, events: dict[str, Tensor]) -> None:
        self.events = events

    def __len__(self) -> int:
        return len(self.events["run"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: one[index] for name, one in self.events.items()}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Small tensors: more threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shared_solid_angle() -> SolidAngleMean:
    return SolidAngleMean()


@pytest.fixture(autouse=True)
def computes_in_one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="session")
def synth(tmp_path_factory: pytest.TempPathFactory) -> Synth:
    """192 events to train and 64 to validate on, in three runs, dead sensors in each."""
    folder = tmp_path_factory.mktemp("xec")
    settings = SynthSettings(
        events=192, validation=64, folder=str(folder), run_events=80, dead_per_run=5, clean=True
    )
    train = val = str(folder)
    with one_thread():
        # The tests on a GPU take the events alone: its machine may have no uproot.
        if importlib.util.find_spec("uproot"):
            train, val = ensure_synth(settings, say=lambda _: None)
        events = generate(settings, settings.events)
    normalization = NormalizationSettings(**NORMALIZATIONS["synthetic"])
    return Synth(settings, train, val, events, normalization)


@pytest.fixture(scope="session")
def tiny(synth: Synth) -> list[str]:
    """The settings of the smallest runs on the events of the tests."""
    return [*TINY, f"data.train_path={synth.train}", f"data.val_path={synth.val}"]


@pytest.fixture(scope="session")
def settings_of(tiny: list[str]) -> Callable[..., Any]:
    """``settings_of("reg", "train.steps=2")``: of the smallest runs, and what differs."""

    def make(kind: str, *more: str) -> Any:
        return resolve(recipe_of(kind), None, "small", [*tiny, *MORE[kind], *more], "none")

    return make


@pytest.fixture(scope="session")
def run_of(
    tmp_path_factory: pytest.TempPathFactory, settings_of: Callable[..., Any], plugged_in: None
) -> Callable[[str], Path]:
    """The folder of a run of "reg", "mae" or "inp"; trained when it is first asked for."""
    made: dict[str, Path] = {}

    def run(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp("runs") / kind
            with one_thread(), contextlib.redirect_stdout(io.StringIO()):
                recipe, settings = recipe_of(kind), settings_of(kind)
                assert run_recipe(recipe, settings, run_dir=folder, quiet=True) == 0
            made[kind] = folder
        return made[kind]

    return run


@pytest.fixture
def parts_of(settings_of: Callable[..., Any]) -> Callable[..., Parts]:
    """``parts_of("mae", "model.mask_ratio=0.5")``: a fresh model and its objective."""

    def make(kind: str, *more: str) -> Parts:
        settings = settings_of(kind, *more)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = make_model(settings).train()
        return Parts(settings, model, make_objective(model, settings))

    return make


@pytest.fixture
def batch_of(synth: Synth) -> Callable[..., dict[str, Tensor]]:
    """``batch_of(4)``: the first events as files hold them."""

    def make(count: int, first: int = 0) -> dict[str, Tensor]:
        return {name: one[first : first + count].clone() for name, one in synth.events.items()}

    return make


@pytest.fixture
def rows_of(batch_of: Callable[..., dict[str, Tensor]]) -> Callable[..., Rows]:
    """``rows_of(4)``: the first events as a dataset."""

    def make(count: int, first: int = 0) -> Rows:
        return Rows(batch_of(count, first))

    return make
