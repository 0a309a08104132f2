"""A checkpoint as the state dicts that plain PyTorch takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import holdfast
from holdfast.checkpoint.file import file_name, save
from holdfast.checkpoint.sharded.saving import save as save_over_ranks
from holdfast.checkpoint.training_state import TrainingState
from holdfast.checkpoint.tree import flatten
from holdfast.errors import CheckpointError


class Tied(nn.Module):
    """Everything in which ``state_dict`` and a checkpoint differ."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.again = self.block
        self.inner = nn.ModuleDict({"deep": self.block[0]})
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.full((2,), -torch.inf), persistent=False)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("later", None)
        self.noted = 0

    def get_extra_state(self) -> Any:
        return {"noted": self.noted}

    def set_extra_state(self, state: Any) -> None:
        self.noted = state["noted"]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.again(self.embed(tokens)))


def written(folder: Path, state: TrainingState, **meta: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    skeleton, tensors = flatten(state.state())
    return save(folder / file_name(7), skeleton, tensors, {"step": 7, **meta}).path


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.arange(5)).square().mean().backward()
        optimizer.step()


def test_tied_weights_shared_modules_and_buffers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tied()
    groups = [
        {"params": [model.embed.weight], "lr": 0.1},
        {"params": list(model.block.parameters())},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    trained(model, optimizer)
    model.noted = 9
    path = written(tmp_path, TrainingState({"Tied": model}, [optimizer]))

    state = holdfast.load_checkpoint(path)
    assert state["model"].keys() == model.state_dict().keys()
    other = Tied()
    other.load_state_dict(state["model"])  # strict
    assert other.noted == 9
    again = torch.optim.AdamW(
        [
            {"params": [other.embed.weight]},
            {"params": list(other.block.parameters())},
        ],
        lr=0.5,
    )
    again.load_state_dict(state["optimizer"])
    for one, its_optimizer in ((model, optimizer), (other, again)):
        trained(one, its_optimizer)
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            assert torch.equal(value, other.state_dict()[name]), name


def test_the_names_are_those_of_the_module_inside_its_wrappers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    wrapped = nn.DataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    path = written(tmp_path, TrainingState({"DataParallel": wrapped}, [optimizer]))
    assert holdfast.load_checkpoint(path)["model"].keys() == model.state_dict().keys()


def test_weights_that_two_models_share(tmp_path: Path) -> None:
    encoder = nn.Linear(2, 2)
    one, other = nn.Sequential(encoder, nn.Linear(2, 1)), nn.Sequential(encoder)
    path = written(tmp_path, TrainingState({"one": one, "other": other}, []))
    models = holdfast.load_checkpoint(path)["models"]
    assert torch.equal(models["other"]["0.weight"], encoder.weight)
    assert models["other"].keys() == other.state_dict().keys()


def test_averages_schedules_scalers_and_the_step(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    average = torch.optim.swa_utils.AveragedModel(model)
    state = TrainingState({"m": model}, [optimizer], schedulers=[schedule], ema={"ema": average})
    loaded = holdfast.load_checkpoint(written(tmp_path, state))
    average.load_state_dict(loaded["ema"]["ema"])
    schedule.load_state_dict(loaded["scheduler"])
    assert loaded["step"] == 7 and loaded["scaler"] is None


def test_a_watch_counts_its_steps(tmp_path: Path) -> None:
    state = TrainingState({"m": nn.Linear(1, 1)}, [])
    assert holdfast.load_checkpoint(written(tmp_path, state, steps=7))["step"] == 6


def test_a_folder_means_its_newest_good_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no good checkpoint"):
        holdfast.load_checkpoint(tmp_path)
    model = nn.Linear(1, 1)
    path = written(tmp_path / "run" / "checkpoints", TrainingState({"m": model}, []))
    for given in (path, path.parent, path.parents[1], str(path.with_suffix(".json"))):
        assert torch.equal(holdfast.load_checkpoint(given)["model"]["weight"], model.weight)


def test_a_checkpoint_over_ranks_is_loaded_whole(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    tree = TrainingState({"model": model}, [optimizer]).state()
    saved = save_over_ranks(tree, 7, folder=tmp_path)
    for path in (saved.path, tmp_path):
        state = holdfast.load_checkpoint(path)
        nn.Linear(4, 2).load_state_dict(state["model"])
        assert all(v.equal(state["model"][k]) for k, v in model.state_dict().items())
        torch.optim.Adam(model.parameters()).load_state_dict(state["optimizer"])
        assert state["step"] == 7
