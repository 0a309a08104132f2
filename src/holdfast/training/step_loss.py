"""The loss of a batch as the loop asks for it: as it is, or replayed as CUDA graphs.

With ``train.graph`` the forward pass and the loss become one graph and the backward pass another,
so that the host launches two things instead of thousands. Guard, clipping and optimizer stay
outside: a bad step is skipped, and a step that is looked into runs operation by operation.

Captured is one form of batch, after it came a few times; others run as they are. Before it is used
a replay is compared with the same pass as it is, in loss and gradients. What is frozen in a
graph is looked for: parts of a batch that are no tensors, random numbers of the host, numbers
beside the loss that change. Whatever speaks against a graph is said in one line, and training goes
on without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..checkpoint import rng
from .compiling import CompiledModel
from .cuda_graphs import Captured, Graphs
from .data.transfer import changed, leaves
from .device import Place
from .state_before import StateBefore
from .task import split

Reported = tuple[Tensor, dict[str, Any]]

# A replay runs the same kernels, but sums of a GPU come in any order, in half precision too.
_APART = 0.05  # of the norm of a gradient
_NOISE = 1e-3  # of the largest norm: gradients that small are rounding


class StepLoss:
    """The loss and the numbers beside it: ``loss, numbers = step_loss(net, batch)``.

    Args:
        model: what is trained.
        compiled: has the loss function.
        graph: whether passes are to be replayed.
        place: where.
        say: called with why they are not, once.
    """

    def __init__(
        self,
        model: nn.Module,
        compiled: CompiledModel,
        *,
        graph: bool,
        place: Place,
        say: Callable[[str], None],
    ) -> None:
        self._model, self._compiled, self._say = model, compiled, say
        self._graphs = Graphs(most=1)
        self._on = graph
        # Of what was captured: names of the tensors beside the loss, and numbers that are none.
        self._names: list[str] = []
        self._numbers: dict[str, Any] = {}
        if graph and (why := _why_never(compiled, place)):
            self._refuse(why)

    def __call__(self, net: nn.Module, batch: Any) -> Reported:
        """By a replay where there is one."""
        if not self._on:
            return self.as_it_is(net, batch)
        parts = list(leaves(batch))
        other = next((one for one in parts if not isinstance(one, Tensor)), None)
        if other is not None or not parts:
            self._refuse(f"a batch holds a {type(other).__name__}, which would stay what it is")
            return self.as_it_is(net, batch)
        first = not self._graphs.replays
        found = self._graphs.run(
            self._function(net, batch),
            parts,
            [self._model],
            carries=1,
            key=(self._model.training, _form(batch)),
            check=lambda captured: self._wrong(captured, net, batch, parts),
        )
        if found is None:
            if self._graphs.failed:
                self._refuse(str(self._graphs.reason))
            return self.as_it_is(net, batch)
        if first:
            torch.cuda.empty_cache()  # what passes took as they were: a graph has its own memory
            self._say("graph: forward, loss and backward are replayed as CUDA graphs")
        loss, *numbers = found
        return loss, self._numbers | dict(zip(self._names, numbers, strict=True))

    def as_it_is(self, net: nn.Module, batch: Any) -> Reported:
        """Operation by operation."""
        return split(self._compiled.loss(net, batch))

    @property
    def replays(self) -> bool:
        """Whether passes may be replayed: what they build for autograd is then no typical graph."""
        return self._on

    def forget(self) -> None:
        """Batches are of other sizes from here on."""
        self._graphs.forget()

    # ------------------------------------------------------------------ capturing

    def _function(self, net: nn.Module, batch: Any) -> Callable[..., tuple[Tensor, ...]]:
        """The pass as a function of the tensors of a batch."""

        def run(*given: Tensor) -> tuple[Tensor, ...]:
            rows, host = iter(given), rng.host_state()
            try:
                loss, beside = self.as_it_is(net, changed(batch, lambda _: next(rows)))
            finally:
                rng.put_back(host)  # a capture computes nothing
            tensors = {name: value for name, value in beside.items() if _on(loss, value)}
            self._names = list(tensors)
            self._numbers = {n: value for n, value in beside.items() if n not in tensors}
            return (loss, *(value.detach() for value in tensors.values()))

        return run

    def _wrong(
        self, captured: Captured, net: nn.Module, batch: Any, parts: list[Tensor]
    ) -> str | None:
        """What a replay does not do as the pass itself; the model is as before afterwards."""
        names = {one: name for name, one in self._model.named_parameters()}
        wanted = [one for one in names if one.requires_grad]
        before, host = StateBefore(self._model), rng.host_state()
        try:
            loss, beside = self.as_it_is(net, batch)
            for name, number in self._numbers.items():
                if not _same(beside.get(name), number):
                    return f"{name} beside the loss is no tensor of the GPU and changes"
            expected = _gradients(loss, wanted)
            if not rng.same(host, rng.host_state()):
                return "it draws random numbers on the host, which a graph would not"
            before.put_back()
            replayed = captured.replay(parts, list(names))[0]
            found = _gradients(replayed, wanted)
        finally:
            before.put_back()
        if not loss.isfinite():  # a bad batch, which the guard skips
            return ""
        pairs = {"the loss": (loss.detach(), replayed.detach())}
        pairs |= {
            f"the gradient of {names[one]}": both
            for one, *both in zip(wanted, expected, found, strict=True)
        }
        return _difference(pairs)

    def _refuse(self, why: str) -> None:
        self._on = False
        self._graphs.forget()
        self._say(f"graph: {why}: passes run as they are")


def _why_never(compiled: CompiledModel, place: Place) -> str:
    """Why no pass of a run can be replayed."""
    if place.device.type != "cuda":
        return f"the run is on {place.device.type}"
    if place.world > 1:
        return f"{place.world} ranks exchange gradients amid the backward pass"
    if compiled.replays:
        return f"compile.mode={compiled.mode} replays graphs of its own"
    return ""


def _difference(pairs: Mapping[str, Sequence[Tensor | None]]) -> str | None:
    """The first of these that a replay has otherwise; waits for the device once."""
    there: dict[str, Tensor] = {}
    for name, (expected, found) in pairs.items():
        if (expected is None) != (found is None):
            return f"{name} does not come by the model that the loss function is given"
        if expected is not None and found is not None:
            apart = (expected.double() - found.double()).norm()
            there[name] = torch.stack([apart, expected.double().norm()])
    norms = dict(zip(there, torch.stack([*there.values()]).tolist(), strict=True))
    noise = _NOISE * max(size for _, size in norms.values())
    for name, (apart, size) in norms.items():
        if not apart <= _APART * size + noise:
            return f"{name} differs by {apart:.1e} of {size:.1e} from the pass as it is"
    return None


def _gradients(loss: Tensor, wanted: list[nn.Parameter]) -> tuple[Tensor | None, ...]:
    # A backward pass is outside of autocast as a rule.
    with torch.autocast(loss.device.type, enabled=False):
        return torch.autograd.grad(loss, wanted, allow_unused=True)


def _on(loss: Tensor, value: Any) -> bool:
    return isinstance(value, Tensor) and value.device == loss.device


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)


def _form(batch: Any) -> Any:
    """How a batch is nested, without its tensors."""
    if isinstance(batch, Mapping):
        named = cast(Mapping[Any, Any], batch)
        return (type(batch), *((name, _form(value)) for name, value in named.items()))
    if isinstance(batch, list | tuple):
        return (type(batch), *(_form(value) for value in cast("list[Any]", batch)))
    return type(batch)
