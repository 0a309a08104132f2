"""The guard's kernels on the host, with the same arguments: a GPU's path on CPU tensors."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.actions import _restore_kernel, loss_kernel
from holdfast.guard import fail_open, finite_loss
from holdfast.guard.fast import burst, bursts
from holdfast.probes import device_baseline, gradients, norm_kernel, timing
from holdfast.probes.baseline import ALONE, CLIP, OF_LOSS, TOGETHER, WINDOW
from holdfast.probes.device_baseline import ANSWERS, HEAD, JudgedStep, Terms
from holdfast.probes.norm_kernel import SCALER

_LIMITS = len([*ALONE, *TOGETHER, *OF_LOSS, *CLIP]) + 3


def _array(where: Any, count: int, kind: Any) -> np.ndarray:
    address = where.data_ptr() if isinstance(where, Tensor) else where
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(kind)), (count,))


def _measure(
    addresses: Any,
    sizes: Any,
    owner: Any,
    offset: Any,
    row: Any,
    flag: Any,
    bad_buffers: Any,
    loss: Any,
    blocks: int,
    buffers_at: int,
    scale: Any,
    state: Any,
    terms: Any,
    total: Any,
    done: Any,
    factor: Any,
    *rest: Any,
    **constants: Any,
) -> str:
    # The last arguments of a compiled kernel stand without their names.
    names = ("DTYPE", "DECIDES", "HAS_LOSS", "JUDGED", "SCALED")
    constants = constants or dict(zip(names, rest[2:], strict=False))
    scaled = constants["SCALED"]
    owners = _array(owner, blocks, ctypes.c_int64)
    tensors = int(owners[-1]) + 1
    places, counts = (_array(a, tensors, ctypes.c_int64) for a in (addresses, sizes))
    width = blocks + (1 + ANSWERS if constants["JUDGED"] else constants["HAS_LOSS"])
    width += SCALER if scaled else 0
    out, raised = _array(row, width, ctypes.c_double), _array(flag, 1, ctypes.c_float)
    for i in range(tensors):  # all of them are smaller than a block
        values = _array(int(places[i]), int(counts[i]), ctypes.c_float).astype(np.float64)
        out[i] = np.square(values).sum()
    value = float(_array(loss, 1, ctypes.c_float)[0]) if constants["HAS_LOSS"] else math.nan
    if not np.isfinite(out[:buffers_at]).all():
        raised[0] = 1.0
    if not np.isfinite(out[buffers_at:blocks]).all():
        _array(bad_buffers, 1, ctypes.c_float)[0] = 1.0
    if constants["HAS_LOSS"]:
        out[blocks] = value
        if constants["DECIDES"] and not math.isfinite(value):
            raised[0] = 1.0
    if constants["JUDGED"]:
        warmup, *reported = _array(terms, _LIMITS + 7, ctypes.c_double)[_LIMITS:].tolist()
        flags = [bool(one) for one in reported[:4]]
        asked = Terms(int(warmup), *flags, reported[4])  # pyright: ignore[reportCallIssue]
        known = torch.from_numpy(_array(state, HEAD + 2 * WINDOW, ctypes.c_double))
        square, at = torch.tensor(out[:buffers_at].sum()), torch.from_numpy(raised)
        seen = torch.tensor(value) if constants["HAS_LOSS"] else None
        by = torch.tensor(_array(scale, 1, ctypes.c_float)[0]) if reported[5] else None
        answer = device_baseline.judge(JudgedStep(known, asked, by), square, seen, at).numpy()
        out[blocks + 1 : blocks + 1 + ANSWERS] = answer
        _array(factor, 2, ctypes.c_float)[:] = answer[5], answer[4]
    theirs, united = (_array(a, 2, ctypes.c_float) for a in rest[:2])
    if scaled:
        out[-SCALER:] = _array(scale, 1, ctypes.c_float)[0], theirs[0]
        united[0] = 1.0 if theirs[0] > 0 else raised[0]
    if constants["JUDGED"]:
        united[1] = 1.0 - united[0]
    return "compiled"


def _write(
    loss: Any, last: Any, copy: Any, part: Any, times: float, has: bool = False, **about: Any
) -> str:
    value, known, kept, inner = (_array(a, 1, ctypes.c_float) for a in (loss, last, copy, part))
    kept[0] = value[0]
    if math.isfinite(value[0]):
        known[0] = value[0]
    elif math.isfinite(known[0]):
        value[0] = known[0]
        if has or about.get("HAS_PART"):
            inner[0] = known[0] * times
    return "compiled"


def _settle(
    grid: tuple[int, ...],
    flag: Any,
    bad_buffers: Any,
    live: Any,
    saved: Any,
    sizes: Any,
    owner: Any,
    offset: Any,
    heals: Any,
    act: bool = False,
    *rest: int,
    word: int = 0,
    **about: Any,
) -> int:
    word = about.get("WORD", word)
    bad, sick = (bool(_array(a, 1, ctypes.c_float)[0]) for a in (flag, bad_buffers))
    # Each of them is smaller than a block.
    tables = (_array(a, grid[0], ctypes.c_int64).tolist() for a in (live, saved, sizes, heals))
    for one, other, size, heals_it in zip(*tables, strict=True):
        here, there = (_array(a, size * word, ctypes.c_int8) for a in (one, other))
        if about.get("ACT", act) and (bad or (sick and heals_it)):
            here[:] = there
        if not (bad or sick):
            there[:] = here
    return word  # in place of what was compiled for it


class _Jit:
    def __init__(self, kernel: Callable[..., str]) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: object) -> Callable[..., str]:
        return self._kernel


class _Settle:
    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., int]:
        return functools.partial(_settle, grid)


def _settles(word: int, grid: tuple[int, ...]) -> Callable[..., int]:
    return functools.partial(_settle, grid, word=word)


class Event:
    """One that the device has come to."""

    def __init__(self, **_: object) -> None: ...

    def record(self, *_: object) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: object) -> float:
        return 1.0


class _NormMeter(gradients.NormMeter):
    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._no_kernel = False

    def judge(self, reading: gradients.DeviceReading, asked: JudgedStep) -> None:
        reading.judge(asked, None)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a step on CPU tensors take the way of one on a GPU; with ``device_path``."""
    put, empty, runs = monkeypatch.setattr, torch.empty, timing.Phases.runs

    def unpinned(*size: Any, pin_memory: bool = False, **about: Any) -> Tensor:
        return empty(*size, **about)

    put(torch, "empty", unpinned)
    put(Tensor, "pin_memory", lambda self: self)
    put(torch.cuda, "Event", Event)
    put(torch.cuda, "current_device", lambda: None)
    put(torch.cuda, "is_current_stream_capturing", lambda: False)
    put(timing.Phases, "runs", lambda self, on_device: runs(self, on_device=True))
    put(gradients, "NormMeter", _NormMeter)
    put(gradients, "available", lambda dtype: True)
    put(gradients, "_current_device", lambda: None)
    put(norm_kernel, "_readable", lambda grads: True)
    put(norm_kernel, "triton_dtype", lambda dtype: None)
    put(norm_kernel, "kernel", lambda: _Jit(_measure))
    put(norm_kernel, "launcher", lambda compiled, grid: _measure)
    put(loss_kernel, "_kernel", lambda: _Jit(_write))
    put(loss_kernel, "launcher", lambda compiled, grid: _write)
    put(_restore_kernel, "_settles_on", lambda device: _Settle())
    put(_restore_kernel, "launcher", _settles)
    put(_restore_kernel, "_triton_integer", lambda size: size)
    put(finite_loss, "writer_for", loss_kernel.LossWriter)
    put(fail_open, "stream_of", lambda device: 0)
    put(finite_loss, "current_device", lambda: -1)  # also where there is a GPU
    put(burst, "current_device", lambda: -1)
    put(bursts, "_LATE", 1e6)  # these kernels are slow, and so is a busy machine
    put(burst, "stream_of", lambda device: 0)
