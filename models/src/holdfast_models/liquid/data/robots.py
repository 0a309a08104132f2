"""Mechanical systems and the teachers that control them: RK4 in torch, double precision.

Each has ``start`` (states and targets to begin with), ``derivative`` (of the state, per second),
``observe`` (what a model sees: places, sines and cosines of angles, the target, no velocity) and
``teach`` (the action of the teacher, before it is limited to -1 to 1). An action of 1 is a force
or torque of ``gain * limit``.

Shapes: B trajectories, N numbers of a state, M of an action, G of a target.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

GRAVITY = 9.81


@dataclass(frozen=True)
class Parameters:
    """What changes from task to task: kg of each moving body, metres of the rod, each link or the
    wheel base, force or torque per velocity, and how strong the actuators are.
    """

    mass: float = 1.0
    length: float = 1.0
    friction: float = 0.1
    gain: float = 1.0


class _Pendulum(Parameters):
    """To be swung up and held; the motor lifts half its weight. State: angle from the top, rate.

    The teacher pumps energy; near the top it is a linear-quadratic regulator.
    """

    limit = 5.0

    def start(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = uniform(random, count, math.pi, 1)
        return state, state[:, :0]

    def derivative(self, state: Tensor, action: Tensor) -> Tensor:
        angle, rate = state.unbind(-1)
        torque = action[..., 0] * self.gain * self.limit - self.friction * rate
        fall = GRAVITY / self.length * angle.sin()
        return torch.stack((rate, fall + torque / (self.mass * self.length**2)), -1)

    def teach(self, state: Tensor, target: Tensor) -> Tensor:
        angle, rate = _wrapped(state[:, 0]), state[:, 1]
        balance = -torch.stack((angle, rate), -1) @ _regulator(self, 10.0, 1.0).mT
        height = GRAVITY / self.length * (1 - angle.cos())
        pump = (height - rate.square() / 2) * rate.sign() * self.length**2 * self.mass
        near = angle.abs() + 0.3 * rate.abs() < 0.4
        return torch.where(near[:, None], balance, pump[:, None] / self.gain)

    def observe(self, state: Tensor, target: Tensor) -> Tensor:
        return torch.cat((state[:, :1].sin(), state[:, :1].cos()), -1)


class _CartPole(Parameters):
    """A pole to balance on a cart that goes to a place. State: place, speed, angle, rate.

    The teacher is a linear-quadratic regulator whose force is limited.
    """

    limit = 20.0

    def start(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        return uniform(random, count, 1, 0.3, 0.3, 0.3), uniform(random, count, 1)

    def derivative(self, state: Tensor, action: Tensor) -> Tensor:
        _, speed, angle, rate = state.unbind(-1)
        sin, cos = angle.sin(), angle.cos()
        force = action[..., 0] * self.gain * self.limit - self.friction * speed
        force = force + self.mass * sin * (self.length * rate.square() - GRAVITY * cos)
        pushed = force / (1 + self.mass * sin.square())  # of a cart of 1 kg
        return torch.stack((speed, pushed, rate, (GRAVITY * sin - pushed * cos) / self.length), -1)

    def teach(self, state: Tensor, target: Tensor) -> Tensor:
        error = torch.cat((state[:, :1] - target, state[:, 1:]), -1)
        return -error @ _regulator(self, 1.0, 1.0, 5.0, 1.0).mT

    def observe(self, state: Tensor, target: Tensor) -> Tensor:
        return torch.cat((state[:, :1], state[:, 2:3].sin(), state[:, 2:3].cos(), target), -1)


class _Arm(Parameters):
    """Two upright links whose tip reaches for a point. State: two angles, two rates.

    The teacher solves the inverse kinematics, elbow forwards, and cancels all other torques (PD).
    """

    limit = 60.0

    def start(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        bent = torch.tensor((0.0, 1.5, 0.0, 0.0), dtype=torch.float64)
        state, goal = (bent + uniform(random, count, 2, 1, 0.5, 0.5) for _ in range(2))
        return state, self._tip(goal)

    def _tip(self, state: Tensor) -> Tensor:
        first, both = state[:, :1], state[:, :1] + state[:, 1:2]
        return self.length * torch.cat((first.cos() + both.cos(), first.sin() + both.sin()), -1)

    def _terms(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Inertia and the torques of motion and weight, for masses at the ends of the links."""
        first, second, rate, bending = state.unbind(-1)
        cos, sin, outer = second.cos(), second.sin(), (first + second).cos()
        inertia = torch.stack((3 + 2 * cos, 1 + cos, 1 + cos, torch.ones_like(cos)), -1)
        motion = torch.stack((-(2 * rate + bending) * bending * sin, rate.square() * sin), -1)
        weight = torch.stack((2 * first.cos() + outer, outer), -1) * GRAVITY / self.length
        scale = self.mass * self.length**2
        return scale * inertia.unflatten(-1, (2, 2)), scale * (motion + weight)

    def derivative(self, state: Tensor, action: Tensor) -> Tensor:
        inertia, torques = self._terms(state)
        own = action * self.gain * self.limit - self.friction * state[..., 2:]
        return torch.cat((state[..., 2:], torch.linalg.solve(inertia, own - torques)), -1)

    def teach(self, state: Tensor, target: Tensor) -> Tensor:
        second = (target.square().sum(-1) / (2 * self.length**2) - 1).clamp(-1, 1).acos()
        first = torch.atan2(target[:, 1], target[:, 0]) - second / 2
        error = _wrapped(torch.stack((first, second), -1) - state[:, :2])
        inertia, torques = self._terms(state)
        wanted = (inertia @ (16 * error - 8 * state[:, 2:])[..., None])[..., 0]
        return (wanted + torques + self.friction * state[:, 2:]) / (self.gain * self.limit)

    def observe(self, state: Tensor, target: Tensor) -> Tensor:
        return torch.cat((state[:, :2].sin(), state[:, :2].cos(), target), -1)


