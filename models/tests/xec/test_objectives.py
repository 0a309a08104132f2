"""Losses on real models: what training and validation compute, and what no step may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast_models.xec.losses import HiddenLosses

KINDS = ("reg", "mae", "inp")
ALL_ON = ["tasks.timing.enabled=true", "tasks.uvwFI.enabled=true", "tasks.n_gamma.enabled=true",
          "tasks.angleVec.enabled=true", "tasks.angleVec.loss_fn=cosine",
          "tasks.energy.loss_fn=gaussian_nll", "loss_balance=auto"]  # fmt: skip
INTENSE = ["loss.auto_channel_weight=true", "loss.npho_loss_weight.enabled=true",
           "loss.intensity_reweighting.enabled=true"]  # fmt: skip


def loss_of(parts: Any, batch: dict[str, Tensor]) -> Tensor:
    return parts.objective.loss(parts.model, batch)[0]


# ------------------------------------------------------------------ validation is training


@pytest.mark.parametrize("more", [[], ALL_ON], ids=["two tasks", "all tasks"])
def test_17_5_the_regressor_is_validated_by_the_loss_it_is_trained_with(
    more: list[str], parts_of: Any, batch_of: Any
) -> None:
    parts, batch = parts_of("reg", *more), batch_of(3)
    batch["weight"] = torch.tensor([0.2, 1.0, 1.8])
    parts.model.eval()
    with torch.no_grad():
        trained, reported = parts.objective.loss(parts.model, batch)
        measured = parts.objective.measure(parts.model, batch)
    assert torch.equal(measured["loss"], trained)
    assert {"smooth_l1", "l1", "mse"} <= measured.keys(), "for reference"
    assert {name for name in reported if name.startswith("task/")} == {
        f"task/{name}" for name in parts.settings.tasks.active()
    }


@pytest.mark.parametrize("kind", ["mae", pytest.param("inp", marks=pytest.mark.slow)])
def test_17_5_models_that_fill_in_are_validated_with_sensors_hidden_the_same_each_time(
    kind: str, parts_of: Any, batch_of: Any
) -> None:
    parts, batch = parts_of(kind), batch_of(3)
    parts.model.eval()
    objective, net = parts.objective, parts.model
    with torch.no_grad():
        passes = [objective.hide_and_fill(net, batch) for _ in range(2)]
        torch.manual_seed(5)
        drawn = [objective.hide_and_fill(net, batch, fixed=False) for _ in range(2)]
        measured = [objective.measure(net, batch) for _ in range(2)]
    hidden = [one.hidden.hidden_BS for one in passes]
    assert torch.equal(hidden[0], hidden[1]) and hidden[0].any(1).all()
    assert not torch.equal(drawn[0].hidden.hidden_BS, drawn[1].hidden.hidden_BS)
    assert all(torch.equal(one, measured[1][name]) for name, one in measured[0].items())
    assert measured[0]["n_masked"].sum() == hidden[0].sum()
    # The network saw nothing of them, and the loss is the one of training.
    shown, sentinel = passes[0].shown, parts.settings.normalization.sentinel_npho
    assert (shown.x_BSC[..., 0][hidden[0]] == sentinel).all()
    inputs = passes[0].inputs
    losses: HiddenLosses = net.losses
    again = losses(
        passes[0].pred_BSC, inputs.x_BSC, hidden[0], inputs.time_valid_BS, inputs.npho_BS
    )
    assert torch.equal(again.total, measured[0]["loss"])


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize("kind", ["reg", "mae"])
def test_17_15_every_parameter_takes_part(kind: str, parts_of: Any, batch_of: Any) -> None:
    """Heads that nobody asked for are not built: ranks would wait for their gradients."""
    parts = parts_of(kind, *(ALL_ON if kind == "reg" else []))
    loss_of(parts, batch_of(2)).backward()
    idle = [name for name, one in parts.model.named_parameters() if one.grad is None]
    assert not idle
    if kind == "reg":
        assert set(parts.model.heads) == set(parts.settings.tasks.active())
        few = parts_of("reg", "tasks.angle.enabled=false").model
        assert list(few.heads) == ["energy"], "energy alone is on"


def gradient_norm(parts: Any, batch: dict[str, Tensor]) -> float:
    parts.model.eval().zero_grad()
    loss_of(parts, batch).backward()
    grads = [one.grad for one in parts.model.parameters() if one.grad is not None]
    return float(nn.utils.get_total_norm(grads))


def test_17_17_times_in_seconds_have_gradients_like_any_other(parts_of: Any, batch_of: Any) -> None:
    """Not of 1e-9, which the optimizer's epsilon would swallow, nor lost to a beta of one."""
    # Balanced losses have learned weights, whose gradients are not the model's.
    plain = ["tasks.angle.enabled=false", "loss_balance=manual"]
    only = [*plain, "tasks.energy.enabled=false", "tasks.timing.enabled=true"]
    energy = gradient_norm(parts_of("reg", *plain), batch_of(4))
    timing = gradient_norm(parts_of("reg", *only), batch_of(4))
    assert 0.05 < timing / energy < 20
    assert parts_of("reg", *only).settings.tasks.timing.loss_beta == 1e-10
    # In seconds, with a beta of one: what the specification warns of.
    lost = gradient_norm(
        parts_of("reg", *only, "loss_space=physical", "tasks.timing.loss_beta=1"), batch_of(4)
    )
    assert lost < 1e-9 * timing


