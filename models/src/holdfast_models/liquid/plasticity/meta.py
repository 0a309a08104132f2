"""Meta-plasticity: a small network sets the parameters of every layer's rule.

It reads how training went and learns from a one-step hypergradient: what the next backward pass
says about the last change of the fast weights. Its Adam is kept in buffers, so that ``state_dict``
holds everything and no other optimizer sees it.

L layers, P = 5 parameters of a rule, N entries of history.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from .timing import RuleParameters

# Of eta, tau_plus, tau_minus, a_plus, a_minus: range, and weight of the pull back to the start.
_LOW = (0.0, 10.0, 10.0, 0.0, 0.0)
_HIGH = (0.1, 60.0, 60.0, 0.01, 0.01)
_PULL = (0.1, 1e-4, 1e-4, 0.0, 0.0)

_FEWEST = 10  # entries before the network is asked
_EVERY = 10  # hypergradients from one step to the next
_BETAS = (0.9, 0.999)


class MetaController(nn.Module):
    """Parameters of the rules, ``now_PL``, from the history of performance, loss and change.

    ``history`` entries are remembered and read by an LSTM of width ``hidden``; ``lr`` is of its
    Adam; ``start`` is what it returns at first and is pulled back to.
    """

    table_4P1: Tensor
    now_PL: Tensor
    history_N3: Tensor
    hypergradient_PL: Tensor
    moments_2: Tensor

    def __init__(
        self,
        layers: int,
        history: int = 100,
        hidden: int = 128,
        lr: float = 1e-3,
        *,
        start: RuleParameters | None = None,
    ) -> None:
        super().__init__()
        if history < _FEWEST:
            raise HoldfastError(f"meta-history-length is {history}; take {_FEWEST} or more.")
        start_P = torch.tensor(start or RuleParameters())
        low_P, span_P = torch.tensor(_LOW), torch.tensor(_HIGH) - torch.tensor(_LOW)
        logit_P = torch.logit((start_P - low_P) / span_P)
        if not logit_P.isfinite().all():
            raise HoldfastError(
                f"meta-plasticity starts at {start_P.tolist()}, not between {_LOW} and {_HIGH}; "
                f"choose a start inside, or leave meta-plasticity off."
            )
        self.encoder = nn.LSTM(3, hidden, num_layers=2, batch_first=True)
        self.heads = nn.ModuleList(_head(hidden, layers, float(logit)) for logit in logit_P)
        self.lr = lr
        rows = [low_P, span_P, start_P, torch.tensor(_PULL)]
        self.register_buffer("table_4P1", torch.stack(rows).unsqueeze(2))
        self.register_buffer("now_PL", start_P.unsqueeze(1).repeat(1, layers))
        self.register_buffer("history_N3", torch.zeros(history, 3))
        self.register_buffer("hypergradient_PL", torch.zeros_like(self.now_PL))
        self.register_buffer("moments_2", torch.zeros(2, sum(p.numel() for p in self.parameters())))
        self._counts = {"entries": 0, "hypergradients": 0, "steps": 0}

    def forward(self, history_N3: Tensor) -> Tensor:
        """Parameters (P, L) from entries in the order of time, each column standardised."""
        entries_N3 = history_N3 - history_N3.mean(0)
        entries_N3 = entries_N3 / (entries_N3.square().mean(0).sqrt() + 1e-6)
        last = self.encoder(entries_N3.unsqueeze(0))[0][0, -1]
        share_PL = torch.stack([head(last) for head in self.heads]).sigmoid()
        return self.table_4P1[0] + self.table_4P1[1] * share_PL

    def loss(self, now_PL: Tensor) -> Tensor:
        """Its slope in the parameters is the hypergradient and a pull to the start."""
        distance_PL = now_PL - self.table_4P1[2]
        pull = (self.table_4P1[3] * distance_PL.square()).mean(1).sum()
        return (self.hypergradient_PL * now_PL).sum() + pull

    def remember(self, entry_3: Tensor, allowed: Tensor) -> None:
        """Add performance, loss and log change; a skipped step or a non-finite value repeats."""
        entry_3 = torch.where(allowed & entry_3.isfinite().all(), entry_3, self.history_N3[-1])
        self.history_N3.copy_(torch.cat([self.history_N3[1:], entry_3.unsqueeze(0)]))
        self._counts["entries"] += 1

    @torch.no_grad()
    def learn(self, hypergradient_PL: Tensor) -> None:
        """Take dL/d(parameters); after every tenth the network steps and is asked again."""
        self.hypergradient_PL += hypergradient_PL / _EVERY
        self._counts["hypergradients"] += 1
        if self._counts["hypergradients"] % _EVERY or self._counts["entries"] < _FEWEST:
            return
        history_N3 = self.history_N3[-self._counts["entries"] :]
        with torch.enable_grad():
            gradients = torch.autograd.grad(self.loss(self(history_N3)), list(self.parameters()))
        self._adam(torch.cat([gradient.flatten() for gradient in gradients]))
        self.hypergradient_PL.zero_()
        self.now_PL.copy_(self(history_N3))

    def _adam(self, gradient: Tensor) -> None:
        """Step all parameters as one vector, clipped to norm 1; non-finite counts as 0."""
        norm = gradient.norm()
        gradient = torch.where(norm.isfinite(), gradient / norm.clamp(min=1.0), 0.0)
        self._counts["steps"] += 1
        mean, square = self.moments_2
        mean.lerp_(gradient, 1 - _BETAS[0])
        square.lerp_(gradient.square(), 1 - _BETAS[1])
        root = (square / (1 - _BETAS[1] ** self._counts["steps"])).sqrt()
        move = self.lr * mean / (1 - _BETAS[0] ** self._counts["steps"]) / (root + 1e-8)
        parts = move.split([parameter.numel() for parameter in self.parameters()])
        for parameter, part in zip(self.parameters(), parts, strict=True):
            parameter.sub_(part.view_as(parameter))

    def get_extra_state(self) -> dict[str, int]:
        """Counters, saved with the buffers."""
        return dict(self._counts)

    def set_extra_state(self, state: Any) -> None:
        """Counters of a saved controller."""
        self._counts = dict(state)


def _head(hidden: int, layers: int, logit: float) -> nn.Sequential:
    """Head that at first says ``logit`` for every layer, whatever the history."""
    last = nn.Linear(64, layers)
    nn.init.zeros_(last.weight)
    nn.init.constant_(last.bias, logit)
    return nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), last)
