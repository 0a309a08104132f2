"""Calls of a module in parts: the same results and gradients, within a budget of memory."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.actions import split_batch
from holdfast.actions.split_batch import SplitBatch, free_graph
from holdfast.actions.split_batch.boundary import SplitCall
from holdfast.actions.split_batch.call import CallArguments, CannotSplit
from holdfast.actions.split_batch.plan import measured
from holdfast.faults._budget import MemoryBudget

ROWS, WIDTH = 1024, 8


@dataclass
class Output:
    logits: Tensor
    note: str = "kept"


class Pair(NamedTuple):
    logits: Tensor
    loss: Tensor


class Body(nn.Module):
    """Layers that keep many activations; ``how`` says what is returned."""

    def __init__(self, how: str = "logits", extra: nn.Module | None = None) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(24))
        self.extra: Any = extra or nn.Identity()
        self.unused = nn.Linear(2, 2)
        self.how = how

    def forward(self, x: Tensor, y: Any = None, *, mask: Tensor | None = None) -> Any:
        for layer in self.layers:
            x = x + self.extra(functional.gelu(layer(x)))
        if mask is not None:
            x = x * mask
        match self.how:
            case "view":
                return x.view(-1, 2, WIDTH // 2)[:, -1]
            case "flat":
                return x.view(-1, 2)
            case "dict":
                return {"logits": x, "scale": self.layers[0].weight.norm(), "top": x.argmax(1)}
            case "dataclass":
                return Output(x)
            case "loss":
                return Pair(x, functional.cross_entropy(x, y))
            case "sum":
                return functional.cross_entropy(x, y, reduction="sum")
            case "transposed":
                return x.t()
            case "similarity":
                return x @ x.t()
            case "centred":
                return x - x.mean(0)
            case _:
                return x


def first(result: Any) -> Tensor:
    """The tensor that a loss is made of."""
    if isinstance(result, Output | Pair):
        return result.logits
    return result["logits"] if isinstance(result, dict) else result


def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return nn.Module.__call__(module, *args, **kwargs)


def gradients(
    module: nn.Module, forward: Callable[..., Any], limit: float = float("inf"), **kwargs: Any
) -> tuple[list[Tensor | None], Tensor, MemoryBudget]:
    """Gradients of a loss with an edit in place, the input's gradient, and the budget."""
    torch.manual_seed(1)
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    y = torch.randint(0, 2, (ROWS,))
    if getattr(module, "how", "") in ("loss", "sum"):
        kwargs["y"] = y
    module.zero_grad()
    with MemoryBudget(limit) as budget:
        result = forward(module, x, **kwargs)
        out = first(result)
        if out.ndim:
            out /= 2.0
            loss = out.square().mean() + out[..., :1].sum() / ROWS
        else:
            loss = out * 1.0
        if isinstance(result, Pair):
            loss = loss + result.loss
        if isinstance(result, dict):
            loss = loss + result["scale"]
        loss.backward()
    assert x.grad is not None
    return [p.grad for p in module.parameters()], x.grad, budget


def close(found: Any, wanted: Any) -> None:
    assert (found is None) == (wanted is None)
    if wanted is not None:
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("share", [0.9, 0.6, 0.33])
@pytest.mark.parametrize(
    "how",
    ["logits", "view", "flat", "dict", "dataclass", "loss", "sum", "transposed"],
)
def test_a_third_of_the_memory_gives_the_same_gradients(how: str, share: float) -> None:
    torch.manual_seed(0)
    module = Body(how)
    mask = torch.rand(ROWS, 1)
    wanted, given, reference = gradients(module, call, mask=mask)
    wanted = [None if g is None else g.clone() for g in wanted]
    split = SplitBatch()
    split.arm("forward", "simulated")

    def in_parts(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return split(module, call, args, kwargs)

    found, also, budget = gradients(module, in_parts, share * reference.peak, mask=mask)
    for one, other in zip(found, wanted, strict=True):
        close(one, other)
    close(also, given)
    assert budget.peak <= share * reference.peak
    assert split.news[-1].parts >= 2 and not split.news[-1].why
    assert len(split.news) == 1 or split.news[-1].phase == "backward"


def split_call(module: nn.Module, parts: int, *args: Any, **kwargs: Any) -> Any:
    made = CallArguments(module, call, args, kwargs)
    return SplitCall(made, measured(made), parts).result()


def test_structures_come_back_as_they_were() -> None:
    x = torch.randn(8, WIDTH)
    for how in ("dict", "dataclass", "loss"):
        module, y = Body(how), torch.randint(0, 2, (8,))
        result, plain = split_call(module, 3, x, y), module(x, y)
        assert type(result) is type(plain)
        torch.testing.assert_close(first(result), first(plain))
    assert split_call(Body("dataclass"), 2, x).note == "kept"
    result = split_call(Body("dict"), 2, x)
    assert not result["top"].requires_grad and result["top"].dtype == torch.long
    assert result["logits"].requires_grad and result["scale"].requires_grad


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("similarity", "shape"),
        ("centred", "depend on each other"),
    ],
)
def test_samples_that_depend_on_each_other_are_not_split(how: str, why: str) -> None:
    with pytest.raises(CannotSplit, match=why):
        split_call(Body(how), 2, torch.randn(8, WIDTH))