# ------------------------------------------------------------------ what a step may not do


class NoHostReads(TorchDispatchMode):
    """Refuses operations that make the host wait for numbers of the device."""

    FORBIDDEN = (
        torch.ops.aten._local_scalar_dense.default,  # item, float, bool, tolist of one number
        torch.ops.aten.nonzero.default,
        torch.ops.aten.masked_select.default,
        torch.ops.aten.equal.default,
        torch.ops.aten._unique2.default,
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Indexing by a mask asks how many there are.
        indexed = func in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
        if func in self.FORBIDDEN or (indexed and any(map(_is_mask, args[1]))):
            raise AssertionError(f"{func} reads from the device")
        return func(*args, **(kwargs or {}))


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype is torch.bool


@pytest.fixture
def no_host_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], NoHostReads]:
    """A mode in which tensors stay where they are."""

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a tensor was copied to the host")

    def make() -> NoHostReads:
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"):
            monkeypatch.setattr(Tensor, name, refused)
        return NoHostReads()

    return make


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("reg", ALL_ON),
        ("mae", INTENSE),
        ("inp", ["model.mask_npho_flat=true", "loss.intensity_reweighting.enabled=true"]),
    ],
    ids=KINDS,
)
def test_9_1_a_step_reads_nothing_back(
    kind: str, more: list[str], parts_of: Any, batch_of: Any, no_host_reads: Any
) -> None:
    parts, batch = parts_of(kind, *more), batch_of(2)
    with no_host_reads():
        loss, reported = parts.objective.loss(parts.model, batch)
        loss.backward()
        found = parts.objective.measure(parts.model, batch)
    assert all(isinstance(one, Tensor | float) for one in reported.values()) and "loss" in found


def test_the_mode_notices_reads(no_host_reads: Any) -> None:
    ones = torch.ones(3)
    with no_host_reads():
        for read in (lambda: float(ones.sum()), lambda: ones[ones > 0], lambda: ones.tolist()):
            with pytest.raises(AssertionError):
                read()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reg", "mae"])
def test_9_1_model_loss_and_backward_are_one_graph(kind: str, parts_of: Any, batch_of: Any) -> None:
    """With the backward pass, which ``model/test_compiling.py`` does not trace."""
    parts, batch = parts_of(kind, *(ALL_ON if kind == "reg" else [])), batch_of(2)
    parts.model.eval()  # no dropout: the numbers are compared

    def step(model: nn.Module) -> Tensor:
        return parts.objective.loss(model, batch)[0]

    torch.manual_seed(5)  # of the sensors that are hidden
    plain = step(parts.model)
    plain.backward()
    expected = {name: one.grad.clone() for name, one in parts.model.named_parameters()}
    parts.model.zero_grad()
    torch.manual_seed(5)
    try:
        found = torch.compile(step, fullgraph=True, backend="aot_eager")(parts.model)
        found.backward()
    finally:
        torch.compiler.reset()
    torch.testing.assert_close(found, plain)
    for name, one in parts.model.named_parameters():
        torch.testing.assert_close(one.grad, expected[name], atol=1e-5, rtol=1e-3, msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_9_1_ten_steps_do_not_wait_for_the_gpu(kind: str, parts_of: Any, batch_of: Any) -> None:
    parts, device = parts_of(kind), torch.device("cuda")
    model = parts.model.to(device)
    batch = {name: one.to(device) for name, one in batch_of(16).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(parts, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    first = last = step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            last = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(first) > 0 and torch.isfinite(last)
