"""Robots: physics against formulas, teachers that control, and trajectories."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast import HoldfastError
from holdfast_models.liquid.data.baselines import fit, linear_control
from holdfast_models.liquid.data.robotics import STEP, make_robot, trajectories
from holdfast_models.liquid.data.robots import GRAVITY, ROBOTS, rk4
from holdfast_models.liquid.data.sequences import CHANGES


def run(robot: Any, state: Tensor, steps: int, seconds: float = 0.01) -> Tensor:
    """All states of a robot whose motors are off, (steps, B, N)."""
    actions = 1 if robot.limit in (5.0, 20.0) else 2
    states = [state]
    for _ in range(steps):
        off = state.new_zeros(len(state), actions)
        states.append(rk4(robot, states[-1], off, state.new_full((len(state), 1), seconds)))
    return torch.stack(states)


def test_small_swings_of_the_pendulum_are_those_of_the_formula() -> None:
    length, damping = 0.7, 0.3
    robot = make_robot("pendulum", length=length, mass=2.0, friction=2.0 * length**2 * damping)
    start = 1e-4
    below = torch.tensor([[math.pi + start, 0.0]], dtype=torch.float64)
    swing = run(robot, below, 300)[:, 0, 0] - math.pi
    t = torch.arange(301, dtype=torch.float64) * 0.01
    omega = math.sqrt(GRAVITY / length - damping**2 / 4)
    shape = (omega * t).cos() + damping / (2 * omega) * (omega * t).sin()
    expected = start * torch.exp(-damping * t / 2) * shape
    assert torch.allclose(swing, expected, rtol=0, atol=1e-7 * start + 1e-11)


def energy_of(name: str, robot: Any, state: Tensor) -> Tensor:
    m, r, g = robot.mass, robot.length, GRAVITY
    if name == "pendulum":
        angle, rate = state.unbind(-1)
        return m * r * (0.5 * r * rate**2 + g * angle.cos())
    if name == "cart-pole":
        _, speed, angle, rate = state.unbind(-1)
        x, y = speed + r * rate * angle.cos(), -r * rate * angle.sin()
        return 0.5 * speed**2 + 0.5 * m * (x**2 + y**2) + m * g * r * angle.cos()
    first, second, rate, bending = state.unbind(-1)
    both, turning = first + second, rate + bending
    x1, y1 = -r * rate * first.sin(), r * rate * first.cos()
    x2, y2 = x1 - r * turning * both.sin(), y1 + r * turning * both.cos()
    height = 2 * r * first.sin() + r * both.sin()
    return 0.5 * m * (x1**2 + y1**2 + x2**2 + y2**2) + m * g * height


@pytest.mark.parametrize("name", ["pendulum", "cart-pole", "arm"])
def test_energy_is_conserved_without_friction(name: str) -> None:
    robot = make_robot(name, mass=1.3, length=0.8, friction=0.0)
    state, _ = robot.start(5, torch.Generator().manual_seed(0))
    states = run(robot, state, 100, 0.02)
    energy = energy_of(name, robot, states)
    assert torch.allclose(energy, energy[:1].expand_as(energy), rtol=2e-4, atol=1e-3)
    assert (states[-1] - state).abs().amax(1).min() > 0.3
    slowed = make_robot(name, mass=1.3, length=0.8, friction=0.5)
    lost = energy_of(name, slowed, run(slowed, state, 100, 0.02))
    assert (lost[-1] < lost[0] - 0.01).all()


def test_rk4_is_of_fourth_order() -> None:
    robot = make_robot("pendulum")
    state = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    exact = run(robot, state, 512, 1 / 512)[-1]
    coarse, fine = (float((run(robot, state, n, 1 / n)[-1] - exact).abs().max()) for n in (32, 64))
    assert 12 < coarse / fine < 20


def distance(name: str, robot: Any, state: Tensor, target: Tensor) -> Tensor:
    if name == "pendulum":
        return (1 - state[:, 0].cos()).sqrt() + state[:, 1].abs()
    if name == "cart-pole":
        return (state[:, 0] - target[:, 0]).abs() + state[:, 1:].abs().sum(1)
    if name == "arm":
        x = state[:, 0].cos() + (state[:, 0] + state[:, 1]).cos()
        y = state[:, 0].sin() + (state[:, 0] + state[:, 1]).sin()
        return (torch.stack((x, y), 1) * robot.length - target).norm(dim=1)
    return (state[:, :2] - target).norm(dim=1) + state[:, 3].abs()


@pytest.mark.parametrize("name", ROBOTS)
def test_the_teacher_reaches_the_target_in_every_task(name: str) -> None:
    for change in CHANGES:
        robot = make_robot(name, **change)
        state, target = robot.start(12, torch.Generator().manual_seed(1))
        assert distance(name, robot, state, target).max() > 0.5
        for _ in range({"arm": 60, "cart-pole": 120}.get(name, 200)):
            action = robot.teach(state, target).clamp(-1, 1)
            state = rk4(robot, state, action, state.new_full((12, 1), STEP))
        assert distance(name, robot, state, target).max() < 0.05, change


@pytest.mark.parametrize("name", ROBOTS)
def test_trajectories_have_their_form(name: str) -> None:
    robot = make_robot(name)
    data, again, other = (trajectories(robot, 40, 32, seed=seed) for seed in (0, 0, 1))
    inputs, outputs = data[0]["x"].shape[1], data[0]["y"].shape[1]
    assert {key: tuple(value.shape) for key, value in data[3].items()} == {
        "x": (32, inputs), "y": (32, outputs), "dt": (32,),
    }  # fmt: skip
    for key, value in data.tensors.items():
        assert value.dtype == torch.float32 and value.isfinite().all()
        assert torch.equal(value, again.tensors[key])
        assert not torch.equal(value, other.tensors[key])
    assert data.tensors["y"].abs().max() <= 1 and data.tensors["y"].std() > 0.1
    assert data.tensors["x"].abs().max() < 4
    dt = data.tensors["dt"]
    assert (dt[:, 0] == 1).all() and 0.5 <= dt.min() < 0.6 and 1.4 < dt.max() <= 1.5
    even = trajectories(robot, 4, 8, uneven=0.0).tensors["dt"]
    assert torch.equal(even, torch.ones(4, 8))


def test_dt_is_the_time_before_an_observation() -> None:
    """A vehicle without friction or motor keeps its speed: its way tells the time."""
    robot = make_robot("navigation", friction=0.0, gain=1e-9)
    data = trajectories(robot, 10, 16).tensors
    way = data["x"][:, 1:, :2].diff(dim=1).norm(dim=2)
    time = data["dt"][:, 2:]
    assert torch.allclose(way / way[:, :1], time / time[:, :1], atol=1e-3)


def test_the_teacher_depends_on_the_task() -> None:
    """The same observations ask for other actions, so a model can forget."""
    for name in ROBOTS:
        built, changed = make_robot(name), make_robot(name, gain=0.7)
        state, target = built.start(50, torch.Generator().manual_seed(0))
        difference = built.teach(state, target) - changed.teach(state, target)
        assert difference.abs().mean() > 0.02


LINEAR = {"pendulum": 0.15, "cart-pole": 0.74, "arm": 0.56, "navigation": 0.0}


@pytest.mark.parametrize("name", ROBOTS)
def test_linear_models_reach_what_the_docstring_says(name: str) -> None:
    parts = [trajectories(make_robot(name), count, 64, seed=n) for n, count in enumerate((300, 80))]
    assert linear_control(*parts).r2 == pytest.approx(LINEAR[name], abs=0.08)


def test_linear_control_finds_a_linear_rule_and_a_network_does_better_where_there_is_none() -> None:
    parts = [trajectories(make_robot("navigation"), 100, 32, seed=n) for n in (0, 1)]
    inputs = [torch.cat((p.tensors["x"], p.tensors["dt"][..., None]), -1) for p in parts]
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(7, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
    )
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        functional.mse_loss(network(inputs[0]), parts[0].tensors["y"]).backward()
        optimizer.step()
    with torch.no_grad():
        found = fit(network(inputs[1]).flatten(0, 1), parts[1].tensors["y"].flatten(0, 1))
    assert found.r2 > linear_control(*parts).r2 + 0.2
    for part in parts:  # now a rule that needs the two observations before
        x = part.tensors["x"][..., :2]
        part.tensors["y"] = torch.cat((x[:, :1], x[:, :1], 2 * x[:, 1:-1] - x[:, :-2]), 1)
    assert linear_control(*parts).r2 > 0.99


def test_bad_robots_are_one_line() -> None:
    for name, parameters, why in (
        ("crane", {}, "use one of pendulum, cart-pole, arm, navigation"),
        ("arm", {"weight": 1.0}, "weight 1.0; give positive numbers for mass, length"),
        ("arm", {"mass": -1.0}, "mass -1.0"),
        ("arm", {"friction": math.nan}, "friction nan"),
    ):
        with pytest.raises(HoldfastError, match=why):
            make_robot(name, **parameters)
    with pytest.raises(HoldfastError, match="0 trajectories of 5 steps"):
        trajectories(make_robot("arm"), 0, 5)
    with pytest.raises(HoldfastError, match="uneven by 1"):
        trajectories(make_robot("arm"), 2, 5, uneven=1.0)
