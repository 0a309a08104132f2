"""How a run or a process ends, or stands still: an exception, a signal, a kill, a hang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import Kind, Record


class SparseRecord(Record):
    """A record that holds what could be measured: a field that is None was not.

    Fields that are None are not written. Each part of an exception is measured by itself, while
    the process ends, and one that fails must not lose the others.
    """

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without what was not measured."""
        return {name: value for name, value in super().to_dict().items() if value is not None}

    def measured(self) -> dict[str, Any]:
        """The values of the fields that are not as a record without any value has them."""
        return {n: v for n, v in self.__dict__.items() if v != self._defaults[n]}


# ---------------------------------------------------------------------- lines of the script


class CodeLine(SparseRecord):
    """A line of the user's code that has to do with an exception."""

    name: str | None = None
    """The variable, attribute or optimizer that the line is about."""
    file: str | None = None
    line: int | None = None
    code: str | None = None


class StackLine(SparseRecord):
    """One of the script's own calls in a traceback."""

    file: str | None = None
    line: int | None = None
    function: str | None = None
    """Function that the line is in."""
    code: str | None = None


class CarriedLine(CodeLine):
    """A line that keeps a value with its graph from one turn of the loop to the next."""

    path: str | None = None
    """Of the module that holds the value, where one does."""


class OverwritingLine(CodeLine):
    """A line that changes a tensor in place."""

    how: str | None = None
    """``augmented``, ``item``, ``inplace=True`` or the call, ``relu_()``."""
    made: str | None = None
    """The expression that the tensor was assigned before."""


class StepLine(CodeLine):
    """A call of ``step``."""

    changes: tuple[str, ...] | None = None
    """Names of the weights that this optimizer changes."""


class LossLine(CodeLine):
    """The line that made the loss of which backward failed."""

    in_loop: bool | None = None
    """Whether it stands inside of the loop that calls backward."""


class CutLine(CodeLine):
    """A line that cuts the graph."""

    what: str | None = None
    """The call or attribute that does so: ``detach``, ``item``, ``no_grad``."""


# ---------------------------------------------------------------------- values of the failing call


class CrashValue(SparseRecord):
    """A tensor, an array, a module, or a short text about any other value."""

    name: str
    shape: tuple[int, ...] | None = None
    """Sizes of a tensor or array."""
    module: str | None = None
    """Class of a module."""
    repr: str | None = None
    """A module as torch prints it."""
    weights: Mapping[str, tuple[int, ...]] | None = None
    """Shapes of its first weights by their names."""
    dtype: str | None = None
    """Of a module that of its first weight."""
    device: str | None = None
    """``numpy`` for an array."""
    grad: bool | None = None
    """Whether a tensor requires grad."""
    made_by: str | None = None
    """Class of its ``grad_fn``."""
    min: Any = None
    """Smallest value of a tensor of whole numbers; they may have 64 bits."""
    min_row: int | None = None
    """Row of the batch that holds it."""
    max: Any = None
    """Its largest value."""
    max_row: int | None = None
    """Where in the first dimension that stands."""
    training: bool | None = None
    """Mode of a module."""
    graded: bool | None = None
    """Whether a weight of it has a gradient."""
    changed: int | None = None
    """How often its first weight was changed in place."""
    lists: tuple[str, ...] | None = None
    """Attributes in which it hides modules from torch: plain lists and dictionaries."""
    made: CodeLine | None = None
    """The line that makes the module."""
    value: str | None = None
    """Any other value as text."""
    type: str | None = None
    """Class of any other value."""
    parts: tuple[tuple[str, float], ...] | None = None
    """Bytes of the tensors in the entries of a dictionary, the largest first."""


class InnerCall(Record):
    """The failing call of a library."""

    function: str = ""
    """The function of the library."""
    values: tuple[CrashValue, ...] = ()
    """Its arguments."""


class DivisorPart(CrashValue):
    """Something that a divisor counts or is made of."""

    length: int | None = None
    """How many it holds."""
    batch_size: int | None = None
    """Of a loader, whose length is its batches."""
    drop_last: bool | None = None
    """Whether a loader leaves an incomplete batch away."""
    samples: int | None = None
    """Samples of the dataset of a loader."""


