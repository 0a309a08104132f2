"""The fused loop as a CUDA graph: launched as one piece, forward and backward.

B batch, N flows. A training pass is captured after it has run a few times as it is, and replayed
from then on. It stays as it is where nothing is trained, where a debugging tool wants to see the
single operations, while an earlier pass still waits for its backward (one set of buffers serves
all replays), and where capturing fails; ``Graphs.reason`` then says why.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..model.ending import Finished, Stats
from ..model.noise import Key
from .fused import FusedPass, run_pass

__all__ = ["Graphs"]

_WARM = 2  # passes before one is captured: kernels are compiled and libraries opened by then
_MOST = 2  # graphs that are kept: each has memory of its own
# Flows from which the device works longer on a step than the host on its launches: leaving out the
# steps after an early stop, which a graph cannot, saves more than a graph does.
_STOPPING = 100_000


class Graphs:
    """The captured passes of one core; a copy of it, or one read from a file, has none yet."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], int] = {}
        self._captured: dict[tuple[Any, ...], _Captured] = {}
        self._places: tuple[int, ...] = ()
        self.fits: dict[tuple[Any, ...], bool] = {}
        """Which sizes of a batch fit into the memory there was when it was first asked."""
        self.reason: str | None = "no pass yet"
        """Why the last pass was not replayed; None: it was."""
        self.replays = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return (Graphs, ())

    def run(self, prepared: FusedPass, surface_BHW: Tensor) -> Finished:
        """Send a surface through the lattice, by a graph where that can be done."""
        captured = self._find(prepared, surface_BHW)
        if captured is None:
            return run_pass(prepared, surface_BHW)
        self.reason = None
        self.replays += 1
        return captured.replay(prepared, surface_BHW)

    def _find(self, prepared: FusedPass, surface_BHW: Tensor) -> _Captured | None:
        parameters = prepared.parts.parameters()
        self.reason = _why_not_replayed(surface_BHW, parameters) or _stops(prepared, surface_BHW)
        if self.reason is not None:
            return None
        places = tuple(one.data_ptr() for one in parameters)
        if places != self._places:  # moved: a graph would read where they were
            self._seen.clear()
            self._captured.clear()
            self._places = places
        key = (
            tuple(surface_BHW.shape), surface_BHW.dtype, surface_BHW.device,
            surface_BHW.requires_grad, tuple(one.requires_grad for one in parameters),
            prepared.plan, prepared.dtype, prepared.lattice_pass.key.seed,
            prepared.lattice_pass.training,
        )  # fmt: skip
        captured = self._captured.get(key)
        if captured is None:
            captured = self._capture(key, prepared, surface_BHW)
        if captured is not None and captured.busy:
            self.reason = "an earlier pass waits for its backward"
            return None
        return captured

    def _capture(
        self, key: tuple[Any, ...], prepared: FusedPass, surface_BHW: Tensor
    ) -> _Captured | None:
        seen = self._seen.get(key, 0)
        if seen < 0:
            self.reason = "it could not be captured before"
            return None
        if seen < _WARM or len(self._captured) >= _MOST:
            self._seen[key] = seen + 1
            self.reason = "it is not captured yet"
            return None
        stream = torch.cuda.current_stream(surface_BHW.device) if surface_BHW.is_cuda else None
        try:
            self._captured[key] = _Captured(prepared, surface_BHW)
            return self._captured[key]
        except Exception as error:  # training goes on without a graph, whatever it was
            if stream is not None:  # a capture that ends in an error leaves its own behind
                torch.cuda.set_stream(stream)
            self._seen[key] = -1
            self.reason = f"it could not be captured: {type(error).__name__}: {error}"
            return None


def _why_not_replayed(surface_BHW: Tensor, parameters: list[nn.Parameter]) -> str | None:
    """Why a pass has to run as it is."""
    if not surface_BHW.is_cuda:
        return "it is not on a GPU"
    if not torch.is_grad_enabled() or not any(one.requires_grad for one in parameters):
        return "nothing is trained"
    if torch.is_anomaly_enabled() or torch._C._len_torch_dispatch_stack() > 0:
        return "single operations are watched"
    if torch.cuda.is_current_stream_capturing():
        return "somebody else captures it"
    return None


