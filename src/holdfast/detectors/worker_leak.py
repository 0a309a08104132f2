"""MEM006: memory leak in the DataLoader workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..records.memory import WorkerMemory
from ..types import Severity
from ._examples import rows
from ._memory import VariableDetector, amount, at, code_of
from .base import Detector

_GREW = WorkerMemory(
    file="train.py", line=31, seen="trace", path="self.seen", name="seen", how="attribute",
    bytes=1e6, least_bytes=9e5, workers=2, steps=48, pass_batches=40,
)  # fmt: skip


class WorkerLeak(VariableDetector[WorkerMemory]):
    """Memory leak in DataLoader workers: their private memory grows with every batch.

    What it detects:
        Private memory of a worker that rises from batch to batch. The worker then measures the
        containers reachable from its dataset several times. Where none grows, the cause is
        copy-on-write: reading a Python object changes its reference count, and its page is copied
        into each worker.

    Why it matters:
        The growth is multiplied by the number of workers, and the system kills one of them with
        "DataLoader worker is killed by signal" far from the cause.

    Evidence:
        ``key``: line and variable; ``variable``: what grows, or the large container of Python
        objects; ``bytes_per_step``: per batch and worker; ``workers``; ``grown_for`` batches;
        ``headline`` and ``source``, the statement and the lines around it.

    Usual causes:
        - A cache, a log or a list of seen samples filled in ``__getitem__``: every worker fills its
          own copy, and nothing empties it.
        - A dataset that holds many small Python objects: a list of paths, of dictionaries, of
          tuples.

    What to do:
        1. Take the growing container out of ``__getitem__``, or bound it.
        2. Hold metadata in one numpy array or tensor (strings as fixed-width bytes or one long
           text with offsets) instead of a list of objects; read large data from files or a memory
           map.

    False alarms:
        A container that is checked before it grows may be a cache bounded by the data set: it is
        reported when it has grown over ``passes`` passes, which takes persistent workers. So is
        copy-on-write without a container that explains it: every worker copies the pages it
        touches first. Pages of mapped files are not counted.

    Cost:
        Reading one worker's memory on one batch in eight; four to eight measurements of its
        containers when it grows.

    Reproduce:
        ``holdfast run -m holdfast.faults.worker_leak`` names the line that makes the workers of
        ``python -m holdfast.faults.worker_leak`` leak.
    """

    code = "MEM006"
    name = "worker_leak"
    also_called = ("worker growth",)
    other_severities = ((Severity.INFO, "where no container is known that grows"),)
    within = 64
    kinds = (WorkerMemory,)
    fires = rows(8, _GREW)
    silent = rows(8, _GREW.replace(bytes=1e4, least_bytes=9e3))

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """Measured with benchmarks/results/detection_cpu_arm_2026-11-16.md."""

        least: float = 24 * 1024.0
        """Bytes per batch of all workers below which it is no leak."""
        passes: int = 2
        """Passes over the data after which a cache should be full."""

    def believes(self, measured: WorkerMemory) -> bool:
        """Whether the workers grow, and not only until a cache is full."""
        outlived = measured.steps >= self.options.passes * measured.pass_batches
        enough = measured.least_bytes > self.options.least
        # Any worker copies what it touches for the first time, until it has touched everything.
        warm_up = measured.copied and not measured.path
        return enough and (outlived or not (measured.tested or warm_up))

    def weight(self, measured: WorkerMemory) -> Severity:
        """Information for growth without a known container."""
        unknown = not measured.looked or (measured.copied and not measured.path)
        return Severity.INFO if unknown else self.severity

    def what(self, measured: WorkerMemory) -> str:
        """Which, and how much."""
        path = measured.path or "something in the dataset"
        each = amount(measured.bytes)
        if measured.copied:
            why = f"{path} is copied page by page (copy-on-write), {each} per batch"
        else:
            why = f"{path} grows in each of them, {each} per batch"
        return f"{measured.workers} loader workers leak memory: {why}{at(measured)}"

    def next_move(self, measured: WorkerMemory) -> str:
        """What to do at that line."""
        path, line = measured.path or "the dataset's lists", code_of(measured)
        if not measured.looked:
            return (
                "the worker could not be asked (it is not forked); mostly it is a cache or a log "
                f"in the dataset, or {path} being copied page by page"
            )
        if measured.copied:
            return (
                f"hold {path} in a numpy array or a tensor instead of Python objects: "
                "np.array(...) of paths and labels is shared by all workers"
            )
        where = f" at `{line}`" if line else ""
        return f"do not collect in the dataset{where}: bound {path}, or fill it before training"

    def headline(self, measured: WorkerMemory) -> str:
        """What grows, in each worker."""
        return f"{measured.path or 'the dataset'} grows in every loader worker"

    def numbers(self, measured: WorkerMemory) -> Mapping[str, Any]:
        """How many of them."""
        return {"workers": float(measured.workers)}
