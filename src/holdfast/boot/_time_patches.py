"""Patches for time measurements: reads of tensors, busy lines of workers, waits for other ranks."""

from __future__ import annotations

import contextlib
import functools
import inspect
from time import perf_counter
from typing import Any

import torch

from ..diagnosis.throughput import host_reads
from ._interrupts import pass_over_the_first
from ._patch import Function, GetEngine, Patch


def _read(engine_of: GetEngine, original: Function) -> Function:
    name = getattr(original, "__name__", "read")

    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        read_times = host_reads.open_read_times()
        if read_times is None:
            return original(*args, **kwargs)
        began = perf_counter()
        result = original(*args, **kwargs)
        read_times.saw(name, perf_counter() - began)
        return result

    return read


def _worker_loop(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        engine = engine_of()
        if engine is not None:
            engine.worker_starts()
            with contextlib.suppress(Exception):
                given = inspect.signature(original).bind(*args, **kwargs).arguments
                names = ("dataset", "collate_fn", "init_fn")
                pass_over_the_first(*(given.get(name) for name in names))
        return original(*args, **kwargs)

    return _worker_loop


def _collective(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        engine = engine_of()
        if engine is None or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        began = perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            engine.waited(perf_counter() - began)

    return collective


_TENSOR = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")

PATCHES = (
    Patch(
        target="torch.utils.data._utils.worker._worker_loop",
        why="which lines of a dataset keep a worker busy, and a first Ctrl-C passes over it; a "
        "process that is spawned finds it by the same name",
        make=_worker_loop,
    ),
    *(
        Patch(
            target=f"torch.Tensor.{name}",
            why="which lines read tensor values, how often and for how long",
            make=_read,
            on_order="reads",
        )
        for name in _TENSOR
    ),
    Patch(
        target="torch.distributed.distributed_c10d.Work.wait",
        why="time spent waiting for other ranks; every collective that is called from Python waits "
        "here, also those of FSDP2",
        make=_collective,
        when=torch.distributed.is_available,
    ),
    Patch(
        target="torch.distributed._broadcast_coalesced",
        why="the same where DistributedDataParallel sends its buffers before a forward pass",
        make=_collective,
        when=torch.distributed.is_available,
    ),
    Patch(
        target="torch.cuda.synchronize",
        why="which lines wait for the device",
        make=_read,
        on_order="reads",
    ),
)