def test_time_first_sequences_are_not_taken_for_samples() -> None:
    with pytest.raises(CannotSplit, match="depend on each other"):
        split_call(nn.LSTM(4, 4), 2, torch.randn(6, 3, 4))


def test_states_of_a_recurrent_layer_have_their_samples_in_the_second_dimension() -> None:
    module, x = nn.LSTM(4, 5, num_layers=2, batch_first=True), torch.randn(7, 3, 4)
    out, (h, c) = split_call(module, 3, x)
    plain, (h_plain, c_plain) = module(x)
    for one, other in ((out, plain), (h, h_plain), (c, c_plain)):
        torch.testing.assert_close(one, other)


def test_a_graph_from_before_the_call_is_refused() -> None:
    class Carries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.state = self.inner(torch.randn(1, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + self.state

    with pytest.raises(CannotSplit, match="made before"):
        split_call(Carries(), 2, torch.randn(6, 4))


def test_tensors_that_belong_to_nobody_get_their_gradient() -> None:
    prompt = torch.randn(4, requires_grad=True)

    class Prompted(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input * prompt)

    module, x = Prompted(4, 4), torch.randn(6, 4)
    module(x).square().sum().backward()
    wanted, prompt.grad = prompt.grad, None
    split_call(module, 3, x).square().sum().backward()
    close(prompt.grad, wanted)


def test_batch_norm_and_dropout_are_called_approximate() -> None:
    x = torch.randn(8, WIDTH)
    for extra, why in ((nn.BatchNorm1d(WIDTH), "BatchNorm"), (nn.Dropout(0.5), "dropout")):
        module = Body(extra=extra)
        made = CallArguments(module, call, (x,), {})
        assert why in measured(made).why[0]
        module.eval()
        assert not measured(CallArguments(module, call, (x,), {})).why
    assert not measured(CallArguments(Body(extra=nn.LayerNorm(WIDTH)), call, (x,), {})).why


def test_measuring_leaves_no_trace() -> None:
    module = Body(extra=nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)))
    before, rng = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    measured(CallArguments(module, call, (torch.randn(8, WIDTH),), {}))
    torch.set_rng_state(rng)
    measured(CallArguments(module, call, (torch.randn(8, WIDTH),), {}))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(m.training for m in module.modules())
    assert all(p.grad is None for p in module.parameters())


def test_dropout_is_the_same_in_backward_as_in_forward() -> None:
    module, x = nn.Dropout(0.5), torch.randn(64, 8, requires_grad=True)
    result = split_call(module, 4, x)
    result.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x.detach(), result.detach())


def test_running_statistics_see_each_part_once() -> None:
    module, x = nn.BatchNorm1d(4), torch.randn(12, 4) + 3
    plain = copy.deepcopy(module)
    for part in x.split(4):
        plain(part)
    split_call(module, 3, x).square().sum().backward()
    torch.testing.assert_close(module.running_mean, plain.running_mean)
    assert module.num_batches_tracked == 3


def test_hooks_on_parameters_run_once_with_the_whole_gradient() -> None:
    module, x, seen = nn.Linear(4, 2), torch.randn(9, 4), list[Tensor]()
    module(x).square().sum().backward()
    wanted = module.weight.grad
    module.zero_grad()
    module.weight.register_hook(lambda g: seen.append(g.clone()))  # type: ignore[arg-type]
    counted: list[int] = []
    module.bias.register_post_accumulate_grad_hook(lambda p: counted.append(1))
    split_call(module, 3, x).square().sum().backward()
    assert len(seen) == len(counted) == 1
    close(seen[0], wanted)
    close(module.weight.grad, wanted)


