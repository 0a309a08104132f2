"""Find the operation, the line and the sample behind a non-finite loss or gradient.

The step is rerun under observation, from the frame that called ``backward``: same
weights, same batch, same random numbers. What comes out is the ``Cause`` of an incident.
"""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ...probes.batches import Batch, bad_columns, tensors
from ...records.nonfinite import Cause
from ...shards import local
from ...source.excerpts import excerpt_at
from ...source.frames import frames_from
from ...source.ownership import kind_of
from ...source.paths import from_here
from ...source.slices import NotRepeatable
from .by_itself import by_itself
from .observer import FirstBadOp, Observer
from .rerun import calls_of_backward, last_written, recipe, recipe_of
from .tensor_stats import bad, bad_rows, floating

# Calls of backward that are tried, the nearest first.
_TRIES = 4
# Samples of one batch that are named.
_NAMED = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class StepContext:
    """What is around an incident."""

    modules: Mapping[int, str]
    """Dotted path of every module by its id."""
    parameters: Mapping[int, tuple[str, Tensor]]
    """Name and tensor of every parameter, by the address of its memory."""
    buffers: Mapping[int, tuple[str, Tensor]]
    """The same of every buffer."""
    batch: Batch | None = None
    owners: Sequence[object] = ()
    """Objects of the user whose counters must not notice: the modules."""
    loss: Tensor | None = None
    """What backward was last called on, while it is alive."""
    rng: Tensor | None = None
    """RNG state of the host when the batch was fetched."""

    @property
    def weights(self) -> list[Tensor]:
        """The parameters that are trained."""
        return [p for _, p in self.parameters.values() if p.requires_grad]


def spot(frame: FrameType | None) -> str:
    """The line outside of torch that a frame was reached from, to tell calls apart."""
    for at in frames_from(frame):
        if kind_of(at.f_code.co_filename) != "torch":
            return f"{at.f_code.co_filename}:{at.f_lineno}"
    return ""


def of_loss(frame: FrameType | None, step_context: StepContext) -> Cause | None:
    """The cause of a bad loss on which ``backward`` is just being called; None if not found."""
    return _repeated(frame, step_context, calls=1, backward=False)


def of_gradients(frame: FrameType | None, step_context: StepContext) -> Cause | None:
    """The cause of bad gradients with a finite loss, from inside ``backward`` or ``step()``."""
    return _repeated(frame, step_context, calls=_TRIES, backward=True)


def _repeated(
    frame: FrameType | None, step_context: StepContext, *, calls: int, backward: bool
) -> Cause | None:
    """Compute the loss again, by the calls of backward in sight, then by the tensor itself."""
    at_calls = list(islice(calls_of_backward(frame), calls))
    recipes = [partial(recipe, at, call) for at, call in at_calls]
    if step_context.loss is not None:
        recipes.append(partial(recipe_of, step_context.loss, frame))
    # The objects whose methods are running keep counters too: trainers, mostly.
    running = [
        f.f_locals.get("self")
        for f in frames_from(frame)
        if kind_of(f.f_code.co_filename) != "torch" and "self" in f.f_code.co_varnames
    ]

    def born(make: Callable[[], Callable[[], Any]]) -> FirstBadOp | None:
        kept = _as_they_were([*step_context.owners, *running])
        with contextlib.suppress(NotRepeatable), kept, by_itself():
            return _observed(make(), step_context, backward=backward)
        return None

    for make in recipes:
        first_bad_op = born(make)
        found = None if first_bad_op is None else reported(first_bad_op, step_context, how="replay")
        if found is not None:
            return found
    # A batch from a loader can be handed out once more, which shows how it became bad.
    for at, call in at_calls if step_context.batch is None else ():
        first_bad_op = born(partial(recipe, at, call, as_it_is=True))
        if first_bad_op is not None and first_bad_op.leaf is not None:
            return _of_variable(first_bad_op, at, call, step_context)
    return None


def _of_variable(
    first_bad_op: FirstBadOp, frame: FrameType, call: ast.Call, step_context: StepContext
) -> Cause | None:
    """Bad before the model saw it: the variable, and the line of the loop that gave it last."""
    found = reported(first_bad_op, step_context, how="replay")
    written = (
        last_written(frame, call, first_bad_op.leaf) if first_bad_op.leaf is not None else None
    )
    if found is None or found.phase != "input" or written is None:
        return found
    variable, line = written
    source = excerpt_at(frame.f_code.co_filename, line)
    return found.replace(
        file=from_here(frame.f_code.co_filename),
        line=line,
        library="",
        code=source.code,
        start=source.start,
        excerpt=source.lines,
        function=frame.f_code.co_name,
        variable=variable,
    )


def _observed(
    again: Callable[[], Any], step_context: StepContext, *, backward: bool
) -> FirstBadOp | None:
    observer = observer_of(step_context)
    # Whatever the user's code warns of, it has warned of the first time.
    quiet = warnings.catch_warnings(action="ignore")
    with _same_rng_state(step_context.rng), _same_buffers(step_context), torch.enable_grad(), quiet:
        observer.start()
        try:
            results = list(floating(_called(again)))
            if not results:
                raise NotRepeatable("what backward was called on is no tensor")
            loss = next((t for t in results if t.grad_fn is not None), results[0])
            if bad(loss):
                return observer.responsible(loss)
            if not backward or loss.grad_fn is None:
                return None
            observer.follow(loss)
            _called(
                partial(torch.autograd.grad, loss.sum(), step_context.weights, allow_unused=True)
            )
            return observer.backward_bad_op
        finally:
            observer.stop()


