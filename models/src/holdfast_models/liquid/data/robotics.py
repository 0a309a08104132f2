"""Trajectories of simulated robots: a model learns the action of the teacher that controls them.

No velocity is observed and the times between observations are uneven, so a model has to remember.
Ridge regression on the last 4 observations and times reaches an R^2 of about 0.15 for the
pendulum, 0.74 for the cart-pole, 0.56 for the arm and 0.00 for navigation (``linear_control``).
A GRU of 48 units had 0.73, 0.71 and 0.75 of the first three after 300 steps: the teacher of the
cart-pole is itself linear but for its limit, so little can be gained there.

Shapes: B trajectories, T time steps.
"""

from __future__ import annotations

import torch

from holdfast import HoldfastError

from .robots import ROBOTS, Parameters, Robot, rk4, uniform
from .tensor_rows import TensorRows

STEP = 0.05
"""Nominal seconds from one observation to the next."""


def make_robot(name: str, **parameters: float) -> Robot:
    """A robot by name, with other parameters than its own: mass, length, friction, gain."""
    if name not in ROBOTS:
        raise HoldfastError(f"robot {name!r} is not known; use one of {', '.join(ROBOTS)}")
    known = Parameters.__dataclass_fields__
    for key, value in parameters.items():
        if key not in known or not (value > 0 or (key == "friction" and value == 0)):
            raise HoldfastError(
                f"{name} with {key} {value}; give positive numbers for {', '.join(known)}"
            )
    return ROBOTS[name](**parameters)


def trajectories(
    robot: Robot, count: int, steps: int, *, noise: float = 0.1, uneven: float = 0.5, seed: int = 0
) -> TensorRows:
    """Samples ``{"x": (T, inputs), "y": (T, outputs), "dt": (T,)}``, float32.

    ``x`` is observed, ``y`` the action of the teacher between -1 and 1, and ``dt`` the time since
    the observation before in units of ``STEP``, 1 on average and different by at most ``uneven``.
    ``noise`` is added to the actions that are carried out, not to ``y``: a model sees how the
    teacher corrects an error.
    """
    if count < 1 or steps < 1 or not 0 <= uneven < 1:
        raise HoldfastError(
            f"{count} trajectories of {steps} steps, uneven by {uneven}; give 1 or more of each, "
            "and uneven from 0 to below 1"
        )
    random = torch.Generator().manual_seed(seed)
    state, target = robot.start(count, random)
    dt_BT = 1 + uniform(random, count, *[uneven] * steps)
    seen, taught = [], []
    for t in range(steps):
        seen.append(robot.observe(state, target))
        taught.append(robot.teach(state, target).clamp(-1, 1))
        push = torch.randn(taught[-1].shape, generator=random, dtype=state.dtype)
        action = (taught[-1] + noise * push).clamp(-1, 1)
        # dt is the time before an observation, and before the first one there was none.
        state = rk4(robot, state, action, STEP * dt_BT[:, (t + 1) % steps, None])
    dt_BT[:, 0] = 1
    x_BTF, y_BTM = (torch.stack(parts, 1).float() for parts in (seen, taught))
    return TensorRows(x=x_BTF, y=y_BTM, dt=dt_BT.float())