class _Navigation(Parameters):
    """A vehicle that is to stop at a point. State: x, y, heading, speed; it thrusts and steers.

    The teacher turns to the point and slows down before it (PD).
    """

    limit = 3.0

    def start(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        return uniform(random, count, 2, 2, math.pi, 0.5), uniform(random, count, 2, 2)

    def derivative(self, state: Tensor, action: Tensor) -> Tensor:
        heading, speed = state[..., 2], state[..., 3]
        thrust, steering = (action * self.gain * self.limit).unbind(-1)
        change = (thrust - self.friction * speed) / self.mass
        along = speed * heading.cos(), speed * heading.sin()
        return torch.stack((*along, steering / self.length, change), -1)

    def teach(self, state: Tensor, target: Tensor) -> Tensor:
        ahead = target - state[:, :2]
        away = ahead.norm(dim=-1)
        error = _wrapped(torch.atan2(ahead[:, 1], ahead[:, 0]) - state[:, 2])
        speed = away.clamp(max=1.5) * error.cos().clamp(min=0)
        thrust = 3 * self.mass * (speed - state[:, 3]) + self.friction * state[:, 3]
        steering = 4 * self.length * error * away / (away + 0.1)  # at the point any heading will do
        return torch.stack((thrust, steering), -1) / (self.gain * self.limit)

    def observe(self, state: Tensor, target: Tensor) -> Tensor:
        return torch.cat((state[:, :2], state[:, 2:3].sin(), state[:, 2:3].cos(), target), -1)


Robot = _Pendulum | _CartPole | _Arm | _Navigation
ROBOTS: Mapping[str, type[Robot]] = {
    "pendulum": _Pendulum,
    "cart-pole": _CartPole,
    "arm": _Arm,
    "navigation": _Navigation,
}


def rk4(robot: Robot, state: Tensor, action: Tensor, seconds_B1: Tensor) -> Tensor:
    """The state some seconds later, in two steps; the action is held."""
    h = seconds_B1 / 2
    for _ in range(2):
        k1 = robot.derivative(state, action)
        k2 = robot.derivative(state + h / 2 * k1, action)
        k3 = robot.derivative(state + h / 2 * k2, action)
        k4 = robot.derivative(state + h * k3, action)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


def uniform(random: torch.Generator, count: int, *most: float) -> Tensor:
    """Numbers between minus and plus each of ``most``."""
    made = torch.rand(count, len(most), generator=random, dtype=torch.float64) * 2 - 1
    return made * torch.tensor(most, dtype=torch.float64)


def _wrapped(angle: Tensor) -> Tensor:
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


@functools.cache
def _regulator(robot: Robot, *weights: float) -> Tensor:
    """Gains (M, N) of a linear-quadratic regulator about rest at 0; effort weighs 5.

    The Riccati equation is solved by the stable eigenvectors of its Hamiltonian matrix.
    """
    rest = torch.zeros(len(weights), dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    a, b = torch.autograd.functional.jacobian(robot.derivative, rest)
    cost = torch.diag(torch.tensor(weights, dtype=torch.float64))
    hamiltonian = torch.cat((torch.cat((a, -b @ b.mT / 5), 1), torch.cat((-cost, -a.mT), 1)))
    values, vectors = torch.linalg.eig(hamiltonian)
    upper, lower = vectors[:, values.real < 0].chunk(2)
    return b.mT @ (lower @ torch.linalg.inv(upper)).real / 5
