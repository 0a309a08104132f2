"""The plain reference: the network token by token, its formulas as they are written.

B batch, T tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..kernels.choice import using
from ..model.liquid.cfc import CfC
from ..model.model import LiquidNet
from ..model.spiking.lif import LIF
from ..model.spiking.surrogates import spike
from ..run_settings import LiquidSettings
from .speed import fresh_net, seconds_of


def reference_ratio(settings: LiquidSettings, *, seconds: float = 5.0) -> dict[str, float]:
    """Forward and backward of a batch on one thread, beside the plain reference: a ratio."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    net = fresh_net(settings, "cpu").train()
    shape = (settings.train.data.batch, settings.data.sequence_length)
    tokens_BT = torch.randint(net.sizes.inputs, shape)

    def passing(forward: Callable[[LiquidNet, Tensor], Tensor]) -> Callable[[], None]:
        def one() -> None:
            net.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                forward(net, tokens_BT).flatten(0, 1), tokens_BT.flatten()
            )
            loss.backward()

        return one

    try:
        ours = seconds_of(passing(lambda net, x_BT: net(x_BT).y_BTV), seconds)
        with plain_reference():
            plain = seconds_of(passing(token_by_token), seconds)
    finally:
        torch.set_num_threads(threads)
    count = tokens_BT.numel()
    return {"tokens/s": count / ours, "tokens/s, reference": count / plain, "ratio": plain / ours}


def token_by_token(net: LiquidNet, x_BT: Tensor) -> Tensor:
    """What one pass gives, by as many passes as there are tokens, the state handed on."""
    state, said = None, []
    for x_B1 in x_BT.split(1, 1):
        out = net(x_B1, state)
        state = out.state
        said.append(out.y_BTV)
    return torch.cat(said, 1)


@contextlib.contextmanager
def plain_reference() -> Iterator[None]:
    """Cells and spiking units as their formulas are written, by autograd alone."""

    def run(units: LIF, current: Tensor, u: Tensor | None = None) -> tuple[Tensor, Tensor]:
        u = torch.zeros_like(current[0]) if u is None else u
        train, membranes = list[Tensor](), list[Tensor]()
        for i in current.unbind(0):
            fired = (u > units.threshold).to(i.dtype)
            if units.reset == "zero":
                u = units.beta * u * (1 - fired) + i
            else:
                u = units.beta * u + i - (fired * units.threshold if units.reset != "none" else 0)
            membranes.append(u)
            train.append(spike(u - units.threshold, units.surrogate, units.slope))
        return torch.stack(train), torch.stack(membranes)

    kept = CfC.sequence, LIF.run
    CfC.sequence, LIF.run = CfC.by_steps, run  # type: ignore[method-assign, assignment]
    try:
        with using("off"):
            yield
    finally:
        CfC.sequence, LIF.run = kept  # type: ignore[method-assign]
