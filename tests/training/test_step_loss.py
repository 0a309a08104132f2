"""Replayed passes: the same is trained, to the bit, and what a graph would freeze is refused.

There is no GPU here: a recorded pass is computed anew from its own copies of inputs and parameters.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from holdfast.cli import main
from holdfast.training import cuda_graphs, step_loss
from holdfast.training.cuda_graphs import Captured, Graphs, twins
from holdfast.training.device import Place
from holdfast.training.state_before import StateBefore
from holdfast.watching.watch import Watch

from .test_trainer import Seen, data, loss, model, settings
from .test_trainer import fit as fit_trainer

EXAMPLES = Path(__file__).parents[2] / "examples"


class Recorded(Captured):
    """What a GPU would replay, without one."""

    def __init__(self, function: Any, inputs: Any, modules: Any, *, carries: int) -> None:
        self._function, self._modules = function, modules
        super().__init__(function, inputs, modules, carries=carries)

    def _record(self, function: Any, parameters: Sequence[nn.Parameter]) -> None:
        self._needed = [one.requires_grad for one in (*self._inputs, *parameters)]
        self._forward: Any = SimpleNamespace(replay=self._run)
        before = StateBefore(self._modules[0])
        self._run()
        before.put_back()  # a capture computes nothing

    def _run(self) -> None:
        with torch.enable_grad(), twins(self._modules) as parameters:
            out = self._function(*self._inputs)
        wanted = [one for one in (*self._inputs, *parameters) if one.requires_grad]
        self._now, self._results = (out, wanted), [one.detach() for one in out]

    def backward(self, seeds: Sequence[Tensor]) -> list[Tensor | None]:
        out, wanted = self._now
        found = iter(
            torch.autograd.grad(out[: self.carries], wanted, list(seeds), allow_unused=True)
        )
        return [next(found) if needed else None for needed in self._needed]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the run were on a GPU."""
    monkeypatch.setattr(cuda_graphs, "Captured", Recorded)
    monkeypatch.setattr(cuda_graphs, "_why_not_replayed", lambda inputs, parameters: None)
    monkeypatch.setattr(step_loss, "_why_never", lambda compiled, place: "")


def fit(
    path: Path, net: nn.Module, *, graph: bool, of: Callable[..., Any] = loss, **more: Any
) -> tuple[list[float], list[str]]:
    """Train, with batches of two sizes; weights and buffers, and what was said of graphs."""
    seen, given = Seen(), more.pop("train", data(60))
    how = settings(epochs=2, graph=graph, **more)
    fit_trainer(path, how, net, progress=seen, loss=of, train=given)
    state = [value for _, one in sorted(net.state_dict().items()) for value in one.flatten()]
    return torch.stack([one.double() for one in state]).tolist(), [
        line for line in seen.lines if line.startswith("graph:")
    ]


def both(tmp_path: Path, of: Callable[..., Any], net: Callable[[], nn.Module], **more: Any) -> str:
    """The same run with and without graphs; what was said."""
    plain, silent = fit(tmp_path / "plain", net(), graph=False, of=of, **more)
    replayed, said = fit(tmp_path / "graph", net(), graph=True, of=of, **more)
    assert replayed == plain and silent == [] and len(said) == 1
    return said[0]


def beside(net: nn.Module, batch: Any) -> Any:
    """With numbers beside the loss: a tensor, and one that is none."""
    found = loss(net, batch)
    return found, {"twice": 2 * found, "samples": len(batch[0])}


