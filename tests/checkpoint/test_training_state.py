"""The whole state of a run: taken without a copy, put back bit for bit or refused."""

from __future__ import annotations

import copy
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

from holdfast.checkpoint import scaler_state
from holdfast.checkpoint.training_state import TrainingState, has_state
from holdfast.checkpoint.tree import flatten, paths, unflatten
from holdfast.errors import CheckpointError

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Net(nn.Module):
    """Dropout, running statistics, a tied weight, a passing buffer, one that comes later."""

    late: Tensor | None
    passing: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(4, 6)
        self.head.weight = self.embed.weight
        self.register_buffer("passing", torch.zeros(2), persistent=False)
        self.register_buffer("late", None)

    def forward(self, x: Tensor) -> Tensor:
        self.passing += 1
        if self.late is None:
            self.late = torch.zeros(1)
        self.late += 1
        y = nn.functional.dropout(self.norm(self.embed(x)), 0.3, self.training)
        return (y * self.head(x)).mean()


def held(state: Any) -> Any:
    """A copy as a checkpoint makes it: taken apart, tensors copied, put together."""
    skeleton, tensors = flatten(state)
    return unflatten(skeleton, [t.detach().clone() for t in tensors])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(torch.as_tensor(one == other).all())


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int, *also: Any) -> list[float]:
    """Train on numbers drawn on the way; returns the losses."""
    losses: list[float] = []
    for _ in range(steps):

        def closure() -> Any:
            optimizer.zero_grad()
            loss = net(torch.randn(8, 4) + random.random())
            loss.backward()
            losses.append(loss.item())
            return loss

        optimizer.step(closure)
        for one in also:
            one.step()
    return losses


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adam, tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, history_size=3),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_a_state_put_back_gives_the_same_losses_again(make: Make) -> None:
    """The same objects: what a rollback does."""
    torch.manual_seed(3)
    net = Net()
    optimizer = make(list(net.parameters()))
    own = TrainingState({"model": net}, [optimizer])
    train(net, optimizer, 3)
    saved = held(own.state())
    first = train(net, optimizer, 4)
    weights = {name: p.data_ptr() for name, p in net.named_parameters()}
    own.put_back(saved)
    assert same(held(own.state()), saved)
    assert train(net, optimizer, 4) == first
    assert weights == {name: p.data_ptr() for name, p in net.named_parameters()}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_new_objects_take_over(make: Make) -> None:
    """Other objects: what a resumed process does."""
    torch.manual_seed(3)
    net = Net()
    optimizer = make(list(net.parameters()))
    train(net, optimizer, 3)
    saved = held(TrainingState({"model": net}, [optimizer]).state())
    first = train(net, optimizer, 4)
    torch.manual_seed(77)
    other = Net()
    second = make(list(other.parameters()))
    TrainingState({"model": other}, [second]).put_back(saved)
    assert train(other, second, 4) == first


def test_nothing_is_copied_and_tied_weights_are_there_once() -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    train(net, optimizer, 1)
    state = TrainingState({"model": net}, [optimizer]).state()
    assert state["models"]["model"]["embed.weight"].data_ptr() == net.embed.weight.data_ptr()
    moment = optimizer.state[net.embed.weight]["exp_avg"]
    assert state["optimizers"][0]["state"][0]["exp_avg"] is moment
    assert not any(t.requires_grad for t in flatten(state)[1])
    names = paths(state)
    assert "models.model.passing" in names and "models.model.late" in names
    assert "models.model.head.weight" not in names


def test_state_that_was_not_there_yet_is_removed() -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    own = TrainingState({"model": net}, [optimizer])
    saved = held(own.state())
    train(net, optimizer, 2)
    assert net.late is not None
    own.put_back(saved)
    assert not optimizer.state
    assert net.late is None
    assert net.norm.num_batches_tracked == 0


def test_wide_moments_of_narrow_weights_stay_wide() -> None:
    """torch's own load_state_dict would make them as narrow as the weights."""
    net = nn.Linear(4, 2).bfloat16()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for p in net.parameters():
        optimizer.state[p]["master"] = torch.randn(p.shape)
    saved = held(TrainingState({"m": net}, [optimizer]).state())
    fresh = torch.optim.SGD(net.parameters(), lr=0.1)
    TrainingState({"m": net}, [fresh]).put_back(saved)
    for p in net.parameters():
        assert fresh.state[p]["master"].dtype == torch.float32
        assert torch.equal(fresh.state[p]["master"], optimizer.state[p]["master"])


