"""A prepared step is torch's own to the bit, and torch's wherever something was replaced."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.boot import patches
from holdfast.guard.fast import prepared_update
from holdfast.guard.fast.prepared_update import STEPS, PreparedUpdate, steps_of

from ...boot.test_optimizer_patches import Spy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "Adam": {"weight_decay": 0.1, "eps": 1e-6},
    "Adam amsgrad": {"amsgrad": True, "betas": (0.8, 0.9)},
    "AdamW maximize": {"maximize": True},
    "SGD": {},
    "SGD momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "SGD nesterov": {"momentum": 0.9, "nesterov": True},
    "SGD dampening": {"momentum": 0.5, "dampening": 0.3, "maximize": True},
}

FORMS: list[dict[str, Any]] = [{"foreach": True}, {}]


@pytest.fixture(autouse=True)
def patched() -> Iterator[Spy]:
    spy = Spy()
    patches.install(lambda: spy)  # type: ignore[arg-type,return-value]
    yield spy
    patches.uninstall()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each prepared step: whether it was made."""
    answers: list[bool] = []
    run = PreparedUpdate.run

    def noted(self: Any, *args: Any) -> bool:
        answers.append(run(self, *args))
        return answers[-1]

    monkeypatch.setattr(PreparedUpdate, "run", noted)
    return answers


def make(kind: str = "AdamW", *, groups: int = 1, **options: Any) -> tuple[list[Tensor], Any]:
    torch.manual_seed(0)
    dtype = options.pop("dtype", torch.float32)
    weights: list[Tensor] = [
        nn.Parameter(torch.randn(3, 4 + n, dtype=dtype, device=DEVICE)) for n in range(6)
    ]
    given: Any = weights
    if groups > 1:
        given = [{"params": weights[n::groups], "lr": 0.1 / (n + 1)} for n in range(groups)]
    made = getattr(torch.optim, kind.split()[0])
    return weights, made(given, lr=0.1, **{"fused": True, **KINDS[kind], **options})


def state_of(optimizer: Any) -> list[Tensor]:
    return [v for held in optimizer.state.values() for v in held.values() if v is not None]


def gradients(weights: list[Tensor], step: int) -> None:
    made = torch.Generator().manual_seed(step)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=made).to(weight)


Between = Callable[[int, list[Tensor], Any], None]


def train(weights: list[Tensor], optimizer: Any, between: Between, steps: int = 7) -> None:
    for step in range(steps):
        gradients(weights, step)
        between(step, weights, optimizer)
        optimizer.step()


def both(between: Between, kind: str = "AdamW", **options: Any) -> None:
    """Train under the patches and without them, and compare everything."""
    own_part, own = make(kind, **options)
    train(own_part, own, between)
    patches.uninstall()
    theirs, plain = make(kind, **options)
    train(theirs, plain, between)
    assert len(state_of(own)) == len(state_of(plain))
    own_part, theirs = own_part + state_of(own), theirs + state_of(plain)
    # Some steps write the gradients, too.
    own_part, theirs = (
        some + [w.grad for w in some if w.grad is not None] for some in (own_part, theirs)
    )
    assert all(torch.equal(a, b) for a, b in zip(own_part, theirs, strict=True))


def nothing(step: int, weights: list[Tensor], optimizer: Any) -> None:
    pass


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits(kind: str, groups: int, ran: list[bool]) -> None:
    both(nothing, kind, groups=groups)
    assert ran == [True] * 6  # the first one makes the state


@pytest.mark.parametrize("form", FORMS, ids=["foreach", "single"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_on_a_cpu_without_a_fused_kernel(
    kind: str, form: dict[str, Any], ran: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "DEVICE", "cpu")
    both(nothing, kind, fused=None, **form)
    assert ran == [True] * 6


@pytest.mark.parametrize("form", FORMS, ids=["foreach", "single"])
@pytest.mark.parametrize("gone", [None, "all of it"])
def test_a_momentum_that_is_gone_begins_anew(
    form: dict[str, Any], gone: str | None, ran: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "DEVICE", "cpu")

    def drop(step: int, weights: list[Tensor], optimizer: Any) -> None:
        if step == 3 and gone:
            del optimizer.state[weights[1]]
        elif step == 3:
            optimizer.state[weights[1]]["momentum_buffer"] = None

    both(drop, "SGD dampening", fused=None, **form)
    assert ran == [True, True, False, True, True]


@pytest.mark.parametrize("form", FORMS, ids=["foreach", "single"])
@pytest.mark.parametrize("kind", ["SGD", "SGD momentum"])
def test_options_of_sgd_that_change_are_heard(
    kind: str, form: dict[str, Any], ran: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "DEVICE", "cpu")

    def change(step: int, weights: list[Tensor], optimizer: Any) -> None:
        changes = {2: {"weight_decay": 0.3, "maximize": True}, 5: {"momentum": 0.5}}
        optimizer.param_groups[0].update(changes.get(step, {}))

    both(change, kind, fused=None, **form)
    assert ran == [True, False, True, False]


@pytest.mark.parametrize("form", FORMS, ids=["foreach", "single"])
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "SGD momentum"])
def test_a_flag_that_a_form_does_not_know_is_refused_as_by_torch(
    kind: str, form: dict[str, Any], ran: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "DEVICE", "cpu")
    weights, optimizer = make(kind, fused=None, **form)
    train(weights, optimizer, nothing)
    optimizer.found_inf = torch.tensor(0.0)
    before = [weight.detach().clone() for weight in weights]
    with pytest.raises(AssertionError, match="found_inf"):
        optimizer.step()
    assert len(ran) == 6 and all(map(torch.equal, weights, before))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_same_bits_in_other_precisions(dtype: torch.dtype, ran: list[bool]) -> None:
    both(nothing, dtype=dtype)
    assert ran == [True] * 6


