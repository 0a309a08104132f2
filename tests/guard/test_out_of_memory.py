"""Out of memory in unmodified loops, in this process: what runs out is decided by the rows."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from holdfast.boot import patches
from holdfast.guard.engine import Engine
from holdfast.records import RecordError, read
from holdfast.recovery import out_of_memory

MakeEngine = Callable[..., Engine]
ROWS = 16
LIMITS: dict[str, int] = {}


class Fits(torch.autograd.Function):
    """Runs out of memory where there are more rows than fit."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        _ask("forward", x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        _ask("backward", gradient)
        return gradient.clone()


def _ask(phase: str, x: Tensor) -> None:
    if len(x) > LIMITS.get(phase, 1 << 30):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Fits.apply(torch.tanh(self.first(x))))


class Other(nn.Module):
    """Belongs to no optimizer."""

    def forward(self, x: Tensor) -> Tensor:
        return Fits.apply(x)


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    LIMITS.clear()
    yield
    LIMITS.clear()


def loader(batches: int = 6) -> DataLoader[Any]:
    made = torch.Generator().manual_seed(3)
    x = torch.randn(batches * ROWS, 4, generator=made)
    y = torch.randint(0, 3, (batches * ROWS,), generator=made)
    return DataLoader(TensorDataset(x, y), ROWS, shuffle=True, generator=made)


class Loop:
    """An ordinary loop, and what it saw."""

    def __init__(self, *, accumulate: int = 1, scaler: bool = False, adam: bool = False) -> None:
        torch.manual_seed(0)
        self.model = Net()
        kind: Any = torch.optim.Adam if adam else torch.optim.SGD
        self.optimizer = kind(self.model.parameters(), lr=0.1)
        self.accumulate = accumulate
        self.scaler = torch.amp.GradScaler("cpu", enabled=scaler)
        self.gradients: list[list[Tensor]] = []
        self.losses: list[float] = []

    def run(self, batches: Any = None) -> Loop:
        batches = loader() if batches is None else batches
        steps = 6 // self.accumulate
        schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=steps)
        for number, (x, y) in enumerate(batches):
            logits = self.model(x)
            logits /= 2.0
            loss = functional.cross_entropy(logits, y) / self.accumulate
            self.scaler.scale(loss).backward()
            self.losses.append(loss.item())
            if (number + 1) % self.accumulate == 0:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
                schedule.step()
        return self

    @property
    def weights(self) -> list[Tensor]:
        return [p.detach() for p in self.model.parameters()]


def same(one: Loop, other: Loop) -> None:
    for a, b in zip(one.weights, other.weights, strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


def events(engine: Engine, kind: str) -> list[dict[str, Any]]:
    found = engine.memory.of_kind(kind)  # type: ignore[attr-defined]
    assert not any(isinstance(read(kind, data), RecordError) for data in found)
    return found


@pytest.mark.parametrize("device_path", [False, True])
@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_the_loop_ends_where_it_would_with_enough_memory(
    make_engine: MakeEngine, phase: str, accumulate: int, scaler: bool, device_path: bool
) -> None:
    make_engine(device_path=device_path)
    wanted = Loop(accumulate=accumulate, scaler=scaler).run()
    engine = make_engine(device_path=device_path)
    LIMITS[phase] = 5
    found = Loop(accumulate=accumulate, scaler=scaler).run()
    same(found, wanted)
    assert not events(engine, "holdfast_error")
    split = events(engine, "batch_split")[-1]
    assert split["parts"] == 4 and split["exact"] and split["samples"] == ROWS
    lost = events(engine, "lost_step")
    # A window that was lost is made again as a whole, so that its batches stay together.
    assert [one["batches"] for one in lost] == ([accumulate] if phase == "backward" else [])
    assert len(found.losses) == 6 + (accumulate if phase == "backward" else 0)


def test_both_passes_at_once_and_a_size_that_shrinks(make_engine: MakeEngine) -> None:
    make_engine()
    wanted = Loop(adam=True).run()
    engine = make_engine()
    LIMITS.update(forward=9, backward=3)
    same(Loop(adam=True).run(), wanted)
    assert [split["parts"] for split in events(engine, "batch_split")] == [8]
    assert not events(engine, "lost_step")  # the boundary was there when backward ran out


def test_memory_that_shrinks_later_is_met_by_smaller_parts(make_engine: MakeEngine) -> None:
    make_engine()
    wanted = Loop().run()
    engine = make_engine()
    LIMITS["forward"] = 9

    def tighter() -> Iterator[Any]:
        for number, batch in enumerate(loader()):
            LIMITS["backward"] = 9 if number < 3 else 2
            yield batch

    same(Loop().run(tighter()), wanted)
    assert [split["parts"] for split in events(engine, "batch_split")] == [2, 8]


def test_without_a_loader_the_step_is_skipped(make_engine: MakeEngine) -> None:
    engine = make_engine()
    LIMITS["backward"] = 5
    batches = [(torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,))) for _ in range(6)]
    loop = Loop().run(batches)
    (lost,) = events(engine, "lost_step")
    assert len(loop.losses) == 6 and lost["batches"] == 0
    assert lost["file"] and lost["line"]
    assert all(torch.isfinite(w).all() for w in loop.weights)


