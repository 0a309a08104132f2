"""How many processes load data, how many threads compute, and the reason in one line.

More workers are not always faster: a batch has to be handed over, and on few cores workers take
from the step what they give to the loader. So loading is measured, and after an epoch the time
the loop has waited for data says whether another worker is worth it.
"""

from __future__ import annotations

import contextlib
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ...checkpoint import rng
from ...checkpoint.loader_pass import generators, put_generators_back
from ...run.host_cores import cores_here
from ..device import Place
from .loading import DataSettings

# What a batch costs on its way out of a worker: pickled, sent, taken over. Batches of two small
# tensors came every 1.2 to 1.7 ms on two shared cores, with one worker and with two.
_HANDOVER = 1e-3
# Below this share of a step loading is not worth a process.
_SMALL_SHARE = 0.02
# Workers to begin with where the step has not been timed.
_UNTIMED = 4
# Load that varies must not make the loop wait: so much more than the mean needs.
_MARGIN = 1.25
# A loop that waits no more than this has enough workers; a guess.
_WAIT = 0.05
# Another worker must have saved at least this share of the waiting, or no more are added.
_GAIN = 0.1


@dataclass(frozen=True)
class Threads:
    """Torch threads of the process that trains and of each worker, and why."""

    main: int
    worker: int
    why: str


def choose_workers(
    settings: DataSettings,
    place: Place,
    load_seconds: float,
    step_seconds: float | None,
    cores: int | None = None,
    *,
    arm: bool | None = None,
) -> tuple[int, str]:
    """How many workers this rank needs, and why.

    Args:
        settings: the section ``data``; a number in it is taken as it is.
        place: this rank.
        load_seconds: what one batch takes to make, in this process.
        step_seconds: what one step takes on the device; None: not known.
        cores: cores of this rank; those it may use by default.
        arm: whether this is an ARM CPU; asked of the machine by default.
    """
    if settings.workers != "auto":
        return _reported(settings.workers, "data.workers says so")
    cores = cores_here() if cores is None else cores
    made = f"a batch is made in {_time(load_seconds)}"
    if load_seconds <= _HANDOVER:
        return _reported(0, f"{made}, less than handing it over costs")
    if step_seconds is not None and load_seconds <= _SMALL_SHARE * step_seconds:
        return _reported(0, f"{made}, {load_seconds / step_seconds:.1%} of a step")
    if cores < 2:
        return _reported(0, f"{made}, and there is no second core to make it on")
    if _is_arm(arm):
        return _reported(
            1, f"{made}; on an ARM CPU one worker with more threads is faster than many"
        )
    most = _most(cores, place)
    if step_seconds is None:
        return _reported(min(_UNTIMED, most), f"{made}, a step is not timed yet; {cores} cores")
    needed = math.ceil(_MARGIN * load_seconds / max(step_seconds, 1e-9))
    compared = f"{made}, a step takes {_time(step_seconds)}"
    if needed > most:
        return _reported(most, f"{compared}; {needed} would be needed, {cores} cores allow no more")
    return _reported(needed, compared)


def improve(
    current: int,
    wait_share: float,
    cores: int | None = None,
    *,
    place: Place | None = None,
    before: float | None = None,
    seconds: float | None = None,
    arm: bool | None = None,
) -> tuple[int, str] | None:
    """More workers after an epoch, and why; None: it is well as it is, or cannot be better.

    Call it only where the user has not given a number.

    Args:
        current: workers in the epoch that is over.
        wait_share: share of its time the loop waited for data, 0 to 1.
        cores: cores of this rank; those it may use by default.
        place: this rank; on a CPU, workers take cores from the step.
        before: the share of the epoch before workers were last added; None: they never were.
        seconds: what one batch was waited for; None: not known.
        arm: whether this is an ARM CPU; asked of the machine by default.
    """
    if not wait_share > _WAIT:
        return None
    if not current and seconds is not None and seconds <= _HANDOVER:
        return None  # this process makes a batch faster than it could take one over
    cores = cores_here() if cores is None else cores
    most = min(1, _most(cores, place)) if _is_arm(arm) else _most(cores, place)
    if current >= most:
        return None
    if before is not None and wait_share > (1 - _GAIN) * before:
        return None
    # With a share w of waiting, loading takes 1 / (1 - w) times as long as the steps.
    needed = math.ceil(max(1, current) / max(1 - wait_share, 0.25))
    count = min(most, max(current + 1, needed))
    return _reported(count, f"the loop waited for data {wait_share:.0%} of its time with {current}")


def choose_threads(
    workers: int,
    place: Place,
    cores: int | None = None,
    *,
    given: int | Literal["auto"] = "auto",
    arm: bool | None = None,
) -> Threads:
    """Torch threads beside so many workers: no more threads than cores in all.

    More threads than cores make every one of them slower. Sums over several threads are added up
    in another order: a run that is to be repeated bit for bit keeps its number of threads.
    ``given`` is the setting ``data.threads``.
    """
    cores = cores_here() if cores is None else cores
    if given != "auto":
        main = max(1, cores - workers * given) if workers else given
        return Threads(main, given, f"{_threads(main)}: data.threads is {given}")
    if not workers:
        return Threads(cores, 1, f"{_threads(cores)}: one for each core, no workers beside them")
    if _is_arm(arm) and workers == 1:
        worker = max(1, cores // 2 if place.device.type == "cpu" else cores - 1)
        main = max(1, cores - worker)
        return Threads(main, worker, f"{_threads(main)}: the worker has {worker} on an ARM CPU")
    main = max(1, cores - workers)
    return Threads(main, 1, f"{_threads(main)}: {cores} cores less {workers} for workers")


def measure_loading(
    make: Callable[[], Iterable[Any]],
    *,
    batches: int = 4,
    seconds: float = 0.5,
    chunked: bool = False,
) -> float:
    """Seconds that one batch takes to make, from a short look; 0 where there is none.

    Random state that loading draws from is put back: the run that follows is the same as without
    the look. A stream that can be read only once must not be looked at. An error ends the look: the
    loop will meet it, and may go on with another sample.

    Args:
        make: makes a loader without workers, only for this.
        batches: how many are timed at most, after one that also pays for opening files.
        seconds: no further batch is begun after this.
        chunked: every so-many-th batch reads a chunk for all of them, so that the mean counts.
    """
    rolled = rng.state()
    loader = make()
    drawn = generators(loader)
    times: list[float] = []
    try:
        began = time.perf_counter()
        iterator = iter(loader)
        with contextlib.suppress(Exception):
            while len(times) <= batches and time.perf_counter() - began < seconds:
                start = time.perf_counter()
                next(iterator)
                times.append(time.perf_counter() - start)
    finally:
        put_generators_back(loader, drawn)
        rng.put_back(rolled)
    typical = statistics.fmean if chunked else statistics.median
    return typical(times[1:] or times or [0.0])


def _most(cores: int, place: Place | None) -> int:
    # One core keeps a GPU fed; on a CPU the step itself needs at least half of them.
    on_cpu = place is not None and place.device.type == "cpu"
    return max(0, cores // 2 if on_cpu else cores - 1)


def _is_arm(given: bool | None) -> bool:
    return platform.machine().lower() in ("aarch64", "arm64") if given is None else given


def _reported(count: int, why: str) -> tuple[int, str]:
    return count, f"{count} worker{'s' * (count != 1)}: {why}"


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e3:.2g} ms"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