def observer_of(step_context: StepContext) -> Observer:
    """One that knows the names of this scene."""
    held = step_context.batch.content if step_context.batch is not None else None
    return Observer(
        step_context.modules, step_context.buffers, {_address(t) for _, t in tensors(held)}
    )


def _called(again: Callable[[], Any]) -> Any:
    try:
        return again()
    except Exception as error:
        raise NotRepeatable(f"computing it again raised {type(error).__name__}") from error


@contextlib.contextmanager
def _as_they_were(owners: Sequence[object]) -> Iterator[None]:
    """Numbers and words that objects keep about themselves are put back: ``self.steps += 1``."""
    simple = (int, float, str, type(None))
    kept = [
        (vars(o), {k: v for k, v in vars(o).items() if isinstance(v, simple)})
        for o in owners
        if hasattr(o, "__dict__")
    ]
    try:
        yield
    finally:
        for now, before in kept:
            now.update(before)


@contextlib.contextmanager
def _same_rng_state(rng: Tensor | None) -> Iterator[None]:
    generator = torch.random.default_generator
    now = generator.get_state()
    on_device = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    if rng is not None:
        generator.set_state(rng)
    try:
        yield
    finally:
        generator.set_state(now)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device)


@contextlib.contextmanager
def _same_buffers(step_context: StepContext) -> Iterator[None]:
    """A forward pass moves running statistics, and the step may yet be taken.

    The graph of the user's own pass may have saved them: what is put back bit for bit must not
    count as changed, or the backward that is about to run would refuse.
    """
    buffers = tuple(b for _, b in step_context.buffers.values() if not b.is_inference())
    copies = [buffer.detach().clone() for buffer in buffers]
    with _unsafe_preserve_version_counter(buffers):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, copy in zip(buffers, copies, strict=True):
                    buffer.copy_(copy)


def reported(first_bad_op: FirstBadOp, step_context: StepContext, *, how: str) -> Cause | None:
    """A birth as a record; None when it only says that something unseen was bad before."""
    phase, layer, output = (
        "backward" if first_bad_op.backward else "forward",
        "",
        first_bad_op.output,
    )
    if first_bad_op.leaf is not None:
        if first_bad_op.leaf.grad_fn is not None:
            return None
        address = _address(first_bad_op.leaf)
        known = step_context.parameters.get(address) or step_context.buffers.get(address)
        phase, layer = ("parameter", known[0]) if known else ("input", "")
    source = excerpt_at(first_bad_op.place.file, first_bad_op.place.line)
    rows, indices = _rows(output, step_context, phase)
    row = rows[0] if len(rows) == 1 else None
    return Cause(
        how=how,
        phase=phase,
        op=first_bad_op.op,
        file=from_here(first_bad_op.place.file),
        line=first_bad_op.place.line,
        function=first_bad_op.place.function,
        code=source.code,
        start=source.start,
        excerpt=source.lines,
        module=first_bad_op.place.module,
        library=first_bad_op.place.library,
        inputs=first_bad_op.inputs,
        output=first_bad_op.reported,
        dtype=first_bad_op.reported.dtype if first_bad_op.reported else "",
        sample=indices[row] if row is not None and row < len(indices) else None,
        row=row,
        samples=_samples(rows, indices),
        columns=tuple(bad_columns(output)) if phase == "input" and output is not None else (),
        samples_bad=len(rows),
        layer=layer,
    )


def _samples(rows: Sequence[int], indices: Sequence[Any]) -> tuple[tuple[int, Any], ...]:
    """Row and dataset index of each bad sample; none where most are: then it is not the sample."""
    if len(rows) > 1 and 2 * len(rows) > len(indices):
        return ()
    return tuple((row, indices[row]) for row in rows[:_NAMED] if row < len(indices))


def addresses(named: Sequence[tuple[str, Tensor]]) -> dict[int, tuple[str, Tensor]]:
    """Parameters by the address of their memory, under which a view of them is found too."""
    return {_address(p): (name, p) for name, p in named}


def _address(tensor: Tensor) -> int:
    return local(tensor).untyped_storage()._cdata


def _rows(
    output: Tensor | None, step_context: StepContext, phase: str
) -> tuple[list[int], list[Any]]:
    """Rows of the batch that are bad in the output, and the dataset indices of the batch."""
    batch = step_context.batch
    indices = list(batch.indices) if batch is not None and batch.indices else []
    if phase == "parameter" or output is None or not indices:
        return [], []
    if len(indices) == 1:
        return [0], indices
    # A tensor shaped like a weight may have as many rows as the batch by chance.
    if phase != "input" and any(p.shape == output.shape for p in step_context.weights):
        return [], indices
    return bad_rows(output, len(indices)), indices
