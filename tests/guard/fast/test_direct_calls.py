"""The short ways are torch's own to the bit, and torch's wherever arguments are not ordinary."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast import torch_version
from holdfast.boot import patches
from holdfast.guard.fast import direct_calls, torch_time_saved

from ...boot.test_optimizer_patches import Spy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class ClipSpy(Spy):
    def clip_begins(self, parameters: object) -> None: ...

    def clip_ends(self) -> None: ...

    def scaler_begins(self, scaler: object) -> None: ...

    def scaler_ends(self, optimizer: object) -> None: ...

    def scaler_used(self, scaler: object) -> None: ...

    def scaled(self, loss: object, result: object) -> None: ...

    def scaler_updated(self, scaler: object) -> None: ...

    def backward_fails(self, error: BaseException, roots: object) -> bool:
        return False


@pytest.fixture
def spy() -> ClipSpy:
    return ClipSpy()


@pytest.fixture
def short(spy: ClipSpy, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Under the patches: which short ways were gone."""
    gone: list[str] = []
    for name in ("backward", "clip", "unscale"):
        own: Callable[..., Any] = getattr(direct_calls, name)

        def noted(*args: Any, name: str = name, own: Callable[..., Any] = own) -> Any:
            answer = own(*args)
            if answer is not None and answer is not False:
                gone.append(name)
            return answer

        monkeypatch.setattr(direct_calls, name, noted)
    patches.install(lambda: spy)  # type: ignore[arg-type,return-value]
    yield gone
    patches.uninstall()


def weights(**options: Any) -> list[Tensor]:
    made = torch.Generator().manual_seed(3)
    found: list[Tensor] = []
    for n in range(6):
        one = nn.Parameter(torch.randn(3, 4 + n, generator=made).to(DEVICE, **options))
        one.grad = torch.randn(3, 4 + n, generator=made).to(DEVICE, **options)
        found.append(one)
    return found


