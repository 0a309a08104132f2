"""``torch.compile`` that falls back with a reason, and never compiles twice for odd batches.

    compiled = CompiledModel(model, settings.compile, device, workers, say)
    for batch in batches:
        loss = compiled.run(forward_and_backward, batch)

The model is compiled in place: its names, its ``state_dict`` and whoever holds it stay as they
are. One set of shapes is compiled for training and one for validation; a batch of other shapes,
such as the last of an epoch, runs as it would without us.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..config import Section
from ..errors import HoldfastError
from .compilers import (
    Choice,
    choose,
    replays,
    shortened,
    without_graphs,
)
from .data.transfer import tensors
from .state_before import StateBefore
from .task import Loss

R = TypeVar("R")
Shapes = tuple[tuple[torch.Size, torch.dtype], ...]

# A CUDA graph is recorded in the second call after the one that compiles, and replayed then.
_RECORDING = 2
# So many batches of odd shapes, and more than half of all, are worth a word.
_MANY = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileSettings(Section):
    """Whether and how the model is compiled; true means default, false means none."""

    mode: bool | Literal["none", "default", "reduce-overhead", "max-autotune"] = "none"
    fullgraph: bool = False  # a break in the graph is an error, which falls back as any other
    loss: bool = False  # compile the loss function with the model; in training, on one rank
    force: bool = False  # compile just so, or end with the error: no check and no fall-back

    @property
    def name(self) -> str:
        """The mode as a word."""
        if isinstance(self.mode, bool):
            return "default" if self.mode else "none"
        return self.mode


class CompiledModel:
    """A model that is compiled where that works, and eager with the reason printed where not.

    Args:
        model: compiled in place; of a ``DistributedDataParallel`` what is inside it.
        settings: what was asked for.
        device: where the model lives.
        workers: how many processes load data.
        say: called once with what is not as it was asked for.
        loss: of the task, compiled with the model where the settings say so.
        ranks: how many train together; the wrapper of several is not compiled.
        start: how those processes are started, as in the settings of the data.
        accumulate: micro-batches to one optimizer step.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: CompileSettings,
        device: torch.device,
        workers: int,
        say: Callable[[str], None],
        *,
        loss: Loss | None = None,
        ranks: int = 1,
        start: str = "auto",
        accumulate: int = 1,
    ) -> None:
        self.seconds = 0.0
        """Time of all steps in which something was compiled."""
        self.fresh = False
        """Whether the last step was one of these: its time is not that of a step."""
        self.recompiles = 0
        """Graphs compiled after the first step of training and of validation: a slow surprise."""
        self.odd = 0
        """Batches of other shapes, which ran eagerly."""
        self._model = model.module if isinstance(model, DistributedDataParallel) else model
        self._force = settings.force
        self._say = say
        self._recording = 0
        # What is compiled, by whether the model trains and gradients are wanted.
        self._kinds: dict[tuple[bool, bool], _Kind] = {}
        choice = choose(
            settings.name,
            device,
            workers=workers,
            start=start,
            accumulate=accumulate,
            force=settings.force,
        )
        self.mode, self.why = choice.mode, choice.why
        self._choice, self._fullgraph = choice, settings.fullgraph
        self._plain_loss, self._with_loss = loss, settings.loss and ranks == 1
        self.loss: Any = loss
        """The loss function as training calls it."""
        self._replays = replays(choice.mode, device)
        # Its backward remembers the layout of the first gradient of a shape (torch 2.11), and
        # compiled passes have another one than eager passes: whichever comes second is wrong.
        self._cudnn_attention = torch.backends.cuda.cudnn_sdp_enabled()
        if self.mode != "none":
            self._compile(choice)
        if self.why:
            say(f"compile: {self.why}")
        if self.mode != "none" and settings.loss and not self._with_loss:
            say(f"compile: {ranks} ranks wrap the model: it is compiled, the loss is not")

    def _compile(self, choice: Choice) -> None:
        how: dict[str, Any] = {"mode": choice.mode}
        try:
            if not choice.threads:
                from torch._inductor import list_mode_options

                how = {"options": {**list_mode_options(choice.mode), "compile_threads": 1}}
            # Shapes are fixed: odd ones run eagerly, so that none has to be made dynamic. What
            # `model.compile` does, but through a function of ours: torch's own modules, such as
            # `nn.Sequential`, are skipped by the compiler without a word when they come first.
            how |= {"fullgraph": self._fullgraph, "dynamic": False}
            call = self._model._call_impl
            self._model._compiled_call_impl = torch.compile(_calling(call), **how)
            if self._with_loss:
                self.loss = torch.compile(_calling(cast(Loss, self._plain_loss)), **how)
            torch.backends.cuda.enable_cudnn_sdp(False)
        except Exception as error:  # for one, a python that this torch cannot compile for
            if self._force:
                raise
            self.mode, self.why = "none", f"{shortened(error)}: the model is not compiled"
            self._model._compiled_call_impl, self.loss = None, self._plain_loss

    def run(self, function: Callable[[Any], R], batch: Any) -> R:
        """``function(batch)``: forward and backward of a micro-batch, or a step of validation."""
        if self.mode == "none":
            self.fresh = False
            return function(batch)
        key = (self._model.training, torch.is_grad_enabled())
        shapes, kind = tuple(_shapes(batch)), self._kinds.get(key)
        # A run that goes on at the end of an epoch begins with the odd one: two that are alike
        # and unlike the first, which never came again, are what is usual.
        if kind is None or (kind.steps == 1 and kind.odd == shapes != kind.shapes):
            self._kinds[key] = _Kind(shapes)
            return self._first(function, batch)
        if shapes != kind.shapes:
            kind.odd = shapes
            return self._eagerly(function, batch, kind.steps)
        kind.steps += 1
        graphs = self.recompiles
        result = self._measured(function, batch)
        self.fresh = self.recompiles > graphs or self._recording > 0
        self._recording -= self._recording > 0
        return result

    @property
    def replays(self) -> bool:
        """Whether the compiler makes CUDA graphs of its own."""
        return self._replays

    def keep(self, value: R) -> R:
        """A tensor that outlives the step: what a CUDA graph returns is overwritten by the next."""
        return cast(R, value.clone()) if self._replays and isinstance(value, Tensor) else value

    def paused(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, the model runs eagerly: for anomaly mode, hooks and other close looks at it."""
        if self.mode == "none":
            return contextlib.nullcontext()
        return torch.compiler.set_stance("force_eager")

    def batches_are_cut(self) -> None:
        """Batches come in pieces from here on: of other shapes, and their gradients add up."""
        self._kinds.clear()
        if self._replays:
            torch.compiler.reset()  # the graphs, and the memory they keep
            mode, reasons = without_graphs(self.mode, 2)
            self.mode, self._replays = mode, False
            self._compile(dataclasses.replace(self._choice, mode=mode))
            self._say(f"compile: {reasons}")

    def undo(self) -> None:
        """Leave the model as it was found."""
        if self.mode != "none":
            self.mode, self._replays = "none", False
            self._model._compiled_call_impl, self.loss = None, self._plain_loss
            torch.backends.cuda.enable_cudnn_sdp(self._cudnn_attention)

    def _fall_back(self, why: str) -> None:
        self.undo()
        self.why, self.fresh = why, True
        self._say(f"compile: {why}")

    def _measured(self, function: Callable[[Any], R], batch: Any) -> R:
        """Run a compiled step; its time counts as compilation if something was compiled."""
        if self._replays:
            torch.compiler.cudagraph_mark_step_begin()
        began, graphs = time.perf_counter(), _graphs()
        try:
            return function(batch)
        finally:
            made = _graphs() - graphs
            if made > 0 or self._recording > 0:
                self.seconds += time.perf_counter() - began
                self.recompiles += max(made, 0)

    def _eagerly(self, function: Callable[[Any], R], batch: Any, steps: int) -> R:
        self.odd += 1
        self.fresh = False
        if self.odd == _MANY and self.odd > steps:
            self._say(
                f"compile: {self.odd} of {self.odd + steps} batches had other shapes than the "
                f"first and ran eagerly; pad them to one shape, or set compile.mode=none"
            )
        with self.paused():
            return function(batch)

    def _first(self, function: Callable[[Any], R], batch: Any) -> R:
        """The step that compiles: if it raises, it is made again without the compiler."""
        graphs = self.recompiles
        before = None if self._force else StateBefore(self._model)
        began, seconds = time.perf_counter(), self.seconds
        try:
            result = self._measured(function, batch)
        except HoldfastError:
            raise
        except Exception as error:
            if before is None:
                raise
            # Only its text: with the exception, its frames and all their tensors would stay.
            failure = shortened(error)
        else:
            self.recompiles = graphs
            self._recording = _RECORDING if self._replays else 0
            self.fresh = True
            if not _graphs():
                self._fall_back(f"no part of the model could be compiled{_first_break()}: eager")
            return result
        before.put_back()
        with self.paused():
            result = function(batch)  # an error of the loop's own comes again, and gets out
        self.seconds = seconds + time.perf_counter() - began
        self.recompiles = graphs
        self._fall_back(
            f"the first compiled step failed ({failure}): eager from here on "
            f"(compile.force=true ends with the whole error)"
        )
        return result


def _calling(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*inputs: Any, **named: Any) -> Any:
        return call(*inputs, **named)

    # Code of its own: the compiler never looks again at code that it once gave up.
    called.__code__ = called.__code__.replace()
    return called


@dataclasses.dataclass
class _Kind:
    """The batches of training, or of validation: the shapes compiled, and how many came."""

    shapes: Shapes
    steps: int = 1
    odd: Shapes | None = None


def _graphs() -> int:
    """How many graphs have been compiled in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def _first_break() -> str:
    """Why the compiler gave up where it first did, for a message."""
    from torch._dynamo.utils import counters

    reason = next(iter(counters["graph_break"]), "")
    return f" ({str(reason).splitlines()[0][:200]})" if reason else ""


def _shapes(batch: Any) -> Iterator[tuple[torch.Size, torch.dtype]]:
    """Shape and type of every tensor of a nested batch, in its order."""
    return ((tensor.shape, tensor.dtype) for tensor in tensors(batch))