@pytest.mark.parametrize("kind", ["AdamW", "SGD momentum"])
def test_flags_and_scales_are_heard(kind: str, ran: list[bool]) -> None:
    def tell(step: int, weights: list[Tensor], optimizer: Any) -> None:
        optimizer.found_inf = torch.tensor(float(step in (3, 4)), device=DEVICE)
        optimizer.grad_scale = torch.tensor(8.0, device=DEVICE)

    both(tell, kind)
    assert all(ran) and len(ran) == 6


def test_rates_of_a_schedule_are_heard(ran: list[bool]) -> None:
    def schedule(step: int, weights: list[Tensor], optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.9

    both(schedule, groups=2)
    assert all(ran) and len(ran) == 6


def _other_decay(optimizer: Any, weights: list[Tensor]) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.5


def _other_moment(optimizer: Any, weights: list[Tensor]) -> None:
    optimizer.state[weights[2]]["exp_avg"] = torch.ones_like(weights[2])


def _no_state(optimizer: Any, weights: list[Tensor]) -> None:
    optimizer.state.clear()


def _less_state(optimizer: Any, weights: list[Tensor]) -> None:
    del optimizer.state[weights[-1]]


def _loaded(optimizer: Any, weights: list[Tensor]) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def _one_more(optimizer: Any, weights: list[Tensor]) -> None:
    more = nn.Parameter(torch.ones(5, device=DEVICE))
    more.grad = torch.ones_like(more)
    optimizer.add_param_group({"params": [more]})


def _one_swapped(optimizer: Any, weights: list[Tensor]) -> None:
    new = nn.Parameter(torch.ones_like(weights[1]))
    new.grad = torch.ones_like(new)
    optimizer.param_groups[0]["params"][1] = new


def _one_without(optimizer: Any, weights: list[Tensor]) -> None:
    weights[3].grad = None


def _not_fused(optimizer: Any, weights: list[Tensor]) -> None:
    optimizer.param_groups[0]["fused"] = False


@pytest.mark.parametrize(
    "change",
    [
        *(_other_decay, _other_moment, _no_state, _less_state, _one_more, _one_swapped),
        *(_one_without, _not_fused),
    ],
)
def test_whatever_is_replaced_is_torchs_step(
    change: Callable[[Any, list[Tensor]], None], ran: list[bool]
) -> None:
    def once(step: int, weights: list[Tensor], optimizer: Any) -> None:
        if step == 3:
            change(optimizer, weights)

    both(once)
    assert ran[:3] == [True, True, False]


def test_a_loaded_state_lets_the_old_one_go(ran: list[bool]) -> None:
    def load(step: int, weights: list[Tensor], optimizer: Any) -> None:
        if step == 3:
            _loaded(optimizer, weights)
            assert steps_of(optimizer).update is None

    both(load)
    assert ran == [True] * 5  # torch's own after loading, and prepared anew


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["AdamW", "SGD momentum"])
def test_frozen_weights_are_left_until_they_thaw(
    kind: str, groups: int, ran: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two groups all of the second one is frozen. Torch's fused SGD cannot thaw."""
    monkeypatch.setitem(globals(), "DEVICE", "cpu")
    fused = {"fused": kind == "AdamW" or None}

    def freeze(step: int, weights: list[Tensor], optimizer: Any) -> None:
        if step < 4:
            for weight in weights[1::2]:
                weight.grad = None

    both(freeze, kind, groups=groups, **fused)
    assert ran == [True, True, True, False, True]


def test_what_cannot_be_prepared_is_seldom_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(prepared_update, "_prepare", lambda _: tried.append(0))
    weights, optimizer = make(fused=False)
    train(weights, optimizer, nothing, steps=64)
    assert 4 <= len(tried) <= 6


def test_a_closure_is_called_once_with_gradients(ran: list[bool]) -> None:
    calls: list[bool] = []

    def run(optimizer: Any, weights: list[Tensor]) -> list[Any]:
        def closure() -> float:
            calls.append(torch.is_grad_enabled())
            gradients(weights, len(losses))
            return len(losses) / 8

        losses: list[Any] = []
        for _ in range(4):
            losses.append(optimizer.step(closure))
        return losses

    own_part, own = make()
    returned = run(own, own_part)
    assert returned == [0.0, 0.125, 0.25, 0.375] and calls == [True] * 4 and ran == [True] * 3
    patches.uninstall()
    theirs, plain = make()
    run(plain, theirs)
    assert all(torch.equal(a, b) for a, b in zip(own_part, theirs, strict=True))


def test_neither_the_script_nor_a_copy_sees_it_and_it_ends_with_the_optimizer() -> None:
    weights, optimizer = make()
    before = set(vars(optimizer))
    train(weights, optimizer, nothing)
    steps = steps_of(optimizer)
    assert steps.update is not None and set(vars(optimizer)) == before
    assert steps_of(copy.deepcopy(optimizer)) is not steps
    gone = STEPS[id(optimizer)]
    weights[0].owner = optimizer  # type: ignore[attr-defined] # a circle through the weights
    del weights, optimizer, steps
    gc.collect()
    assert gone() is None