class Divisor(Record):
    """What a division by zero divided by."""

    code: str
    operator: str
    """``Div``, ``FloorDiv`` or ``Mod``."""
    parts: tuple[DivisorPart, ...] = ()
    """What it counts or is made of."""


class Subtraction(Record):
    """A subtraction on the failing line."""

    names: tuple[str, str]
    """Names of the two sides."""
    values: tuple[Any, Any]
    """Numbers, of any size."""


class RecursionArgument(Record):
    """An argument of a function that calls itself."""

    name: str
    values: tuple[str, ...]
    """Of the last calls, the innermost last."""


class Recursion(Record):
    """An endless recursion."""

    function: str
    """The function that calls itself."""
    functions: tuple[str, ...]
    """All that the circle goes through."""
    users: bool
    """Whether that is the script's own."""
    modules: bool
    """Whether all of these calls are methods of modules."""
    every: int
    """After how many calls the arguments repeat; 0 where they do not."""
    fixed: bool
    """Whether nothing that was passed can change."""
    arguments: tuple[RecursionArgument, ...] = ()
    """Arguments of its last calls."""


# ---------------------------------------------------------------------- memory and disks


class MemoryReading(SparseRecord):
    """The nearest limit of the host memory, and how much was used; sizes in bytes."""

    limit: str | None = None
    """``machine``, ``cgroup``, ``slurm``, ``ulimit -v`` or ``ulimit -d``."""
    bytes: float | None = None
    """The limit."""
    used: float | None = None
    """Used part of the limit, in bytes."""
    process: float | None = None
    """Of it the process of this lane."""
    first: float | None = None
    """What the process had in the beginning."""


class SharedMemory(Record):
    """Room for shared memory, ``/dev/shm``, in bytes."""

    bytes: float
    """All of it."""
    free: float
    """What is left."""


class ShorterFile(Record):
    """A file that ends before the memory map which reads it; sizes in bytes."""

    file: str
    bytes: float
    """Size of the file."""
    mapped: float
    """Size that the memory map was made for."""


class Disk(SparseRecord):
    """What is left on the disk that a file was being written to."""

    folder: str
    """Where the file is."""
    free: float
    """Bytes."""
    files: float | None = None
    """How many more files it may have; None on a file system without such a limit."""


# ---------------------------------------------------------------------- the exception


