"""The trainer: a readable loop in small files, on top of ``holdfast.watch``.

    from holdfast.training import Trainer

    def loss(model, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(model(x), y)

    result = Trainer(model, loss, train_set, validation_set).fit()

``holdfast train RECIPE`` does the same with a recipe: a settings class and a function that makes
model, loss and data of it. What a recipe needs is offered here, and imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_HOME = {
    "AverageSettings": "averaging",
    "CompileSettings": "compiling",
    "DataSettings": "loading",
    "Gathered": "tensors",
    "LogSettings": "channels",
    "MappedTensors": "tensors",
    "OptimizerSettings": "optimizers",
    "Place": "place",
    "ProfileSettings": "profiling",
    "Recipe": "recipes",
    "Result": "trainer",
    "ScheduleSettings": "schedules",
    "SeedSettings": "seeding",
    "StopSettings": "stopping",
    "Streamed": "streaming",
    "Task": "task",
    "TensorWriter": "tensors",
    "TrainSettings": "settings",
    "Trainer": "trainer",
    "ValidationSettings": "validation",
    "add_channel": "channels",
    "channel": "channels",
    "collate": "tensors",
    "largest_batch": "sizing",
    "load_weights": "weights",
    "resolve": "resolving",
    "run_recipe": "running",
    "saved_config": "resolving",
    "write_tensors": "tensors",
}
_CALLED = {"add_channel": "add", "channel": "get"}

if TYPE_CHECKING:
    from .averaging import AverageSettings
    from .channels import LogSettings
    from .channels import add as add_channel
    from .channels import get as channel
    from .compiling import CompileSettings
    from .loading import DataSettings
    from .optimizers import OptimizerSettings
    from .place import Place
    from .profiling import ProfileSettings
    from .recipes import Recipe
    from .resolving import resolve, saved_config
    from .running import run_recipe
    from .schedules import ScheduleSettings
    from .seeding import SeedSettings
    from .settings import TrainSettings
    from .sizing import largest_batch
    from .stopping import StopSettings
    from .streaming import Streamed
    from .task import Task
    from .tensors import Gathered, MappedTensors, TensorWriter, collate, write_tensors
    from .trainer import Result, Trainer
    from .validation import ValidationSettings
    from .weights import load_weights

__all__ = [
    "AverageSettings",
    "CompileSettings",
    "DataSettings",
    "Gathered",
    "LogSettings",
    "MappedTensors",
    "OptimizerSettings",
    "Place",
    "ProfileSettings",
    "Recipe",
    "Result",
    "ScheduleSettings",
    "SeedSettings",
    "StopSettings",
    "Streamed",
    "Task",
    "TensorWriter",
    "TrainSettings",
    "Trainer",
    "ValidationSettings",
    "add_channel",
    "channel",
    "collate",
    "largest_batch",
    "load_weights",
    "resolve",
    "run_recipe",
    "saved_config",
    "write_tensors",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from ..torch_version import check_torch

    check_torch()
    module = importlib.import_module(f".{_HOME[name]}", __name__)
    value = globals()[name] = getattr(module, _CALLED.get(name, name))
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
