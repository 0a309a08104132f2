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
    "BandSettings": "loop.health",
    "CompileSettings": "compiling",
    "DataSettings": "data.loading",
    "Deprecated": "other_names",
    "Forecast": "forecast",
    "Difference": "differences",
    "Gathered": "data.gathered",
    "Graphs": "cuda_graphs",
    "HealthSettings": "loop.health",
    "Ignored": "other_names",
    "LogSettings": "channels",
    "MappedTensors": "data.tensor_files",
    "OptimizerSettings": "optimizers",
    "Place": "device",
    "PredictionWriter": "predicting",
    "ProfileSettings": "loop.profiling",
    "Recipe": "recipes",
    "Result": "trainer",
    "ScheduleSettings": "schedules",
    "SeedSettings": "seeding",
    "StopSettings": "loop.stopping",
    "Streamed": "data.streaming",
    "Task": "task",
    "TensorPredictions": "predicting",
    "TensorWriter": "data.tensor_files",
    "TrainSettings": "settings",
    "Trainer": "trainer",
    "ValidationSettings": "loop.validation",
    "add_channel": "channels",
    "channel": "channels",
    "collate": "data.gathered",
    "free_memory": "batch_size.memory",
    "kept_bytes": "forecast",
    "largest_batch": "batch_size.finding",
    "load_weights": "weights",
    "predict": "predicting",
    "read_weights": "weights",
    "resolve": "resolving",
    "run_recipe": "recipe_run",
    "saved_config": "resolving",
    "step_seconds": "forecast",
    "write_tensors": "data.tensor_files",
}
_CALLED = {"add_channel": "add", "channel": "get"}

if TYPE_CHECKING:
    from .averaging import AverageSettings
    from .batch_size.finding import largest_batch
    from .batch_size.memory import free_memory
    from .channels import LogSettings
    from .channels import add as add_channel
    from .channels import get as channel
    from .compiling import CompileSettings
    from .cuda_graphs import Graphs
    from .data.gathered import Gathered, collate
    from .data.loading import DataSettings
    from .data.streaming import Streamed
    from .data.tensor_files import MappedTensors, TensorWriter, write_tensors
    from .device import Place
    from .differences import Difference
    from .forecast import Forecast, kept_bytes, step_seconds
    from .loop.health import BandSettings, HealthSettings
    from .loop.profiling import ProfileSettings
    from .loop.stopping import StopSettings
    from .loop.validation import ValidationSettings
    from .optimizers import OptimizerSettings
    from .other_names import Deprecated, Ignored
    from .predicting import PredictionWriter, TensorPredictions, predict
    from .recipe_run import run_recipe
    from .recipes import Recipe
    from .resolving import resolve, saved_config
    from .schedules import ScheduleSettings
    from .seeding import SeedSettings
    from .settings import TrainSettings
    from .task import Task
    from .trainer import Result, Trainer
    from .weights import load_weights, read_weights

__all__ = [
    "AverageSettings",
    "BandSettings",
    "CompileSettings",
    "DataSettings",
    "Deprecated",
    "Difference",
    "Forecast",
    "Gathered",
    "Graphs",
    "HealthSettings",
    "Ignored",
    "LogSettings",
    "MappedTensors",
    "OptimizerSettings",
    "Place",
    "PredictionWriter",
    "ProfileSettings",
    "Recipe",
    "Result",
    "ScheduleSettings",
    "SeedSettings",
    "StopSettings",
    "Streamed",
    "Task",
    "TensorPredictions",
    "TensorWriter",
    "TrainSettings",
    "Trainer",
    "ValidationSettings",
    "add_channel",
    "channel",
    "collate",
    "free_memory",
    "kept_bytes",
    "largest_batch",
    "load_weights",
    "predict",
    "read_weights",
    "resolve",
    "run_recipe",
    "saved_config",
    "step_seconds",
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
