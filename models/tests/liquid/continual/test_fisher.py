"""Fisher information against explicit loops, torch.func and closed forms."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from holdfast_models.liquid.continual.fisher import fisher_of


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def outputs(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return model(batch["x"])


def make_batch(count: int = 12, classes: int = 3) -> dict[str, Tensor]:
    return {"x": torch.randn(count, 4), "y": torch.randint(classes, (count,))}


def test_softmax_regression_has_the_closed_form() -> None:
    """Empirical: d log p(y|x) / dW = (onehot(y) - p) x^T for every sample."""
    model, batch = nn.Linear(4, 3), make_batch()
    found = fisher_of(model, outputs, [batch], target="y", empirical=True)
    error_BC = nn.functional.one_hot(batch["y"], 3) - model(batch["x"]).softmax(-1).detach()
    single_BCK = error_BC.unsqueeze(2) * batch["x"].unsqueeze(1)
    torch.testing.assert_close(found["weight"], single_BCK.square().mean(0))
    torch.testing.assert_close(found["bias"], error_BC.square().mean(0))


def test_the_true_fisher_tends_to_its_closed_form() -> None:
    """Labels drawn from the model: the mean of (onehot - p)^2 is p (1 - p)."""
    model = nn.Linear(4, 3)
    x = torch.randn(4)
    batch = {"x": x.expand(1500, 4), "y": torch.zeros(1500, dtype=torch.long)}
    found = fisher_of(model, outputs, [batch], samples=1500, target="y")
    p_C = model(x).softmax(-1).detach()
    torch.testing.assert_close(found["bias"], p_C * (1 - p_C), rtol=0.15, atol=0.01)


def test_it_is_the_mean_of_squares_of_single_samples_not_the_square_of_the_mean() -> None:
    """Against torch.func, a loop of backward passes, and the wrong formula."""
    model, batch = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), make_batch()
    found = fisher_of(model, outputs, [batch], target="y", empirical=True)

    def log_p(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, parameters, (x.unsqueeze(0),))
        return -nn.functional.cross_entropy(logits, y.unsqueeze(0))

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    gradients = torch.func.vmap(torch.func.grad(log_p), in_dims=(None, 0, 0))(
        parameters, batch["x"], batch["y"]
    )
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for x, y in zip(batch["x"], batch["y"], strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(x.unsqueeze(0)), y.unsqueeze(0)).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            sums[name] += parameter.grad.square()
    for name, value in found.items():
        torch.testing.assert_close(value, gradients[name].square().mean(0))
        torch.testing.assert_close(value, sums[name] / 12)
        assert not torch.allclose(value, gradients[name].mean(0).square(), rtol=0.1)


def test_tokens_of_one_sample_belong_together_and_padding_does_not_count() -> None:
    model = nn.Embedding(6, 6)
    batch = {"x": torch.tensor([[1, 2, 2]]), "y": torch.tensor([[3, 4, -100]])}
    found = fisher_of(model, outputs, [batch], target="y", empirical=True)["weight"]
    p = model.weight.softmax(-1).detach()
    for token, label in ((1, 3), (2, 4)):
        gradient = nn.functional.one_hot(torch.tensor(label), 6) - p[token]
        torch.testing.assert_close(found[token], gradient.square())
    assert not found[0].any()


def test_gaussian_outputs_have_the_jacobian_as_fisher() -> None:
    """Of unit variance: true Fisher of y = w x is the mean of x^2."""
    model = nn.Linear(1, 1, bias=False)
    x = torch.full((2000, 1), 1.5)
    found = fisher_of(model, outputs, [{"x": x, "y": x}], 2000, target="y", gaussian=True)
    assert found["weight"].item() == pytest.approx(2.25, rel=0.15)
    exact = fisher_of(
        model, outputs, [{"x": x, "y": x}], 5, target="y", gaussian=True, empirical=True
    )
    residual = (1 - model.weight.detach()) * 1.5
    torch.testing.assert_close(exact["weight"], (residual * 1.5).square())


def test_it_takes_no_more_samples_than_asked_for_and_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    drawn: list[int] = []

    def counted(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        assert not model.training
        drawn.append(len(batch["x"]))
        return model(batch["x"])

    fisher_of(model, counted, [make_batch(5), make_batch(5), make_batch(5)], 8, target="y")
    assert drawn == [1] * 8
    assert model.training and all(p.grad is None for p in model.parameters())


def test_unused_and_frozen_parameters() -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 3), "unused": nn.Linear(2, 2)})
    model["used"].requires_grad_(True).get_parameter("bias").requires_grad_(False)
    found = fisher_of(model, lambda m, b: model["used"](b["x"]), [make_batch()], target="y")
    assert set(found) == {"used.weight", "unused.weight", "unused.bias"}
    assert not found["unused.weight"].any() and found["used.weight"].any()


def test_the_drawing_depends_on_the_seed_alone() -> None:
    model, batch = nn.Linear(4, 3), make_batch()
    first, again, other = (
        fisher_of(model, outputs, [batch], target="y", seed=seed)["weight"] for seed in (3, 3, 4)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
