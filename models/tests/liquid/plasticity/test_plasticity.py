"""Fast weights move when they should, within their bounds, and nothing else moves."""

import io

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.liquid.plasticity.meta import MetaController
from holdfast_models.liquid.plasticity.plasticity import Plasticity
from holdfast_models.liquid.plasticity.rules import RULES
from holdfast_models.liquid.plasticity.synapses import PlasticLinear, events_of
from holdfast_models.liquid.plasticity.timing import RuleParameters

STRONG = RuleParameters(eta=5.0, a_plus=0.5, a_minus=0.2)


def states(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(left: dict, right: dict) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def test_events_are_rising_crossings_of_the_size() -> None:
    h_BTU = torch.tensor([0.6, 0.7, 0.4, -0.5, -0.9, 0.8, 0.1, 0.49, 0.51]).view(1, 9, 1)
    assert events_of(h_BTU).flatten().tolist() == [1, 0, 0, 1, 0, 0, 0, 0, 1]


def test_the_layer_adds_alpha_times_the_fast_weights() -> None:
    layer = PlasticLinear(4, 3)
    layer.fast.copy_(torch.randn(3, 4))
    x_BTK = torch.randn(2, 5, 4)
    whole_UK = layer.weight + 0.1 * layer.fast
    torch.testing.assert_close(layer(x_BTK), x_BTK @ whole_UK.T + layer.bias)
    assert "fast" in layer.state_dict()
    assert {name for name, _ in layer.named_parameters()} == {"weight", "bias", "alpha"}
    layer(x_BTK).sum().backward()
    assert layer.alpha.grad is not None and layer.alpha.grad != 0


def test_nothing_is_kept_without_being_told_nor_in_evaluation() -> None:
    layer, x_BTK = PlasticLinear(4, 3), torch.randn(2, 5, 4)
    layer.observe(layer(x_BTK))
    with pytest.raises(HoldfastError, match="recorded nothing"):
        layer.recorded()
    layer.record = True
    layer.observe(layer(x_BTK))
    layer.eval()
    layer.observe(layer(torch.zeros(1, 1, 4)))
    pre_BTK, h_BTU = layer.recorded()
    assert torch.equal(pre_BTK, x_BTK) and not h_BTU.requires_grad


@pytest.mark.parametrize("rule", RULES)
def test_fast_weights_move_and_slow_ones_stay_bit_for_bit(rule, make_chain, spikes_BTK) -> None:
    """Batches above 1, layers of unequal widths, every rule: a change must happen."""
    model = make_chain()
    plasticity = Plasticity(model.synapses, rule, interval=2, start=STRONG)
    for synapse in model.synapses:
        synapse.fast.normal_(std=0.1)
    model(spikes_BTK)
    before = states(model)
    plasticity.step(1)
    assert same(before, states(model)), "not its turn"
    plasticity.step(2)
    after = states(model)
    for name, value in after.items():
        assert torch.equal(value, before[name]) != name.endswith("fast"), name
    assert plasticity.last["norm"] > 0 and plasticity.last["change"] > 0


def test_one_update_is_eta_times_the_change_of_the_rule(make_chain, spikes_BTK) -> None:
    model = make_chain()
    now = RuleParameters(eta=0.3, a_plus=0.2)
    plasticity = Plasticity(model.synapses, "classical", interval=1, start=now, softness=0.5)
    model(spikes_BTK)
    expected = []
    for number, synapse in enumerate(model.synapses):
        pre_BTK, h_BTU = synapse.recorded()
        change = plasticity.rules[number].change(pre_BTK, events_of(h_BTU), synapse.fast, now)
        expected.append(0.3 * change.total(now))
    plasticity.step(1)
    for synapse, move_UK in zip(model.synapses, expected, strict=True):
        torch.testing.assert_close(synapse.fast, move_UK)


@pytest.mark.parametrize("non_negative", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_fast_weights_are_bounded(rule, non_negative, make_chain, spikes_BTK) -> None:
    model = make_chain(bound=0.05, non_negative=non_negative)
    start = RuleParameters(eta=50.0, a_plus=0.5, a_minus=0.6)
    plasticity = Plasticity(model.synapses, rule, interval=1, start=start, max_norm=10.0)
    for step in range(1, 30):
        model(spikes_BTK)
        plasticity.step(step)
    fast = torch.cat([synapse.fast.flatten() for synapse in model.synapses])
    assert fast.abs().max() <= 0.05
    assert plasticity.last["at_bound"] > 0
    assert (fast.min() >= 0) if non_negative else (fast.min() < 0), "signed weights stay signed"


def test_the_norm_of_a_change_is_capped_over_all_layers(make_chain, spikes_BTK) -> None:
    model = make_chain()
    start = RuleParameters(eta=1e4)
    plasticity = Plasticity(model.synapses, interval=1, start=start, max_norm=0.25)
    model(spikes_BTK)
    plasticity.step(1)
    moved = torch.cat([synapse.fast.flatten() for synapse in model.synapses])
    assert moved.norm().item() == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("allowed", [False, torch.tensor(False)])
@pytest.mark.parametrize("rule", RULES)
def test_a_skipped_step_changes_nothing(rule, allowed, make_chain, spikes_BTK) -> None:
    model = make_chain()
    controller = MetaController(2, hidden=4)
    plasticity = Plasticity(model.synapses, rule, interval=1, start=STRONG, controller=controller)
    model(spikes_BTK)
    before = states(model), plasticity.state_dict()
    before = before[0], {name: v.clone() for name, v in before[1].items() if "extra" not in name}
    plasticity.step(1, allowed, loss=torch.tensor(float("nan")))
    assert same(before[0], states(model)) and same(before[1], plasticity.state_dict())


@pytest.mark.parametrize("broken", ["input", "states"])
def test_a_non_finite_activity_changes_nothing(broken, make_chain, spikes_BTK) -> None:
    model = make_chain()
    plasticity = Plasticity(model.synapses, interval=1, start=STRONG)
    before = states(model), {k: v.clone() for k, v in plasticity.state_dict().items()}
    model(spikes_BTK)
    if broken == "input":
        model.synapses[0](spikes_BTK * torch.inf)
    else:
        model.synapses[1].observe(torch.full((3, 20, 3), torch.nan))
    plasticity.step(1)
    assert same(before[0], states(model)) and same(before[1], plasticity.state_dict())


@pytest.mark.parametrize("rule", RULES)
def test_no_step_reads_the_device(rule, make_chain, spikes_BTK, no_host_read) -> None:
    model = make_chain()
    controller = MetaController(2, hidden=4)
    plasticity = Plasticity(model.synapses, rule, interval=1, controller=controller)
    for step in range(1, 23):
        model(spikes_BTK).sum().backward()
        with no_host_read:
            plasticity.step(step, torch.tensor(True), loss=torch.tensor(1.0))


def test_every_layer_has_its_own_rule_and_averages(make_chain, spikes_BTK) -> None:
    model = make_chain((4, 3, 3))
    plasticity = Plasticity(model.synapses, interval=1)
    model(spikes_BTK)
    model.synapses[1].observe(torch.zeros(3, 20, 3))
    plasticity.step(1)
    first, second = plasticity.rules
    assert first is not second
    assert not torch.equal(first.get_buffer("rate_U"), second.get_buffer("rate_U"))


def test_parameters_of_one_layer_leave_the_others_alone(make_chain, spikes_BTK) -> None:
    model = make_chain()
    plasticity = Plasticity(model.synapses, "classical", interval=1)
    plasticity.start_PL[0, 1] = 0.0
    model(spikes_BTK)
    plasticity.step(1)
    assert model.synapses[0].fast.any() and not model.synapses[1].fast.any()


def test_protected_weights_move_less(make_chain, spikes_BTK) -> None:
    free, held = make_chain((4, 3)), make_chain((4, 3))
    held.load_state_dict(free.state_dict())
    factor_UK = torch.rand(3, 4)
    for model in (free, held):
        plasticity = Plasticity(model.synapses, "classical", interval=1)
        if model is held:
            plasticity.protect([factor_UK])
        model(spikes_BTK)
        plasticity.step(1)
    torch.testing.assert_close(held.synapses[0].fast, factor_UK * free.synapses[0].fast)


def test_under_autocast_changes_are_float32(make_chain, spikes_BTK) -> None:
    model = make_chain()
    plasticity = Plasticity(model.synapses, interval=1, start=STRONG)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(spikes_BTK)
        plasticity.step(1)
    assert model.synapses[0].fast.dtype == torch.float32 and model.synapses[0].fast.any()


@pytest.mark.parametrize("rule", RULES)
def test_a_resumed_run_goes_on_bit_for_bit(rule, make_chain, spikes_BTK) -> None:
    """Saved after any step, also between a change and the gradient that judges it."""

    def start() -> tuple:
        torch.manual_seed(5)
        model = make_chain()
        controller = MetaController(2, hidden=4, lr=0.1)
        made = Plasticity(model.synapses, rule, interval=2, controller=controller)
        return model, made, torch.optim.SGD(model.parameters(), lr=0.1)

    def go(first: int, last: int, model, plasticity, optimizer) -> None:
        for step in range(first, last):
            loss = (model(spikes_BTK) - step / 50).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            plasticity.step(step, loss=loss)

    whole = start()
    go(1, 64, *whole)
    parts = start()
    for first, last in ((1, 23), (23, 43), (43, 64)):
        go(first, last, *parts)
        file = io.BytesIO()
        torch.save([part.state_dict() for part in parts], file)
        file.seek(0)
        parts = start()
        for part, state in zip(parts, torch.load(file, weights_only=True), strict=True):
            part.load_state_dict(state)
    assert same(whole[0].state_dict(), parts[0].state_dict())
    found, expected = parts[1].state_dict(), whole[1].state_dict()
    assert found.pop("controller._extra_state") == expected.pop("controller._extra_state")
    assert same(expected, found)
    assert not torch.equal(whole[1].now_PL, start()[1].now_PL), "the controller has learned"


def test_no_layer_or_no_interval_is_one_line(make_chain) -> None:
    with pytest.raises(HoldfastError, match="0 layers"):
        Plasticity([])
    with pytest.raises(HoldfastError, match="interval 0"):
        Plasticity(make_chain().synapses, interval=0)
