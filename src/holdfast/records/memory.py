"""Memory: what grew, what was split, what ran out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from .base import Kind, Record

Seen = Literal["", "trace", "source", "guess"]
"""How a line was found: seen at work, read in the source, one of several in the source."""
Fix = Literal["", "function", "statement", "shared"]

# ---------------------------------------------------------------------- lines of the script


class CodeLine(Record):
    """A line of the script with its statement; empty where it is not known."""

    file: str = ""
    """As the user would write it."""
    line: int = 0
    """The line itself, counted from 1; 0 where it is not known."""
    code: str = ""
    """The statement at the line."""
    start: int = 0
    """The line on which the statement begins."""
    excerpt: tuple[tuple[int, str], ...] = ()
    """Number and text of the lines around it."""
    seen: Seen = ""
    """How it was found; empty where it was known from the beginning."""


class StoringLine(CodeLine):
    """The line that makes a value grow, and what the source does with that value."""

    function: str = ""
    """The function that the line is in."""
    itself: bool = False
    """The value is made of its former self there: ``x = torch.cat([x, y])``."""
    feeds: bool = False
    """A backward pass goes through what is stored."""
    differentiated: bool = False
    """Somebody asks for gradients of the value itself."""
    again: bool = True
    """The line runs in each step, and once: what is cut within a step is lost for its gradients."""
    retains: bool = False
    """The file passes ``retain_graph=True``."""


class UnusedGraphLine(CodeLine):
    """The line of an evaluation that builds graphs, and where ``no_grad`` may stand."""

    function: str = ""
    """The function that the line is in."""
    fix: Fix | None = None
    """Where ``no_grad`` may stand; ``shared``: training runs this very line, too."""
    loop: bool = False
    """The loop around the line may stand inside of ``no_grad``, too."""
    torch: str = "torch"
    """What the file calls torch; empty where it imports only parts of it."""
    head: tuple[int, str] | tuple[()] = ()
    """Number and text of the first line of the function, where it may be decorated."""


class WorkerContainer(CodeLine):
    """What grows in a loader's worker, or is copied page by page, and its line."""

    path: str = ""
    """As the dataset names it: ``self.cache``; empty where nothing was found."""
    name: str = ""
    """The last part of it."""
    how: str = ""
    """How it is held: ``attribute``, ``cache`` of a method, ``local`` of a stream."""
    tested: bool = False
    """The source checks its content before adding to it."""
    copied: bool = False
    """Nothing grows: pages are copied when objects on them are read."""
    looked: bool = True
    """The worker could be asked."""


# ---------------------------------------------------------------------- leaks


class HeldValue(StoringLine, Kind):
    """A value that a variable holds from step to step."""

    path: str
    """As the script would write it: ``self.losses[0]``."""
    name: str = ""
    """The last name in the path."""
    how: str = ""
    """What holds it: ``local``, ``global``, ``attribute``, ``closure``, ``item`` and others."""
    scope: str = ""
    """File and function that the name belongs to."""
    capped: bool = False
    """The source keeps it below a length."""
    shrinks: bool = False
    """The source empties it, or takes something out."""
    tested: bool = False
    """The source checks its content before adding to it."""
    read: bool = False
    """The loop reads it."""
    single: bool = False
    """One tensor, array or text, not a container."""
    plain: bool = False
    """What the line stores is a tensor itself."""
    bytes: float
    """By which it grows with every step, estimated from its newest items."""
    steps: int
    """Steps since it was first seen to grow, or since the oldest step that it reaches back to."""
    in_evaluation: bool = False
    """An evaluation has built the graph of its newest tensor."""
    heap_slope: float = 0.0
    """Bytes that the process grew with each step; 0 where that is not clear."""


class ValueGrowth(HeldValue, kind="growth"):
    """A container, tensor, array or text that got larger every time it was looked at."""

    rate: float
    """Items, or numbers of a tensor, that are added with each step."""
    size: int
    """Items, or numbers of a tensor, at the last look."""
    bound: int = 0
    """Items that it may have at most; 0 for no bound."""
    type: str = ""
    """Name of its class."""
    graphs: int
    """Tensors with a graph among its newest items."""
    tensor_bytes: float
    """Bytes of tensors in its newest items."""
    other_bytes: float
    """Bytes of all else in its newest items."""
    on_device: bool = False
    """Some of it is on a CUDA device."""
    pass_steps: int = 0
    """Steps in one pass over the data; 0 where that is not known."""