def test_the_form_of_an_optimizer_is_its_own() -> None:
    """Saved by one that holdfast has switched, put back into one that it has not, and back."""
    nets = [Net(), Net()]
    plain, fused = (
        torch.optim.Adam(nets[0].parameters(), lr=0.01),
        torch.optim.Adam(nets[1].parameters(), lr=0.02, fused=True),
    )
    train(nets[0], plain, 2)
    train(nets[1], fused, 3)
    states = [
        held(TrainingState({"m": n}, [o]).state())
        for n, o in zip(nets, (plain, fused), strict=True)
    ]
    TrainingState({"m": nets[1]}, [fused]).put_back(states[0])
    TrainingState({"m": nets[0]}, [plain]).put_back(states[1])
    assert fused.param_groups[0]["fused"] is True and fused.param_groups[0]["lr"] == 0.01
    assert not plain.param_groups[0]["fused"] and plain.param_groups[0]["lr"] == 0.02
    assert fused.state[nets[1].embed.weight]["step"].item() == 2
    assert plain.state[nets[0].embed.weight]["step"].item() == 3


class OwnWay(torch.optim.SGD):
    """An optimizer that keeps a number outside of its state, and saves it."""

    count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        return super().step(closure)

    def state_dict(self) -> Any:
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state_dict: Any) -> None:
        self.count = state_dict.pop("count")
        super().load_state_dict(state_dict)


def test_an_optimizer_with_its_own_way_is_asked() -> None:
    net = nn.Linear(4, 2)
    optimizer = OwnWay(net.parameters(), lr=0.1, momentum=0.9)
    own = TrainingState({"m": net}, [optimizer])
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    saved = held(own.state())
    before = copy.deepcopy(saved)
    optimizer.step()
    own.put_back(saved)
    assert optimizer.count == 1
    optimizer.step()
    assert same(saved, before), "what was put back is no longer ours to change"
    other = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match="another kind of optimizer than SGD"):
        TrainingState({"m": net}, [other]).put_back(saved)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.9**e),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 5]),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.CosineAnnealingLR(o, 10)],
        milestones=[3],
    ),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, mode="exp_range"),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=list(SCHEDULERS))
def test_schedules_go_on_where_they_were(make: Callable[[Any], Any]) -> None:
    rates: list[list[float]] = []
    saved: Any = None
    for fresh in range(2):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        scheduler = make(optimizer)
        own = TrainingState({"model": net}, [optimizer], schedulers=[scheduler])
        if fresh:
            own.put_back(saved)
        else:
            train(net, optimizer, 4, scheduler)
            saved = held(own.state())
            assert saved["left_out"] == []
        seen: list[float] = []
        for _ in range(6):
            train(net, optimizer, 1, scheduler)
            seen.append(optimizer.param_groups[0]["lr"])
        rates.append(seen)
        if isinstance(scheduler, lr_scheduler.MultiStepLR):
            assert isinstance(scheduler.milestones, Counter)
    assert rates[0] == rates[1]