def test_evaluation_is_split_too(make_engine: MakeEngine) -> None:
    engine = make_engine()
    loop = Loop()
    x = torch.randn(ROWS, 4)
    with torch.no_grad():
        wanted = loop.model.eval()(x)
        LIMITS["forward"] = 5
        found = loop.model(x)
    torch.testing.assert_close(found, wanted)
    engine.close()
    (split,) = events(engine, "batch_split")
    assert split["phase"] == "evaluation"


@pytest.mark.parametrize("where", ["loss", "optimizer", "off", "one sample", "other model"])
def test_what_cannot_be_survived_goes_through(make_engine: MakeEngine, where: str) -> None:
    engine = make_engine(split=where != "off")
    loop = Loop()
    if where == "loss":
        with pytest.raises(torch.OutOfMemoryError):
            for x, _ in loader():
                Fits.apply(loop.model(x)) if LIMITS else LIMITS.update(forward=5)
                _ask("forward", x)
    elif where == "optimizer":
        hook = loop.optimizer.register_step_post_hook(lambda *_: _ask("forward", torch.zeros(9)))
        LIMITS["forward"] = 8
        with pytest.raises(torch.OutOfMemoryError):
            loop.run()
        hook.remove()
    else:
        LIMITS["forward"] = 0 if where == "one sample" else 5
        model = Other() if where == "other model" else loop.model
        with pytest.raises(torch.OutOfMemoryError, match="GiB"):
            model(torch.randn(ROWS, 4))
    assert not events(engine, "holdfast_error") and not events(engine, "lost_step")


def test_a_backward_that_fails_beyond_the_model_is_tried_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    loop = Loop()
    LIMITS["backward"] = 5
    with pytest.raises(torch.OutOfMemoryError):
        for x, y in loader():
            loss = functional.cross_entropy(Fits.apply(loop.model.first(x))[:, :3], y)
            loss.backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    assert len(events(engine, "lost_step")) == 1


def test_a_call_that_changes_its_argument_is_not_made_again(make_engine: MakeEngine) -> None:
    class Edits(Net):
        def forward(self, x: Tensor) -> Tensor:
            x.mul_(2)
            return super().forward(x)

    make_engine()
    model = Edits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    LIMITS["forward"] = 5
    x = torch.ones(ROWS, 4)
    with pytest.raises(torch.OutOfMemoryError):
        model(x)
    assert torch.equal(x, torch.full((ROWS, 4), 2.0)) and optimizer is not None


def test_several_ranks_split_forward_and_let_backward_through(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_engine()
    wanted = Loop().run()
    make_engine()
    monkeypatch.setattr(out_of_memory, "ranks", lambda: 2)
    LIMITS["forward"] = 5
    same(Loop().run(), wanted)
    make_engine()
    LIMITS.clear()
    LIMITS["backward"] = 5
    with pytest.raises(torch.OutOfMemoryError):
        Loop().run()


def test_a_model_inside_of_its_own_class_is_split_as_a_whole(make_engine: MakeEngine) -> None:
    engine = make_engine()
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Sequential(Net()))
    torch.optim.SGD(model.parameters(), lr=0.1)
    LIMITS["forward"] = 5
    assert model(torch.randn(ROWS, 4)).shape == (ROWS, 3)
    engine.close()
    assert [split["parts"] for split in events(engine, "batch_split")] == [4]


def test_models_carry_nothing(make_engine: MakeEngine) -> None:
    make_engine()
    LIMITS["forward"] = 5
    loop = Loop().run()
    for model in (loop.model, copy.deepcopy(loop.model), pickle.loads(pickle.dumps(loop.model))):
        assert set(vars(model)) == set(vars(nn.Module())) | {"training"}
        assert "holdfast" not in repr(model)
    saved = io.BytesIO()
    torch.save(loop.model, saved)
    assert b"holdfast" not in saved.getvalue()
    assert "__call__" in vars(Net)
    patches.uninstall()
    assert "__call__" not in vars(Net) and "__call__" not in vars(nn.Sequential)


@pytest.mark.parametrize("first", ["optimizer", pytest.param("compile", marks=pytest.mark.slow)])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_compiled_models(make_engine: MakeEngine, phase: str, first: str) -> None:
    """What fits is asked by an operation of its own, which is compiled with the model."""
    make_engine()
    wanted = _compiled(first)
    engine = make_engine()
    LIMITS[phase] = 5
    found = _compiled(first)
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()
    assert [split["parts"] for split in events(engine, "batch_split")] == [4]
    assert len(events(engine, "lost_step")) == (phase == "backward")


def _compiled(first: str) -> list[Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Compilable()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1) if first == "optimizer" else None
    model: Any = torch.compile(plain, backend="aot_eager")
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader(3):
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in plain.parameters()]


@torch.library.custom_op("holdfast_tests::fits", mutates_args=())
def fits(x: Tensor, phase: str) -> Tensor:
    _ask(phase, x)
    return x.clone()


@fits.register_fake
def _(x: Tensor, phase: str) -> Tensor:
    return torch.empty_like(x)


fits.register_autograd(lambda ctx, gradient: (fits(gradient, "backward"), None))


class Compilable(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(fits(torch.tanh(self.first(x)), "forward"))