def same(
    act: Callable[[list[Tensor]], Any], change: Callable[[list[Tensor]], None], **options: Any
) -> None:
    """Do it under the patches and without them; what came of it, or the error."""
    outcomes: list[Any] = []
    for patched in (True, False):
        if not patched:
            patches.uninstall()
        given = weights(**options)
        change(given)
        try:
            result = act(given)
        except Exception as error:
            result = type(error), str(error)
        grads = [None if w.grad is None else w.grad.to_dense() for w in given]
        outcomes.append((result, grads))
    (own_part, my_grads), (theirs, their_grads) = outcomes
    if isinstance(theirs, Tensor):
        assert own_part.dtype is theirs.dtype and own_part.requires_grad is theirs.requires_grad
        assert torch.equal(own_part, theirs) or (own_part.isnan() and theirs.isnan())
    else:
        assert own_part == theirs
    for a, b in zip(my_grads, their_grads, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def nothing(given: list[Tensor]) -> None:
    pass


def one_frozen(given: list[Tensor]) -> None:
    given[2].grad = None


def one_nan(given: list[Tensor]) -> None:
    assert given[1].grad is not None
    given[1].grad[0, 0] = math.nan


def one_of_another_kind(given: list[Tensor]) -> None:
    given[4] = nn.Parameter(torch.ones(3, dtype=torch.float64, device=DEVICE))
    given[4].grad = torch.ones_like(given[4])


def one_sparse(given: list[Tensor]) -> None:
    embedding = nn.Embedding(5, 2, sparse=True).to(DEVICE)
    embedding(torch.tensor([1, 3], device=DEVICE)).sum().backward()
    given[0] = embedding.weight


def all_frozen(given: list[Tensor]) -> None:
    for one in given:
        one.grad = None


def clipped(*args: Any, **kwargs: Any) -> Callable[[list[Tensor]], Any]:
    return lambda given: torch.nn.utils.clip_grad_norm_(given, *args, **kwargs)


@pytest.mark.parametrize("change", [nothing, one_frozen, one_nan])
@pytest.mark.parametrize(
    "act",
    [
        clipped(1.0), clipped(100), clipped(max_norm=0.5), clipped(0.5, norm_type=1),
        clipped(0.5, math.inf), clipped(0.5, 3.0, False, True), clipped(0.5, foreach=None),
    ],
)  # fmt: skip
def test_clipping_by_the_short_way(act: Any, change: Any, short: list[str]) -> None:
    same(act, change)
    assert short == ["clip"]


def test_clipping_in_half_precision(short: list[str]) -> None:
    same(clipped(1.0), nothing, dtype=torch.bfloat16)
    assert short == ["clip"]


@pytest.mark.parametrize(
    ("act", "change"),
    [
        (clipped(1.0), one_of_another_kind),
        (clipped(1.0), one_sparse),
        (clipped(1.0), all_frozen),
        (clipped(torch.tensor(1.0)), nothing),
        (clipped("no"), nothing),
        (clipped(), nothing),
        (clipped(1.0, max_norm=2.0), nothing),
        (clipped(1.0, of=3), nothing),
        (clipped(1.0, 2.0, False, None, 5), nothing),
        (clipped(1.0, foreach=False), nothing),
        (clipped(1.0, error_if_nonfinite=True), one_nan),
        (clipped(1.0, error_if_nonfinite=True), nothing),
        (lambda given: torch.nn.utils.clip_grad_norm_(given[0], 1.0), nothing),
    ],
)
def test_clipping_that_is_torchs(act: Any, change: Any, short: list[str]) -> None:
    same(act, change)
    assert "clip" not in short


def _measured(given: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    grads = [one.grad for one in given if one.grad is not None]
    return grads, list(torch._foreach_norm(grads))


@pytest.mark.parametrize("kind", [2.0, 2, 1.0])
@pytest.mark.parametrize("order", [1, -1])
def test_norms_that_were_measured_are_not_computed_again(
    kind: float, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only in the order in which torch would compute them: their sum depends on it."""
    own_part, theirs = weights(), weights()
    grads, norms = (found[::order] for found in _measured(own_part))
    asked: list[int] = []
    own = torch._foreach_norm
    monkeypatch.setattr(torch, "_foreach_norm", lambda *a: (asked.append(0), own(*a))[1])
    total = direct_calls.clip(own_part, (0.5,), {"norm_type": kind}, (grads, norms))
    assert bool(asked) == (kind != 2.0 or order == -1)
    monkeypatch.undo()
    expected = torch.nn.utils.clip_grad_norm_(theirs, 0.5, norm_type=kind)
    assert total is not None and torch.equal(total, expected)
    for a, b in zip(own_part, theirs, strict=True):
        assert a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad)


def test_a_generator_is_clipped_by_the_short_way(short: list[str]) -> None:
    same(lambda given: torch.nn.utils.clip_grad_norm_((w for w in given), 1.0), nothing)
    assert short == ["clip"]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_a_scaled_training(
    early: bool, fused: bool, bad: bool, groups: int, short: list[str]
) -> None:
    def train(given: list[Tensor]) -> list[Any]:
        sets: Any = [{"params": given[n::groups]} for n in range(groups)]
        optimizer = torch.optim.AdamW(sets, lr=0.1, fused=fused)
        scaler, reported = torch.amp.GradScaler(DEVICE, init_scale=16.0, growth_interval=2), []
        for step in range(5):
            optimizer.zero_grad()
            loss = sum((w * w).sum() for w in given)
            if bad and step == 2:
                loss = loss * math.inf
            scaler.scale(loss).backward()  # type: ignore[arg-type]
            if early:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(given, 1.0)
            scaler.step(optimizer)
            scaler.update()
            reported += [scaler.get_scale(), *(float(w.detach().sum()) for w in given)]
        return reported

    same(train, nothing)
    assert short.count("unscale") == 5 and short.count("backward") == 5
    assert short.count("clip") == 5 * early


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (one_of_another_kind, {}),
        (one_sparse, {}),
        (all_frozen, {}),
        (nothing, {"dtype": torch.float16}),
    ],
)
def test_unscaling_that_is_torchs(change: Any, options: dict[str, Any], short: list[str]) -> None:
    def unscale(given: list[Tensor]) -> list[float]:
        optimizer = torch.optim.SGD(given, lr=0.1)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0)
        scaler.scale(torch.ones((), device=DEVICE))
        scaler.unscale_(optimizer)
        return [float(v) for v in scaler._found_inf_per_device(optimizer).values()]

    same(unscale, change, **options)
    assert "unscale" not in short


def root_of(kind: str) -> Tensor:
    x = torch.tensor([2.0, 3.0], device=DEVICE, requires_grad=True)
    return {
        "loss": (x * x).sum(),
        "one element": (x * x)[:1],
        "half": (x * x).sum().bfloat16(),
        "leaf": torch.tensor(2.0, device=DEVICE, requires_grad=True),
        "vector": x * x,
        "complex": (x * x).sum().to(torch.complex64),
        "constant": torch.ones((), device=DEVICE),
        "parameter": nn.Parameter(torch.ones((), device=DEVICE)),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        ("loss", True), ("one element", True), ("half", True), ("leaf", True),
        ("vector", False), ("complex", False), ("constant", False), ("parameter", False),
    ],
)  # fmt: skip
def test_backward(kind: str, taken: bool, short: list[str]) -> None:
    def passed(given: list[Tensor]) -> Any:
        root = root_of(kind)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            root.backward()
        return [str(one.message) for one in seen], root.grad if root.is_leaf else None

    same(passed, nothing)
    assert short == ["backward"] * taken


def test_gradients_of_backward_are_those_of_torch(short: list[str]) -> None:
    def passed(given: list[Tensor]) -> Any:
        loss = sum((w.sin() * w).sum() for w in given)
        loss.backward()  # type: ignore[union-attr]
        again = sum(w.exp().sum() for w in given)
        again.backward(retain_graph=True)  # type: ignore[union-attr]
        again.backward(torch.tensor(2.0, device=DEVICE))  # type: ignore[union-attr]

    same(passed, nothing)
    assert short == ["backward"]


def test_a_second_backward_is_torchs_error(short: list[str]) -> None:
    def twice(given: list[Tensor]) -> None:
        loss = given[0].exp().sum()
        loss.backward()
        loss.backward()

    same(twice, nothing)
    assert short == ["backward"]


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_go_torchs_own_way_to_compare_are_the_same(
    fused: bool, spy: ClipSpy, short: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_time_saved, "_EVERY", 2)

    def train(given: list[Tensor]) -> list[float]:
        optimizer = torch.optim.AdamW(given, lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=16.0)
        for _ in range(40):
            optimizer.zero_grad()
            scaler.scale(sum((w * w).sum() for w in given)).backward()  # type: ignore[arg-type]
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(given, 1.0)
            scaler.step(optimizer)
            scaler.update()
        return [float(w.detach().sum()) for w in given]

    same(train, nothing)
    # Every second one is timed, half of those go torch's own way; the first is not known yet.
    assert short.count("clip") == short.count("unscale") == 30
    assert [reported.samples for reported in spy.reported] == [8] and spy.reported[0].own > 0


def test_a_torch_that_nobody_has_read_goes_its_own_way(
    short: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_version, "installed_version", lambda: "2.99.0+cpu")
    assert not torch_version.was_read()
    monkeypatch.setattr(direct_calls, "_READ", False)
    same(clipped(1.0), nothing)
    weights()[0].sum().backward()
    assert short == []