class Diary:
    """An object of the user's own with a state of mixed kinds."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=3)
        self.seen: set[int] = set()
        self.table = torch.zeros(2)
        self.lock = object()

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert set(state) == set(self.__dict__), "it is strict"
        self.__dict__.update(state)


def test_everything_beside_the_model() -> None:
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    average = AveragedModel(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))  # its scale is made when it is first used
    diary, generator = Diary(), torch.Generator().manual_seed(4)
    own = TrainingState(
        {"m": net},
        [optimizer],
        scaler=scaler,
        ema={"slow": average},
        others={"diary": diary, "dice": generator},
    )
    diary.recent.extend([1.0, 2.0])
    diary.seen |= {3}
    diary.table += 1
    saved = held(own.state())
    assert saved["left_out"] == ["others.diary.lock (object)"]
    drawn = torch.rand(3, generator=generator)
    lock = diary.lock
    nn.init.zeros_(net.weight)
    average.update_parameters(net)
    scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0})
    diary.recent.append(3.0)
    diary.seen.clear()
    diary.table += 5
    own.put_back(saved)
    assert scaler.get_scale() == 8.0
    assert isinstance(scaler._init_scale, float)  # a tensor would be shared with the snapshot
    assert average.n_averaged.item() == 0
    assert torch.equal(average.module.get_parameter("weight"), net.weight) and net.weight.any()
    assert diary.recent == deque([1.0, 2.0], 3) and diary.recent.maxlen == 3
    assert diary.seen == {3} and diary.table.tolist() == [1, 1] and diary.lock is lock
    assert torch.equal(torch.rand(3, generator=generator), drawn)
    diary.table += 1
    assert saved["others"]["diary"]["table"].tolist() == [1, 1]


def test_only_some_parts() -> None:
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    own = TrainingState({"m": net}, [optimizer])
    saved = held(own.state(rng_state=False))
    assert "dice" not in saved
    nn.init.zeros_(net.weight)
    optimizer.param_groups[0]["lr"] = 0.5
    own.put_back(saved, parts=["optimizers"])
    assert not net.weight.any() and optimizer.param_groups[0]["lr"] == 0.1
    own.put_back(saved, parts={"models"})
    assert net.weight.any()


def test_gradients_amid_accumulation() -> None:
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    own = TrainingState({"m": net}, [optimizer])
    net(torch.ones(1, 4)).sum().backward()
    net.bias.grad = None
    saved = held(own.state(gradients=True))
    net(torch.ones(1, 4)).sum().backward()
    own.put_back(saved)
    assert net.bias.grad is None
    assert net.weight.grad is not None and (net.weight.grad == 1).all()


def test_what_does_not_fit_is_reported_and_nothing_is_touched() -> None:
    saved = held(
        TrainingState(
            {"m": nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))},
            [],
            others={"x": torch.Generator()},
        ).state()
    )
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = copy.deepcopy(net.state_dict())
    own = TrainingState({"m": net}, [], schedulers=[Diary()])
    found = own.differences(saved)
    differing = [name for name, *_ in found.differing]
    assert differing == ["m.0.weight", "m.0.bias", "m.1.weight", "m.1.bias"]
    assert [name for name, _ in found.unexpected] == ["others.x"]
    assert "m.1.running_mean" in dict(found.missing) and "schedulers.0" in dict(found.missing)
    with pytest.raises(CheckpointError, match=r"m\.0\.weight: .*\[2, 4\].*\[3, 4\]"):
        own.put_back(saved)
    assert same(dict(net.state_dict()), dict(before))
    assert not own.differences(saved, parts=["dice"])


@pytest.mark.parametrize("order", ["turned round", "other groups"])
def test_an_optimizer_with_other_parameters_is_refused(order: str) -> None:
    net = nn.Linear(4, 4)
    saved = held(TrainingState({"m": net}, [torch.optim.SGD(net.parameters(), lr=0.1)]).state())
    groups = [[net.bias, net.weight]] if order == "turned round" else [[net.weight], [net.bias]]
    other = torch.optim.SGD([{"params": g} for g in groups], lr=0.1)
    with pytest.raises(CheckpointError, match=r"optimizers\.0"):
        TrainingState({"m": net}, [other]).put_back(saved)


def test_buffers_that_come_and_go_are_no_difference() -> None:
    """A cache of another size, one that is registered on the way."""
    nets = [nn.Linear(2, 2), nn.Linear(2, 2)]
    nets[0].register_buffer("cache", torch.arange(8), persistent=False)
    nets[0].register_buffer("more", torch.ones(2), persistent=False)
    nets[1].register_buffer("cache", torch.arange(2), persistent=False)
    saved = held(TrainingState({"m": nets[0]}, []).state())
    own = TrainingState({"m": nets[1]}, [])
    assert not own.differences(saved)
    own.put_back(saved)
    assert torch.equal(nets[1].get_buffer("cache"), torch.arange(8))


class Counting(nn.Linear):
    """A module with state of its own beside tensors."""

    calls = 0

    def forward(self, input: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(input)

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


def test_extra_state_and_compiled_modules() -> None:
    net = nn.Sequential(Counting(2, 2), nn.Linear(2, 2))
    net(torch.ones(1, 2))
    saved = held(TrainingState({"m": net}, []).state())
    assert "m.0._extra_state" not in paths(saved)
    net(torch.ones(1, 2))
    wrapped = torch.compile(net, backend="eager")
    TrainingState({"m": wrapped}, []).put_back(saved)  # type: ignore[dict-item]
    first = net[0]
    assert isinstance(first, Counting) and first.calls == 1


def test_what_has_a_state() -> None:
    assert has_state(Diary()) and has_state(torch.Generator()) and has_state(nn.ReLU())
    assert not has_state(object())


def test_the_state_of_a_scaler_is_taken_without_a_read(monkeypatch):
    """Two reads of a device at every snapshot; under ``set_sync_debug_mode("error")`` it raised."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    model = nn.Linear(2, 1)
    taken = TrainingState({"net": model}, [], scaler=scaler)
    assert taken.state()["scaler"] == scaler.state_dict()  # nothing is made before the first use
    scaler.scale(torch.ones(()))
    whole = scaler.state_dict()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "item", lambda self: pytest.fail("a tensor was read"))
        state = taken.state()["scaler"]
    assert set(state) == set(whole)
    assert scaler_state.numbers(state) == whole
    assert all(type(one) is type(whole[name]) for name, one in scaler_state.numbers(state).items())


def test_a_scaler_of_the_users_own_says_its_state_itself():
    class Own(torch.amp.GradScaler):
        def state_dict(self):
            return {"mine": 3}

    scaler = Own("cpu")
    scaler.scale(torch.ones(()))
    assert TrainingState({}, [], scaler=scaler).state()["scaler"] == {"mine": 3}
