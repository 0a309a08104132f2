"""The controller: its start, its signal, and that it learns what helps."""

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast_models.liquid.plasticity.meta import MetaController
from holdfast_models.liquid.plasticity.plasticity import Plasticity
from holdfast_models.liquid.plasticity.rules import RULES
from holdfast_models.liquid.plasticity.synapses import PlasticLinear, events_of
from holdfast_models.liquid.plasticity.timing import RuleParameters

YES = torch.tensor(True)


def fed(controller: MetaController, entries: int = 12) -> MetaController:
    for number in range(entries):
        value = torch.tensor(float(number))
        controller.remember(torch.stack([-value, value, 0.1 * value]), YES)
    return controller


def test_it_starts_at_the_defaults() -> None:
    controller = MetaController(3, hidden=8)
    defaults_P1 = torch.tensor(RuleParameters()).unsqueeze(1)
    assert torch.equal(controller.now_PL, defaults_P1.expand(5, 3))
    torch.testing.assert_close(controller(torch.randn(20, 3)), defaults_P1.expand(5, 3))


def test_its_ranges_are_kept_whatever_the_heads_say() -> None:
    controller = MetaController(2, hidden=8)
    for sign in (-1e4, 1e4):
        for head in controller.heads:
            torch.nn.init.constant_(head.get_submodule("2").get_parameter("bias"), sign)
        found_PL = controller(torch.randn(20, 3))
        edge = (0.0, 10.0, 10.0, 0.0, 0.0) if sign < 0 else (0.1, 60.0, 60.0, 0.01, 0.01)
        torch.testing.assert_close(found_PL, torch.tensor(edge).unsqueeze(1).expand(5, 2))


def test_its_history_is_in_order_and_skipped_steps_repeat() -> None:
    controller = fed(MetaController(1, history=10, hidden=4), entries=13)
    assert controller.history_N3[:, 1].tolist() == list(range(3, 13))
    controller.remember(torch.tensor([1.0, 99.0, 1.0]), ~YES)
    controller.remember(torch.tensor([1.0, torch.nan, 1.0]), YES)
    assert controller.history_N3[-3:, 1].tolist() == [12, 12, 12]


def test_every_head_gets_a_gradient_and_after_one_step_every_parameter() -> None:
    controller = fed(MetaController(2, hidden=8, lr=0.01))
    made = torch.Generator().manual_seed(0)
    for _ in range(20):
        controller.learn(torch.randn(5, 2, generator=made))
    controller.hypergradient_PL.normal_(generator=made)
    controller.loss(controller(controller.history_N3[-12:])).backward()
    for name, parameter in controller.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
    fresh = MetaController(2, hidden=8)
    fresh.hypergradient_PL.fill_(1.0)
    fresh.loss(fresh(torch.randn(12, 3))).backward()
    for head in fresh.heads:
        assert any(p.grad is not None and p.grad.any() for p in head.parameters())


def test_the_pull_is_that_of_the_specification() -> None:
    controller = MetaController(2, hidden=4)
    now_PL = torch.tensor(RuleParameters()).unsqueeze(1).repeat(1, 2)
    now_PL[0] += torch.tensor([0.02, 0.01])
    now_PL[1, 0] += 5.0
    now_PL[2, 1] -= 2.0
    expected = 0.1 * ((0.02**2 + 0.01**2) / 2 + 0.001 * (5.0**2 / 2 + 2.0**2 / 2))
    assert controller.loss(now_PL).item() == pytest.approx(expected, rel=1e-5)