class RaisedException(SparseRecord, Kind, kind="exception"):
    """An exception that ended a script: what was raised, where, and what its calls held."""

    type: str = ""
    """Its class."""
    message: str = ""
    file: str = ""
    """The user's line; empty where none is part of it."""
    line: int = 0
    error_file: str = ""
    """The ``filename`` of an ``OSError``."""
    traceback: str | None = None
    """As python prints it."""

    function: str | None = None
    """Function that the line is in."""
    code: str | None = None
    """The statement at the line."""
    start: int | None = None
    """First line of the statement."""
    excerpt: tuple[tuple[int, str], ...] | None = None
    """Numbers and text of the lines around it."""
    library: str | None = None
    """File and line inside of a library where it was raised."""
    frames: tuple[StackLine, ...] | None = None
    """The script's own calls, outermost first."""

    phase: str | None = None
    """``loading``, ``forward``, ``backward``, ``optimizer`` or empty."""
    operands: tuple[CrashValue, ...] | None = None
    """Values in the failing expression."""
    variables: tuple[CrashValue, ...] | None = None
    """Variables of the failing function."""
    origins: tuple[CodeLine, ...] | None = None
    """Lines that gave the names of the failing expression their values."""
    reshapes: tuple[CodeLine, ...] | None = None
    """Lines that fold values into the batch: ``view(-1, N)``."""
    plain_attributes: tuple[CodeLine, ...] | None = None
    """Tensors that a module holds beside its parameters and buffers."""
    inner: InnerCall | None = None
    """The failing call of a library."""
    module: CrashValue | None = None
    """The module of torch at work."""

    near: tuple[str, ...] | None = None
    """Existing names that are near to one that does not exist."""
    akin: tuple[tuple[str, str], ...] | None = None
    """Existing names with a word in common, and their types."""
    owner: str | None = None
    """Class of the object that lacks an attribute."""
    missing_folder: str | None = None
    """The first folder of a path that is not there."""
    keys: tuple[str, ...] | None = None
    """Keys of a mapping without the one that was asked for."""
    key_count: int | None = None
    """Keys that the mapping has."""
    other_type: bool | None = None
    """Whether it has the key with another type: 1 and "1"."""
    numbers: tuple[str, str] | None = None
    """Its lowest and highest key, where all are numbers."""
    side: str | None = None
    """``above`` or ``below`` these, where the key that was asked for is."""

    divisor: Divisor | None = None
    """Of a division by zero."""
    recursion: Recursion | None = None
    """Of an endless recursion."""
    differences: tuple[Subtraction, ...] | None = None
    """Subtractions on the line."""

    sample: Any = None
    """Dataset index of the sample to blame."""
    sample_file: str | None = None
    """File that the sample was read from."""
    indices: tuple[Any, ...] | None = None
    """Dataset indices of the batch at work."""
    worker: int | None = None
    """The loader worker that made it; -1 for none."""
    files: Mapping[str, str] | None = None
    """Files of its samples by their row."""
    over_loader: bool | None = None
    """Whether the failing loop goes over a DataLoader."""
    nones: tuple[int, ...] | None = None
    """Rows of a batch whose sample is None."""
    odd: tuple[int, ...] | None = None
    """Rows whose samples are unlike the others."""
    field: str | None = None
    """The part of a sample that has several shapes."""
    shapes: tuple[tuple[str, int, int], ...] | None = None
    """These shapes, how many samples have each, and the row of the first."""

    checkpoint: str | None = None
    """The file that ``torch.load`` was reading."""
    readable: str | None = None
    """The newest other one of its folder that can be read; empty for none."""
    saved_sizes: Mapping[str, tuple[int, ...]] | None = None
    """Shapes of the tensors in a state that does not fit its model."""
    model_sizes: Mapping[str, tuple[int, ...]] | None = None
    """Sizes that the model expects, by name."""

    carried: tuple[CarriedLine, ...] | None = None
    """Lines that keep a graph from turn to turn."""
    in_place: tuple[OverwritingLine, ...] | None = None
    """Lines that change tensors in place."""
    backward_lines: tuple[CodeLine, ...] | None = None
    """Lines that call ``backward``."""
    step_lines: tuple[StepLine, ...] | None = None
    """Lines that call ``step``."""
    no_grad: CodeLine | None = None
    """The ``with torch.no_grad()`` around the failing call."""
    trainable: int | None = None
    """Parameters that require grad; -1 where no model is known."""
    weights: tuple[tuple[str, tuple[int, ...], int] | tuple[str, tuple[int, ...]], ...] | None = (
        None
    )
    """Name, shape and version of each weight."""
    loss: LossLine | None = None
    """What ``backward`` was called on."""
    cuts: tuple[CutLine, ...] | None = None
    """Lines that cut the graph."""

    limit: str | None = None
    """The nearest limit of the host memory, see ``MemoryReading``."""
    limit_bytes: float | None = None
    """The nearest limit of the memory."""
    file_limit: float | None = None
    """Bytes that a file of this process may have, where that is limited."""
    world: int | None = None
    """Processes that train together."""
    output_gone: str | None = None
    """``stdout`` or ``stderr``, where nobody reads it any more."""
    disk: Disk | None = None
    """Of a write that failed."""
    dead_workers: tuple[tuple[int, int | None, int], ...] | None = None
    """Number, process id and exit code of loader workers that ended too early."""
    oom_kills: int | None = None
    """Kills for lack of memory in the control group since this process trained."""
    machine_oom_kills: int | None = None
    """Kills for lack of memory on the machine."""
    memory: MemoryReading | None = None
    """The last reading of the host memory."""
    shared_memory: SharedMemory | None = None
    """Room on ``/dev/shm``."""
    shared_memory_needed: float | None = None
    """Bytes that the batches on their way need."""
    shorter_files: tuple[ShorterFile, ...] | None = None
    """Files that became shorter than their memory map."""

    called_from: str | None = None
    """File and line of this process that got it from another one."""
    process: str | None = None
    """Which other process raised it: ``DataLoader worker process 0``."""
    behind: RaisedException | None = None
    """The exception that this one was raised for, or while it was handled."""
    raised_from: bool | None = None
    """Whether the script says so: ``raise … from error``."""

    explained: str | None = None
    """``memory`` where an event of its own tells of it."""
    steps: int | None = None
    """Complete steps before it."""
    gave_up: str | None = None
    """What the script exited with after it had caught the exception."""


