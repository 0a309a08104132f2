"""Predictions: constant memory, the weights of the run, and the same file after an interruption."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import signal
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from holdfast.cli import main
from holdfast.config import Section, from_dict
from holdfast.errors import UsageError
from holdfast.training.data.gathered import Gathered
from holdfast.training.data.streaming import Streamed
from holdfast.training.data.tensor_files import PARTIAL, MappedTensors
from holdfast.training.device import Place
from holdfast.training.predicting import TensorPredictions, predict, predict_run
from holdfast.training.recipe_run import run_recipe
from holdfast.training.recipes import Recipe
from holdfast.training.settings import TrainSettings
from holdfast.training.task import Task

COUNT = 103


def settings(**given: Any) -> TrainSettings:
    plain = {"device": "cpu", "data": {"batch": 8, "workers": 0}}
    return from_dict({**plain, **given}, kind=TrainSettings)


def rows(count: int = COUNT) -> TensorDataset:
    return TensorDataset(torch.randn(count, 4, generator=torch.Generator().manual_seed(0)))


def task(**more: Any) -> Task:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))

    def answer(model: nn.Module, batch: tuple[Tensor]) -> Mapping[str, Tensor]:
        return {"y": model(batch[0]), "twice": 2 * batch[0].double()}

    given = {"predict": answer, "validation": rows(), **more}
    return Task(model=net, loss=lambda m, b: m(b[0]).mean(), train=rows(), **given)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Dies(TensorPredictions):
    """Is torn away after so many samples, like a process that is killed."""

    def __init__(self, folder: Path, after: int) -> None:
        super().__init__(folder)
        self.after = after

    def append(self, predictions: Mapping[str, Tensor], entries: int) -> None:
        super().append(predictions, entries)
        self.after -= entries
        if self.after <= 0:
            raise KeyboardInterrupt


def test_predictions_are_those_of_the_model_in_evaluation_mode(tmp_path: Path) -> None:
    own = task()
    own.model.train()
    done = predict(own, settings(), TensorPredictions(tmp_path / "out"))
    assert done.entries == COUNT and done.finished
    assert own.model.training and own.model[1].training  # type: ignore[index]
    found = MappedTensors(tmp_path / "out", form="dict")
    (x,) = rows().tensors
    assert len(found) == COUNT
    torch.testing.assert_close(found.mapped("y"), own.model[0](x).detach())  # type: ignore[index]
    assert torch.equal(found.mapped("twice"), 2 * x.double())
    assert not found.mapped("y").requires_grad


def test_the_precision_is_that_of_training(tmp_path: Path) -> None:
    predict(task(), settings(precision="bf16"), TensorPredictions(tmp_path / "out"))
    assert MappedTensors(tmp_path / "out").kinds["y"][0] is torch.bfloat16


@pytest.mark.parametrize(("after", "kept"), [(1, 0), (40, 24), (96, 72)])
def test_an_interrupted_writing_goes_on_to_the_same_file(
    tmp_path: Path, after: int, kept: int
) -> None:
    predict(task(), settings(), TensorPredictions(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        predict(task(), settings(), Dies(tmp_path / "torn", after), chunk=24)
    with pytest.raises(UsageError, match="no complete folder"):
        MappedTensors(tmp_path / "torn")
    done = predict(task(), settings(), TensorPredictions(tmp_path / "torn"), chunk=24)
    assert done.before == kept
    assert files(tmp_path / "torn") == files(tmp_path / "whole")


def test_what_was_begun_with_something_else_is_refused(tmp_path: Path) -> None:
    writer = TensorPredictions(tmp_path, {"weights": "a", "batch": 8})
    writer.append({"y": torch.zeros(8)}, 8)
    writer.keep()
    writer.close(finished=False)
    with pytest.raises(UsageError, match="begun with another weights;"):
        TensorPredictions(tmp_path, {"weights": "b", "batch": 8})
    TensorPredictions(tmp_path, {"weights": "a", "batch": 8}).close(finished=True)
    with pytest.raises(UsageError, match="holds predictions already"):
        TensorPredictions(tmp_path, {"weights": "a", "batch": 8})
    TensorPredictions(tmp_path, {"weights": "b"}, overwrite=True).close(finished=False)


def test_a_range_of_entries_is_that_part_of_the_whole(tmp_path: Path) -> None:
    predict(task(), settings(), TensorPredictions(tmp_path / "whole"))
    predict(task(), settings(), TensorPredictions(tmp_path / "part"), entries=(40, 80))
    whole, part = MappedTensors(tmp_path / "whole"), MappedTensors(tmp_path / "part")
    assert len(part) == 40 and torch.equal(part.mapped("twice"), whole.mapped("twice")[40:80])
    with pytest.raises(UsageError, match="has 103 samples"):
        predict(task(), settings(), TensorPredictions(tmp_path / "no"), entries=(0, 104))


def test_a_stream_is_predicted_and_gone_on_with_too(tmp_path: Path) -> None:
    (x,) = rows().tensors
    shards = [TensorDataset(x[:50]), TensorDataset(x[50:])]
    predict(task(), settings(), TensorPredictions(tmp_path / "whole"))
    stream = {"data": Streamed(shards), "chunk": 16}
    with pytest.raises(KeyboardInterrupt):
        predict(task(), settings(), Dies(tmp_path / "torn", 40), **stream)
    done = predict(task(), settings(), TensorPredictions(tmp_path / "torn"), **stream)
    assert done.before == 32 and done.entries == COUNT
    assert files(tmp_path / "torn") == files(tmp_path / "whole")


class RangeFile:
    """A shard that is read in ranges; notes which samples were read."""

    def __init__(self, x: Tensor, first: int) -> None:
        self.x, self.first = x, first
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor]:
        self.read.append(self.first + index)
        return (self.x[index],)

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        self.read += [self.first + index for index in indices]
        return Gathered((self.x[indices[0] : indices[-1] + 1].clone(),), len(indices))


@pytest.mark.parametrize("chunk", [None, 7, 1000])
@pytest.mark.parametrize("entries", [(41, 67), (0, 1), (50, None), (103, None), (3, 103)])
def test_a_part_of_a_stream_is_read_alone(
    tmp_path: Path, entries: tuple[int, int | None], chunk: int | None
) -> None:
    (x,) = rows().tensors
    first, last = entries[0], entries[1] if entries[1] is not None else COUNT
    shards = [RangeFile(x[:50], 0), RangeFile(x[50:], 50)]
    # Asked for workers, and to shuffle, it is in order all the same.
    how = settings(data={"batch": 8, "workers": 2, "chunk": chunk})
    data = Streamed(shards, shuffle=True)
    writer = TensorPredictions(tmp_path / "out")
    if first == last:
        with pytest.raises(UsageError, match="nothing was written"):
            predict(task(), how, writer, data=data, entries=entries)
    else:
        done = predict(task(), how, writer, data=data, entries=entries)
        assert done.entries == last - first
        found = MappedTensors(tmp_path / "out").mapped("twice")
        assert torch.equal(found, 2 * x[first:last].double())
    assert [number for shard in shards for number in shard.read] == list(range(first, last))


def test_an_interrupted_part_of_a_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    (x,) = rows().tensors
    how = settings(data={"batch": 8, "workers": 0, "chunk": 10})

    def part(writer: TensorPredictions) -> list[int]:
        shards = [RangeFile(x[:50], 0), RangeFile(x[50:], 50)]
        with contextlib.suppress(KeyboardInterrupt):
            predict(task(), how, writer, data=Streamed(shards), entries=(21, 90), chunk=16)
        return [number for shard in shards for number in shard.read]

    assert part(TensorPredictions(tmp_path / "whole")) == list(range(21, 90))
    part(Dies(tmp_path / "torn", 40))
    assert part(TensorPredictions(tmp_path / "torn")) == list(range(21 + 32, 90))
    assert files(tmp_path / "torn") == files(tmp_path / "whole")


def test_entries_beyond_a_stream_are_refused(tmp_path: Path) -> None:
    writer = TensorPredictions(tmp_path / "out")
    with pytest.raises(UsageError, match="has 103 samples"):
        predict(task(), settings(), writer, data=Streamed([rows()]), entries=(0, 104))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_samples(tmp_path: Path) -> None:
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0

    class Endless(Dataset[Any]):
        def __len__(self) -> int:
            return 4000

        def __getitem__(self, index: int) -> Tensor:
            return torch.full((4,), float(index))

    def answer(model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        nonlocal most
        found = model(batch)
        alive.add(found)
        most = max(most, len(alive))
        return {"y": found}

    gc.collect()
    done = predict(
        task(validation=Endless(), predict=answer),
        settings(data={"batch": 8, "workers": 0}),
        TensorPredictions(tmp_path / "out"),
    )
    assert done.entries == 4000 and len(MappedTensors(tmp_path / "out")) == 4000
    assert most <= 2  # this batch's, and the last one's while it is replaced


def test_a_task_without_predictions_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no predict"):
        predict(task(predict=None), settings(), TensorPredictions(tmp_path / "out"))


# ------------------------------------------------------------------ the command


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_PLUGINS", "none")
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    values = ["model.hidden=16", f"text={text}", "length=16", "train.steps=6", "train.device=cpu"]
    values += ["train.data.workers=0", "train.data.batch=8", "train.average.decay=0.5"]
    words = [word for value in values for word in ("--set", value)]
    assert main(["train", "demo", "--quiet", "--run-dir", str(tmp_path / "run"), *words]) == 0
    return tmp_path / "run"


def test_the_command_predicts_with_the_averaged_weights_of_a_run(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(trained)]) == 0
    out = trained / "predictions" / "validation"
    found = MappedTensors(out, form="dict")
    assert str(out) in capsys.readouterr().out
    assert set(found.kinds) == {"code", "probability"}
    from holdfast.training import Place, load_weights, resolve, saved_config
    from holdfast.training.demo import RECIPE
    from holdfast.training.demo import predict as answer

    built = RECIPE.build(resolve(RECIPE, saved_config(trained)), Place(torch.device("cpu")))
    best = load_weights(built.model, trained, averaged=True)
    with torch.no_grad():
        first = answer(built.model.eval(), torch.stack([built.validation[i] for i in range(8)]))  # type: ignore[index]
    torch.testing.assert_close(found.mapped("probability")[:8], first["probability"])
    assert json.loads((out / "tensors.json").read_text())["noted"]["weights"] == best.name
    assert main(["predict", str(trained)]) == 2  # it is there already


def test_the_command_goes_on_after_ctrl_c(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    assert main(["predict", str(trained), "--out", str(whole)]) == 0
    append = TensorPredictions.append

    def interrupted(self: Any, predictions: Mapping[str, Tensor], entries: int) -> None:
        append(self, predictions, entries)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TensorPredictions, "append", interrupted)
    assert main(["predict", str(trained), "--out", str(torn)]) == 130
    assert (torn / PARTIAL).exists()
    monkeypatch.setattr(TensorPredictions, "append", append)
    assert main(["predict", str(trained), "--out", str(torn)]) == 0
    assert files(torn) == files(whole)


@pytest.mark.parametrize("entries", ["7", "b:a", "9:3", "-2:3"])
def test_an_impossible_range_is_one_line(
    trained: Path, entries: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(trained), f"--entries={entries}"]) == 2
    assert "FIRST:LAST" in capsys.readouterr().err


class Clock:
    """A state of the task that its predictions depend on."""

    def __init__(self) -> None:
        self.step = 0

    def stepped(self, step: int) -> None:
        self.step = step

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.step = state["step"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Section):
    train: TrainSettings = dataclasses.field(default_factory=settings)


def build(given: Own, place: Place) -> Task:
    clock = Clock()

    def steps(model: nn.Module, batch: tuple[Tensor]) -> Mapping[str, Tensor]:
        return {"step": torch.full((len(batch[0]),), clock.step)}

    return task(predict=steps, state={"clock": clock}, stepped=clock.stepped)


def test_the_state_of_the_task_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    recipe = Recipe(name="mine", summary="a test", settings=Own, build=build)
    given = Own(train=settings(steps=6))
    assert run_recipe(recipe, given, run_dir=tmp_path / "run", quiet=True) == 0
    out = tmp_path / "out"
    predict_run(recipe, given, tmp_path / "run", lambda what: TensorPredictions(out, what))
    assert set(MappedTensors(out).mapped("step").tolist()) == {6}