def _stops(prepared: FusedPass, surface_BHW: Tensor) -> str | None:
    """Whether a pass should rather end early."""
    rules, settings = prepared.plan.convergence, prepared.parts.settings
    batch = surface_BHW.shape[0]
    flows = min(surface_BHW.numel(), settings.flows.capacity // batch * batch)
    if rules.on and flows >= _STOPPING and prepared.plan.steps > rules.least_steps + 1:
        return "its steps after an early stop are left out"
    return None


class _Pass:
    """Lives as long as a forward pass whose backward may come."""

    done = False


class _Results(NamedTuple):
    """What a captured pass leaves, in few tensors: each is copied after every replay."""

    surface_BS: Tensor
    e_N1: Tensor
    p_N3: Tensor
    filled_BS: Tensor
    k_N: Tensor
    exit_N: Tensor
    projected_N: Tensor
    whole: Tensor  # the statistics that are whole numbers
    real: Tensor  # those that are not


class _Captured:
    """One pass as two graphs, forward and backward, with the tensors they read and write."""

    def __init__(self, prepared: FusedPass, surface_BHW: Tensor) -> None:
        device = surface_BHW.device
        self._surface_BHW = torch.empty_like(surface_BHW).copy_(surface_BHW.detach())
        self._surface_BHW.requires_grad_(surface_BHW.requires_grad)
        self._step = torch.zeros((), dtype=torch.long, device=device)
        self._scale = torch.ones(1, device=device)
        key = Key(prepared.lattice_pass.key.seed, self._step)
        twin = _twin(prepared)._replace(
            lattice_pass=prepared.lattice_pass._replace(key=key, scale=self._scale)
        )
        leaves = [self._surface_BHW, *twin.parts.parameters()]
        self._needed = [one.requires_grad for one in leaves]
        wanted = [one for one in leaves if one.requires_grad]
        pool = torch.cuda.graph_pool_handle()
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Other threads (loaders, the guard) may use the device meanwhile.
        how: Any = {"pool": pool, "capture_error_mode": "thread_local"}
        with torch.cuda.graph(self._forward, **how):
            out = run_pass(twin, self._surface_BHW)
            results, self._whole_names, self._real_names = _packed(out)
        self._seeds = [torch.zeros_like(one) for one in results[:3]]
        # A backward pass is outside of autocast as a rule; this one must be.
        with torch.autocast(device.type, enabled=False), torch.cuda.graph(self._backward, **how):
            found = torch.autograd.grad(results[:3], wanted, self._seeds)
        self._found = [one.detach() for one in found]
        self._results = _Results(*(one.detach() for one in results))
        # The same in every pass.
        self._fixed = {name: getattr(out, name) for name in ("sample_N", "parent_N", "born_N")}
        self._waiting: weakref.ref[_Pass] | None = None

    @property
    def busy(self) -> bool:
        """Whether the newest pass may still be run backward."""
        waiting = None if self._waiting is None else self._waiting()
        return waiting is not None and not waiting.done

    def replay(self, prepared: FusedPass, surface_BHW: Tensor) -> Finished:
        """One pass; the results are copies and stay what they are."""
        step, scale = prepared.lattice_pass.key.step, prepared.lattice_pass.scale
        if isinstance(step, Tensor):
            self._step.copy_(step)
        else:
            self._step.fill_(step)
        if isinstance(scale, Tensor):
            self._scale.copy_(scale)
        else:
            self._scale.fill_(scale)
        out = _Results(*_Replay.apply(self, surface_BHW, *prepared.parts.parameters()))
        numbers = dict(zip(self._whole_names, out.whole.unbind(), strict=True))
        numbers |= zip(self._real_names, out.real.unbind(), strict=True)
        return Finished(
            surface_BS=out.surface_BS,
            filled_BS=out.filled_BS,
            e_N1=out.e_N1,
            p_N3=out.p_N3,
            k_N=out.k_N,
            exit_N=out.exit_N,
            projected_N=out.projected_N,
            **self._fixed,
            stats=Stats(**numbers),
        )

    def forward(self, surface_BHW: Tensor) -> tuple[_Pass, tuple[Tensor, ...]]:
        """Replay the first graph."""
        self._surface_BHW.detach().copy_(surface_BHW)
        self._forward.replay()
        now = _Pass()
        self._waiting = weakref.ref(now)
        return now, tuple(one.clone() for one in self._results)

    def backward(self, seeds: tuple[Tensor, ...]) -> list[Tensor | None]:
        """Replay the second graph."""
        for mine, given in zip(self._seeds, seeds, strict=True):
            mine.copy_(given)
        self._backward.replay()
        # New tensors in one launch: the next replay writes into these, and a gradient may be kept.
        copies = iter(torch._foreach_mul(self._found, 1.0))
        return [next(copies) if needed else None for needed in self._needed]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, captured: _Captured, surface_BHW: Tensor, *parameters: Tensor) -> Any:
        ctx.captured = captured
        # Saved to be told when one is changed before backward, which reads them again.
        ctx.save_for_backward(*parameters)
        ctx.now, out = captured.forward(surface_BHW)
        ctx.mark_non_differentiable(*out[3:])
        return out

    @staticmethod
    @once_differentiable  # hides the name of ctx from the type checker
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        _ = ctx.saved_tensors
        if ctx.now.done:
            raise RuntimeError(
                "the fused loop was run backward before, and its buffers are overwritten; "
                "call backward once for each forward, or set flows.mode=dense"
            )
        ctx.now.done = True
        return None, *ctx.captured.backward(grads[:3])


def _twin(prepared: FusedPass) -> FusedPass:
    """The same networks with parameters of their own in the same memory.

    A parameter remembers the stream of a pass that is still known somewhere, and a capture must
    not touch another stream than its own.
    """
    twins = []
    for module in (prepared.parts.neuron, prepared.parts.carrier):
        twin = copy.deepcopy(module)
        for mine, theirs in zip(twin.parameters(), module.parameters(), strict=True):
            mine.grad = None
            mine.data = theirs.data
        twins.append(twin)
    return prepared._replace(parts=prepared.parts._replace(neuron=twins[0], carrier=twins[1]))


def _packed(out: Finished) -> tuple[_Results, list[str], list[str]]:
    numbers = out.stats._asdict()
    whole = [name for name, one in numbers.items() if not one.is_floating_point()]
    real = [name for name, one in numbers.items() if one.is_floating_point()]
    results = _Results(
        surface_BS=out.surface_BS,
        e_N1=out.e_N1,
        p_N3=out.p_N3,
        filled_BS=out.filled_BS,
        k_N=out.k_N,
        exit_N=out.exit_N,
        projected_N=out.projected_N,
        whole=torch.stack([numbers[name].long() for name in whole]),
        real=torch.stack([numbers[name].float() for name in real]),
    )
    return results, whole, real