class LeftLoop(Kind, kind="left"):
    """An exception left a watched loop, whatever became of it."""

    type: str
    """Class of the exception."""
    message: str
    file: str
    line: int


class SwallowedException(SparseRecord, Kind, kind="swallowed_exception"):
    """An exception that the loop catches on every batch."""

    type: str
    """Class of the exception."""
    message: str
    batches: int
    """Without a step when it was seen."""
    file: str = ""
    line: int = 0
    code: str | None = None
    start: int | None = None
    """First line of the statement."""
    excerpt: tuple[tuple[int, str], ...] | None = None
    """Lines around it, with their numbers."""


# ---------------------------------------------------------------------- the process


class Died(MemoryReading, Kind, kind="died"):
    """A process was gone without a word; with the last reading of its memory."""

    signal: str = ""
    """That ended it; empty where nobody saw it."""
    oom_kills: int = 0
    """Kills for lack of memory in its control group since it was started."""
    machine_oom_kills: int = 0
    """The same on the machine since the last reading."""
    at: float | None = None
    """When it was gone, in seconds since 1970."""
    together: bool | None = None
    """Whether holdfast was killed with it: then a reader has made this of the last reading."""


class HostMemoryLevel(MemoryReading, Kind, kind="host_memory"):
    """The used part of the host memory has passed another level."""


class SignalReceived(Kind, kind="signal"):
    """Somebody asked the script to end."""

    name: str


# ---------------------------------------------------------------------- standing still


class LoaderWork(SparseRecord):
    """What a loader, or one of its workers, does: told by the process that stands still."""

    pid: int | None = None
    sample: Any = None
    """Dataset index of the sample that is being read."""
    samples: tuple[Any, ...] | None = None
    """Those of the batch that is waited for, or made."""
    worker: int | None = None
    """Number of the worker that this process is."""
    waits_for: int | None = None
    """Number of the worker that this process waits for."""
    started: str | None = None
    """How its workers were started: ``fork``, ``spawn``, ``forkserver``."""
    timeout: float | None = None
    """Of the loader, in seconds; 0 for none."""
    mark: str | None = None
    """Which batch is waited for."""


class StandingProcess(LoaderWork):
    """Where a process stands."""

    file: str | None = None
    line: int | None = None
    function: str | None = None
    """Function that the line is in."""
    excerpt: tuple[tuple[int, str], ...] | None = None
    """Lines around it, with their numbers."""
    inside: str | None = None
    """The function that the line of the script is in, with its place."""


class NoProgress(StandingProcess, Kind, kind="no_progress"):
    """No step, no batch and no event for a long time; where the main process stands."""

    seconds: float
    """Without progress so far."""
    limit: float
    """Seconds after which that is looked at."""
    longest: float = 0.0
    """The longest pause before."""
    cpu: float = 0.0
    """Cores in use."""
    bytes_per_second: float = 0.0
    """Read and written."""
    runnable: bool = False
    """Whether it had something to compute at most of the looks."""
    moves: bool = False
    """Whether lines of the script changed between the looks."""
    moves_inside: bool = False
    """Whether any line changed."""
    processes: int = 0
    """That answered."""
    gone: bool | None = None
    """Whether the process has ended."""
    threads: int | None = None
    """Where the other threads stand."""
    frames: tuple[tuple[str, int, str], ...] | None = None
    """File, line and function of the main thread's calls, the innermost first."""
    stuck_worker: StandingProcess | None = None
    """The worker that is waited for."""
    stacks: str | None = None
    """The file in the run folder with all threads."""


class ProgressAgain(Kind, kind="progress_again"):
    """It went on after all."""

    seconds: float
    """Length of the pause."""