def test_earlier_gradients_are_kept_and_autograd_grad_works() -> None:
    module, x = nn.Linear(4, 2), torch.randn(9, 4)
    loss = module(x).square().sum()
    wanted = torch.autograd.grad(loss, list(module.parameters()))
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    found = torch.autograd.grad(split_call(module, 3, x).square().sum(), list(module.parameters()))
    split_call(module, 3, x).square().sum().backward()
    for parameter, one, other in zip(module.parameters(), found, wanted, strict=True):
        close(one, other)
        close(parameter.grad, other + 1)


def test_an_argument_that_is_edited_before_backward_is_an_error_as_always() -> None:
    module, x = nn.Linear(4, 2), torch.randn(9, 4)
    loss = split_call(module, 3, x).square().sum()
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_kept_graph_bears_two_passes() -> None:
    module, x = nn.Linear(4, 2), torch.randn(9, 4)
    for parts in (1, 3):
        loss = split_call(module, parts, x).square().sum()
        loss.backward(retain_graph=True)
        once = [p.grad.clone() for p in module.parameters() if p.grad is not None]
        loss.backward()
        for parameter, one in zip(module.parameters(), once, strict=True):
            close(parameter.grad, 2 * one)
        module.zero_grad()


def test_evaluation_is_split_without_gradients() -> None:
    wide = nn.Sequential(nn.Linear(WIDTH, 64 * WIDTH), nn.GELU(), nn.Linear(64 * WIDTH, WIDTH))
    module, x, split = wide.eval(), torch.randn(ROWS, WIDTH), SplitBatch()
    with torch.no_grad():
        with MemoryBudget() as budget:
            wanted = module(x)
        split.arm("evaluation", "simulated")
        with MemoryBudget(0.7 * budget.peak):
            found = split(module, call, (x,), {})
    torch.testing.assert_close(found, wanted)
    assert split.news[-1].phase == "evaluation" and split.news[-1].parts == 2


def test_autocast_holds_in_the_second_forward_pass() -> None:
    module, x = Body(), torch.randn(32, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        plain = module(x)
    plain.square().sum().backward()
    wanted = [p.grad for p in module.parameters()]
    module.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        result = split_call(module, 4, x)
    assert result.dtype == plain.dtype
    result.square().sum().backward()
    for parameter, one in zip(module.parameters(), wanted, strict=True):
        if one is not None and parameter.grad is not None:
            assert (parameter.grad - one).abs().max() <= 0.05 * one.abs().max()


def test_one_sample_that_does_not_fit_is_the_end() -> None:
    module, x, split = Body(), torch.randn(8, WIDTH), SplitBatch()
    split.arm("forward", "simulated")
    with MemoryBudget(100), pytest.raises(torch.OutOfMemoryError):
        split(module, call, (x,), {})


def test_the_size_that_fits_is_remembered_in_numbers() -> None:
    module, split = Body(), SplitBatch()
    split.arm("forward", "simulated")
    split(module, call, (torch.randn(64, WIDTH),), {})
    calls: list[int] = []

    def counted(module: nn.Module, x: Tensor) -> Any:
        calls.append(len(x))
        return call(module, x)

    split(module, counted, (torch.randn(128, WIDTH),), {})
    assert calls == [32, 32, 32, 32]
    calls.clear()
    split(module, counted, (torch.randn(32, WIDTH),), {})
    assert calls == [32]


def test_a_freed_graph_holds_nothing_although_its_outputs_live() -> None:
    module = Body()
    with MemoryBudget() as budget:
        out = module(torch.randn(ROWS, WIDTH))
        view = out[:, -1]
        loss = view.sum()
        full = budget.live()
        assert free_graph([loss]) > 8
        assert budget.live() < 0.3 * full
    with pytest.raises(RuntimeError, match="was freed"):
        loss.backward()
    assert out.requires_grad


def test_a_model_that_was_split_is_freed_with_its_last_name() -> None:
    module, split = nn.BatchNorm1d(4), SplitBatch()
    split.arm("forward", "simulated")
    split(module, call, (torch.randn(8, 4),), {})
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None


def test_a_part_that_fails_leaves_the_call_to_the_script() -> None:
    class Picky(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if 5 < len(input) < 12:
                raise ValueError("eight is too few")
            return super().forward(input)

    module, split = Picky(4, 4), SplitBatch()
    split.arm("forward", "simulated")
    assert len(split(module, call, (torch.randn(16, 4),), {})) == 16
    assert "eight is too few" in split.news[-1].refused and not split.news[-1].parts


@pytest.mark.parametrize(
    ("error", "out"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"), False),  # no GPU that is full
        (RuntimeError("shapes cannot be multiplied"), False),
        (MemoryError(), True),
    ],
)
def test_errors_of_memory(error: BaseException, out: bool) -> None:
    assert split_batch.ran_out(error, torch.device("cpu")) is out
