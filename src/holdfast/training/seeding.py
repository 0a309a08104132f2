"""Random numbers and the switches that decide whether a run can be repeated.

>>> one, same, other = (generator(7, *salt) for salt in [(1, 0), (1, 0), (1, 1)])
>>> torch.rand(1, generator=one) == torch.rand(1, generator=same)
tensor([True])
>>> torch.rand(1, generator=same) == torch.rand(1, generator=other)
tensor([False])
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import random
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np
import torch

from ..config import Section, bounded
from ..errors import SettingsError

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_WORD = (1 << 32) - 1
_UNTOUCHED: dict[str, Any] = {"_fp32_precision": None}  # the only flag that is set if not given

P = ParamSpec("P")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedSettings(Section):
    """What the random numbers begin with, and what is given up to repeat a run exactly."""

    seed: int = bounded(0, 0, _WORD)  # numpy takes none above
    deterministic: bool = False  # only operations that give the same bits twice; some are slow
    benchmark: bool = True  # let cuDNN time its kernels; off where `deterministic` is on
    tf32: bool = True  # multiply fp32 matrices on a GPU with 10 bits of mantissa: much faster


def prepare(settings: SeedSettings, rank: int) -> Callable[[], None]:
    """Seed python, numpy and torch, on every device, and set the switches.

    The first rank gets the seed itself, as a script with one process would; others get seeds of
    their own, so that they do not drop the same units.

    Returns:
        a function that puts the switches back as they were; the random numbers go on.
    """
    seed = settings.seed if rank == 0 else mixed(settings.seed, rank) & _WORD
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    undo: list[Callable[[], None]] = []

    @_quietly
    def put_back() -> None:
        while undo:
            undo.pop()()

    try:
        _set_switches(settings, undo)
    except RuntimeError as error:
        put_back()
        raise SettingsError(
            "seed.tf32 cannot be set: fp32_precision and allow_tf32 of torch.backends were both "
            f"set before and disagree; set one of them only (torch: {str(error).splitlines()[0]})"
        ) from None
    return put_back


def _quietly(function: Callable[P, None]) -> Callable[P, None]:
    """Without what some releases of torch say of their older switches: a user cannot act on it."""

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Please use the new API settings", UserWarning)
            function(*args, **kwargs)

    return quiet


@_quietly
def _set_switches(settings: SeedSettings, undo: list[Callable[[], None]]) -> None:
    undo.append(_set_cudnn(settings))
    if _has_gpu():  # on a CPU the same switch would cost precision and gain nothing
        undo.append(_set_matmul(settings))
    if settings.deterministic:
        undo.append(_set_deterministic())
        undo.append(_set_workspace())


def generator(seed: int, *salt: int) -> torch.Generator:
    """A generator on the CPU, whatever the default device; another stream for every salt."""
    return torch.Generator(device="cpu").manual_seed(mixed(seed, *salt))


def mixed(seed: int, *salt: int) -> int:
    """A seed made of several numbers: another one for every other salt, and the same on any day."""
    text = ",".join(str(int(number)) for number in (seed, *salt))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _has_gpu() -> bool:
    return torch.cuda.is_available()


def _set_cudnn(settings: SeedSettings) -> Callable[[], None]:
    wanted = {
        "_benchmark": settings.benchmark and not settings.deterministic,
        "_deterministic": settings.deterministic,
        "_allow_tf32": settings.tf32,
    }
    _, benchmark, _, deterministic, tf32, *_ = torch.backends.cudnn.set_flags(**_UNTOUCHED)
    before = dict(zip(wanted, (benchmark, deterministic, tf32), strict=True))
    # What is right already is left alone: torch has a second way to set it and minds a mixture.
    changed = [name for name in wanted if wanted[name] != before[name]]

    def set_flags(flags: dict[str, bool]) -> None:
        chosen = {name: flags[name] for name in changed}
        torch.backends.cudnn.set_flags(**chosen, **_UNTOUCHED)

    set_flags(wanted)
    return lambda: set_flags(before)


def _set_matmul(settings: SeedSettings) -> Callable[[], None]:
    before, wanted = torch.get_float32_matmul_precision(), "high" if settings.tf32 else "highest"
    if before == wanted:
        return lambda: None
    torch.set_float32_matmul_precision(wanted)
    return lambda: torch.set_float32_matmul_precision(before)


def _set_deterministic() -> Callable[[], None]:
    before = torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=False)
    return lambda: torch.use_deterministic_algorithms(before, warn_only=warn)


def _set_workspace() -> Callable[[], None]:
    """cuBLAS repeats itself only with a workspace of a fixed size; a script's own choice stays."""
    if _WORKSPACE in os.environ:
        return lambda: None
    os.environ[_WORKSPACE] = ":4096:8"

    def put_back() -> None:
        os.environ.pop(_WORKSPACE, None)

    return put_back