class GraphChain(HeldValue, kind="graph_chain"):
    """A tensor whose graph reaches back over several steps."""

    age: int
    """Steps since its oldest node was made."""
    depth: int | None = None
    """Past steps that it has nodes of; None where they were not counted."""
    fed: bool = False
    """The loss reaches back through it."""
    killed: bool = False
    """The run has ended with an error because of it."""
    held: int | None = None
    """Bytes that nodes of past steps kept when memory ran out; None where it did not."""
    in_use: int | None = None
    """Bytes of tensors on the device, or of the process, when memory ran out."""


class EvaluationGraphs(UnusedGraphLine, Kind, kind="evaluation_graphs"):
    """Graphs that an evaluation has built and nothing uses."""

    nodes: int
    """Nodes of the last such evaluation."""
    step_nodes: int | None = None
    """Nodes of a typical training step; 0 where unknown, None in records of earlier versions."""
    evaluations: int
    """How many there were so far."""
    batches: int
    """Batches of the last one, where it took them from a DataLoader."""


class WorkerMemory(WorkerContainer, Kind, kind="worker_leak"):
    """Private memory of a loader's workers that rises from batch to batch."""

    bytes: float
    """By which all workers together grow with each batch, on average."""
    least_bytes: float
    """The smallest such rise between two readings."""
    workers: int
    """How many workers."""
    steps: int
    """Batches since this loader began."""
    pass_batches: int
    """Batches in one pass over the data; 0 for a stream."""


class PartSizes(Kind, kind="memory_parts"):
    """Bytes that weights, gradients and optimizer state take."""

    earlier: ClassVar[Mapping[str, str]] = {"optimizer state": "optimizer_state"}
    weights: int
    """Of all parameters."""
    gradients: int
    """Of their gradients."""
    optimizer_state: int
    """Of all optimizers."""
    device: str
    """Type of the device of the first weight: ``cpu``, ``cuda``."""


# ---------------------------------------------------------------------- out of memory


class Expression(Record):
    """An expression whose result did not fit; empty where it is not known."""

    expression: str = ""
    """Its text."""
    made_of: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Text and shape of each of its parts."""
    made_of_bytes: float | None = None
    """Bytes of these parts together."""
    result: tuple[int, ...] = ()
    """Shape of the result."""
    result_dtype: str = ""
    """Type of the numbers of the result."""
    result_bytes: float | None = None
    """Size of the result."""


class ModelCall(Record):
    """Where a model was when memory ran out, and what its pass would have kept."""

    within: str = ""
    """The module that was at work."""
    batch: int | None = None
    """Samples of the model's last call; None where no model was at work."""
    outputs: float | None = None
    """Bytes that the model gives back; None where activations were not counted."""
    phase: Literal["", "loss"] = ""
    """``loss``: the script's own code ran out, on what a model gave it."""
    not_counted: str = ""
    """Why activations are missing."""


class MemoryRanOut(CodeLine, Expression, ModelCall, Kind, kind="out_of_memory"):
    """An out-of-memory error that ended the script, and what the memory was needed for."""

    asked: float | None = None
    """Bytes of the allocation that failed, where the error says so."""
    parts: Mapping[str, float]
    """Bytes of weights, gradients, optimizer state and the rest when it happened."""
    needs: Mapping[str, float]
    """Bytes that a whole step needs, by part; of activations 0 where they were not counted."""
    modules: Mapping[str, Mapping[str, float]]
    """The same for each of the largest modules; equal ones of a stack together."""
    capacity: float
    """Bytes of the device, or of what the host had left and this process had."""
    largest: str = ""
    """The module with the most weights."""
    limit: str | None = None
    """The limit of host memory that has the fewest bytes left: ``cgroup``, ``ulimit -v``."""
    limit_bytes: float | None = None
    """The nearest limit."""
    killed: bool = True
    """Whether the kernel ended the process for it."""
    heap_slope: float = 0.0
    """Bytes that the process grew with each step; 0 where that is not clear."""


class BatchSplit(CodeLine, Kind, kind="batch_split"):
    """A call of a model ran out of memory and was made in parts, or could not be."""

    module: str
    """Class of the model."""
    samples: int
    """Samples of the whole batch."""
    phase: str
    """Where memory ran out: ``forward``, ``backward``, ``evaluation``, ``step``."""
    parts: int
    """In how many parts the batch is computed; 0 where it could not be split."""
    exact: bool
    """The gradients are those of the whole batch."""
    why: str = ""
    """Why they are not."""
    refused: str = ""
    """Why the batch could not be split."""
    error: str = ""
    """What was raised first."""
    seconds: float = 0.0
    """Seconds lost with tries that failed."""
    first: bool = False
    """Nothing was recorded of a split before: the finding tells of it."""


class LostStep(CodeLine, Kind, kind="lost_step"):
    """A backward pass ran out of memory: its step was skipped."""

    batches: int
    """Batches of the step that are handed out again; 0 where that cannot be."""