class Normed(nn.Sequential):
    """Has buffers that a pass changes, and a recurrent part that keeps a list of its weights."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GRU(8, 6), nn.Linear(6, 1))

    def forward(self, input: Tensor) -> Tensor:
        return self[3](self[2](self[1](self[0](input)))[0])


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("more", [{}, {"accumulate": 3, "average": {"decay": 0.9}}], ids=str)
@pytest.mark.parametrize("net", [model, Normed], ids=["plain", "buffers"])
def test_a_replayed_run_trains_the_same_weights(tmp_path: Path, net: Any, more: Any) -> None:
    said = both(tmp_path, beside, net, **more)
    assert said == "graph: forward, loss and backward are replayed as CUDA graphs"


@pytest.mark.usefixtures("recorded")
def test_a_bad_batch_does_not_decide(tmp_path: Path) -> None:
    rows = data(60)
    rows.tensors[0][17] = torch.nan  # the third batch, which would be captured
    said = both(tmp_path, beside, model, train=rows, data={"shuffle": False})
    assert said == "graph: forward, loss and backward are replayed as CUDA graphs"


@pytest.mark.usefixtures("recorded")
def test_a_recipe_of_ones_own_is_replayed_by_one_setting(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small = ["width=8", "layers=1", "train.steps=5", "train.device=cpu", "train.data.workers=0"]
    given = [f"--set={one}" for one in (*small, "train.graph=true")]
    path = str(EXAMPLES / "own_recipe.py")
    assert main(["train", path, "--run-dir", str(tmp_path / "run"), *given]) == 0
    assert "graph: forward, loss and backward are replayed as CUDA graphs" in capfd.readouterr().err


def test_without_a_gpu_one_line_says_so_and_nothing_changes(tmp_path: Path) -> None:
    assert both(tmp_path, loss, model) == "graph: the run is on cpu: passes run as they are"


def with_kept_weights() -> nn.Module:
    net = model()
    net.kept = (net[0].weight,)  # type: ignore[index, assignment]
    return net


def drawing(net: nn.Module, batch: Any) -> Tensor:
    return loss(net, batch) * (1 + 0.1 * random.random())


def counting(net: nn.Module, batch: Any, numbers: Any = itertools.count()) -> Any:  # noqa: B008
    return loss(net, batch), {"number": next(numbers)}


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    ("of", "why"),
    [(drawing, "random numbers on the host"), (counting, "number beside the loss")],
    ids=["random", "counter"],
)
def test_what_a_graph_would_freeze_is_refused(tmp_path: Path, of: Any, why: str) -> None:
    said = both(tmp_path, of, model)
    assert why in said and said.endswith("passes run as they are")


@pytest.mark.usefixtures("recorded")
def test_a_gradient_that_does_not_come_by_the_model_is_refused(tmp_path: Path) -> None:
    def apart(net: Any, batch: Any) -> Tensor:
        return (batch[0] @ net.kept[0].T).square().mean()

    said = both(tmp_path, apart, with_kept_weights)
    assert "the gradient of 0.weight does not come by the model" in said


@pytest.mark.usefixtures("recorded")
def test_a_batch_with_words_and_a_capture_that_fails_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(x, y, "a name") for x, y in data(16)]
    said = both(
        tmp_path,
        lambda net, batch: loss(net, batch[:2]),
        model,
        train=DataLoader(rows, batch_size=8),  # type: ignore[arg-type]
    )
    assert "a batch holds a str" in said

    def refuse(*given: Any, **how: Any) -> None:
        raise RuntimeError("no graphs today")

    monkeypatch.setattr(cuda_graphs, "Captured", refuse)
    said = both(tmp_path / "again", loss, model)
    assert said.startswith("graph: it could not be captured: RuntimeError: no graphs today")


def test_twins_share_memory_and_are_gone_afterwards() -> None:
    net = Normed()
    own = list(net.parameters())
    with twins([net]) as others:
        assert not {id(one) for one in own} & {id(one) for one in net.parameters()}
        assert [one.data_ptr() for one in own] == [one.data_ptr() for one in others]
        net(torch.ones(3, 4)).sum().backward()
    assert all(one.grad is None for one in own)
    assert all(one.grad is not None for one in others)
    assert all(a is b for a, b in zip(own, net.parameters(), strict=True))
    assert net[2]._flat_weights[0] is net[2].weight_ih_l0  # type: ignore[union-attr]


def test_a_capture_that_fails_leaves_the_generator_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_back: list[Any] = []
    generator = SimpleNamespace(clone_state=lambda: "before", graphsafe_set_state=put_back.append)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    monkeypatch.setattr(cuda_graphs, "_FAILED", kept := list[Any]())
    with cuda_graphs._can_fail(torch.device("cuda"), "one"):
        pass
    assert not put_back and not kept
    with pytest.raises(RuntimeError), cuda_graphs._can_fail(torch.device("cuda"), "one"):
        raise RuntimeError("operation not permitted")
    assert put_back == ["before"] and kept == ["one"]


@pytest.mark.usefixtures("recorded")
def test_graphs_of_a_captured_pass_are_no_forgotten_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[int] = []
    monkeypatch.setattr(Watch, "graphs_are_wanted", lambda self: reported.append(1))
    fit(tmp_path / "plain", model(), graph=False)
    assert not reported
    fit(tmp_path / "graph", model(), graph=True)
    assert len(reported) == 16  # two epochs of eight


def test_a_pass_on_a_cpu_runs_as_it_is() -> None:
    graphs, net = Graphs(), model()
    assert graphs.run(lambda x: (net(x),), [torch.ones(2, 4)], [net], carries=1) is None
    assert graphs.reason == "it is not on a GPU" and not graphs.failed
    place, eager = Place(torch.device("cuda"), world=2), None
    assert step_loss._why_never(eager, place).startswith("2 ranks")  # type: ignore[arg-type]