def test_its_adam_is_torchs_own() -> None:
    own, theirs = MetaController(2, hidden=4, lr=0.01), MetaController(2, hidden=4)
    theirs.load_state_dict(own.state_dict())
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for _ in range(3):
        gradients = [torch.randn_like(p) for p in own.parameters()]
        for parameter, gradient in zip(theirs.parameters(), gradients, strict=True):
            parameter.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        adam.step()
        with torch.no_grad():
            own._adam(torch.cat([gradient.flatten() for gradient in gradients]))
    for left, right in zip(own.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_the_hypergradient_is_that_of_autograd(rule, make_chain, spikes_BTK) -> None:
    """Of the loss after the change, with respect to the parameters that made the change."""
    model = make_chain()
    taken: list[Tensor] = []
    controller = MetaController(2, hidden=4)
    controller.learn = taken.append  # type: ignore[method-assign]
    plasticity = Plasticity(model.synapses, rule, interval=5, controller=controller)
    model(spikes_BTK)
    now_PL = controller.now_PL.clone().requires_grad_()
    moves = []
    for number, synapse in enumerate(model.synapses):
        synapse.fast.normal_(std=0.1)
        pre_BTK, h_BTU = synapse.recorded()
        now = RuleParameters(*now_PL[:, number].unbind())
        rule_object, post_BTU = copy.deepcopy(plasticity.rules[number]), events_of(h_BTU)
        rule_object.advance(post_BTU, YES)
        change = rule_object.change(pre_BTK, post_BTU, synapse.fast, now)
        moves.append(now.eta * change.total(now))
    plasticity.step(5, loss=torch.tensor(1.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(spikes_BTK).square().sum().backward()
    slopes_UK = [synapse.alpha.detach() * synapse.weight.grad for synapse in model.synapses]
    optimizer.step()
    optimizer.zero_grad()
    # The step changes alpha by a little: what counts is the alpha of now.
    ratio = [synapse.alpha.detach() / 0.1 for synapse in model.synapses]
    plasticity.step(6, loss=torch.tensor(1.0))
    value = sum((r * s * m).sum() for r, s, m in zip(ratio, slopes_UK, moves, strict=True))
    assert isinstance(value, Tensor)
    expected_PL = torch.autograd.grad(value, now_PL, materialize_grads=True)[0]
    torch.testing.assert_close(taken[0], expected_PL, rtol=1e-3, atol=1e-9)
    assert taken[0][0].all() and (rule == "bcm" or taken[0].all())


def trained(sign: float, steps: int = 150) -> Tensor:
    """Parameters after training where a larger weight makes the loss smaller (-1) or larger (+1).

    Every pre spike is followed by a post spike: the rule strengthens.
    """
    torch.manual_seed(0)
    layer = PlasticLinear(3, 2)
    controller = MetaController(1, hidden=8, lr=0.01)
    plasticity = Plasticity([layer], "classical", interval=1, controller=controller)
    pre_BTK, h_BTU = torch.zeros(2, 12, 3), torch.zeros(2, 12, 2)
    pre_BTK[:, ::4], h_BTU[:, 1::4] = 1.0, 1.0
    for step in range(1, steps):
        loss = sign * 1e4 * layer(pre_BTK).mean()
        loss.backward()
        layer.observe(h_BTU)
        layer.zero_grad()
        plasticity.step(step, loss=loss / 1e4)
    return controller.now_PL[:, 0]


def test_eta_rises_where_strengthening_helps_and_falls_where_it_hurts() -> None:
    helps_P, hurts_P = trained(-1.0), trained(1.0)
    assert helps_P[0] > 0.012 and hurts_P[0] < 0.008
    assert helps_P[3] > 0.005 > hurts_P[3], "so does the amplitude of strengthening"
    assert helps_P[4] < 0.00525 < hurts_P[4], "and that of weakening the other way"


def test_without_a_signal_it_stays_where_it_starts() -> None:
    torch.testing.assert_close(trained(0.0), torch.tensor(RuleParameters()), rtol=0.05, atol=0.0)


def test_every_layer_gets_parameters_of_its_own(make_chain, spikes_BTK) -> None:
    model = make_chain()
    controller = MetaController(2, hidden=8, lr=0.05)
    plasticity = Plasticity(model.synapses, "classical", interval=1, controller=controller)
    for step in range(1, 60):
        out = 1e3 * model(spikes_BTK).mean()
        out.backward()
        model.zero_grad()
        plasticity.step(step, loss=out.detach())
    assert not torch.equal(controller.now_PL[:, 0], controller.now_PL[:, 1])


@pytest.mark.parametrize("start", [(0.0,), (0.01, 5.0), (0.01, 20.0, 20.0, 0.02)])
def test_a_start_outside_the_ranges_is_one_line(start: Sequence[float]) -> None:
    with pytest.raises(HoldfastError, match="choose a start inside"):
        MetaController(1, start=RuleParameters(*start))


def test_too_short_a_history_and_a_missing_loss_are_one_line(make_chain, spikes_BTK) -> None:
    with pytest.raises(HoldfastError, match="meta-history-length is 5"):
        MetaController(1, history=5)
    model = make_chain()
    plasticity = Plasticity(model.synapses, interval=1, controller=MetaController(2, hidden=4))
    model(spikes_BTK)
    with pytest.raises(HoldfastError, match="loss=loss"):
        plasticity.step(1)


@pytest.mark.parametrize("case", ["no backward", "skipped", "at the bound"])
def test_what_says_nothing_about_the_change_is_not_learned_from(
    case, make_chain, spikes_BTK
) -> None:
    model = make_chain(bound=1e-4 if case == "at the bound" else 1.0)
    taken: list[Tensor] = []
    controller = MetaController(2, hidden=4)
    controller.learn = taken.append  # type: ignore[method-assign]
    plasticity = Plasticity(model.synapses, "classical", interval=2, controller=controller)
    controller.now_PL[0] = 1e6 if case == "at the bound" else 0.01
    loss = model(spikes_BTK).square().sum()
    loss.backward()
    plasticity.step(2, loss=loss.detach())
    if case != "no backward":
        model(spikes_BTK).square().sum().backward()
    plasticity.step(3, torch.tensor(case != "skipped"), loss=loss.detach())
    if case == "at the bound":
        moving = [synapse.fast.abs() < 1e-4 for synapse in model.synapses]
        assert not any(
            (each & (s.fast != 0)).any() for each, s in zip(moving, model.synapses, strict=True)
        )
    assert not taken[0].any()
