"""Events as the trainer reads them: which files, which quantities, in what form.

Peak memory is bounded by chunks, whatever the size of the files; the trainer says at the start how
much they take.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from holdfast import HoldfastError
from holdfast.training import Streamed

from ..settings import DataSettings, FiducialSettings, NormalizationSettings, ReweightingSettings
from .branches import BRANCHES
from .caching import cached_events
from .event_files import EventFile, logger
from .made_once import stamps
from .reweighting import event_weights
from .root_files import RootEvents, find_files

CHUNK = 2048
"""Events read at once where the trainer's ``data.chunk`` says nothing."""

_ALWAYS = ("npho", "time", "run", "event")


def need_files(settings: DataSettings) -> None:
    """See that there are events to be read or generated, before anything that takes long.

    Raises:
        HoldfastError: nothing is named, or nothing is there.
    """
    if not settings.train_path and not settings.synth.events:
        raise HoldfastError(
            "data.train_path is empty; give a file, a folder or a pattern, or "
            "data.synth.events=4096 to generate events"
        )
    for path in (settings.train_path, settings.val_path):
        if path:
            find_files(path)


def open_events(
    settings: DataSettings,
    normalization: NormalizationSettings,
    path: str,
    truths: Sequence[str] = (),
    *,
    optional: Sequence[str] = (),
    weights: ReweightingSettings | None = None,
    chunk: int = CHUNK,
    say: Callable[[str], None] = print,
) -> Dataset[Any]:
    """The events of a file, a folder or a pattern, as a dataset for the trainer.

    Args:
        settings: the section ``data``.
        normalization: how values are normalised.
        path: of the files.
        truths: what is read beside photons and times, by the names of ``BRANCHES``; a file that
            lacks one is an error.
        optional: the same or any branch, read where every file has it.
        weights: rare events count more, by these histograms.
        chunk: events read at once; the trainer's ``data.chunk`` goes before it.
        say: told what is made for later runs.
    """
    files = event_files(settings, normalization, path, truths, optional=optional, weights=weights)
    if settings.cache == "none":
        return Streamed(files, chunk=chunk)
    return cached_events(files, settings, normalization, say=say)


def event_files(
    settings: DataSettings,
    normalization: NormalizationSettings,
    path: str,
    truths: Sequence[str] = (),
    *,
    optional: Sequence[str] = (),
    weights: ReweightingSettings | None = None,
) -> list[EventFile]:
    """The files of ``open_events``, each checked and cut to the events that are used."""
    if settings.npho_branch == "relative_npho":
        _warn_relative_npho()
    weighed = () if weights is None else tuple(weights.active())
    hidden = {*weighed} | ({"uvwFI"} if settings.fiducial.enabled else set())
    roots = open_roots(settings, path, (*truths, *sorted(hidden)), optional=optional)
    names = [*_ALWAYS, *truths]
    names += [name for name in optional if all(name in root.branches for root in roots)]
    used = [(root, _kept(root, settings.fiducial)) for root in roots]
    used = [(root, kept) for root, kept in used if kept is None or len(kept)]
    if not used:
        raise HoldfastError(
            f"{path}: none of {sum(map(len, roots))} events lies inside data.fiducial; widen it, "
            "or set data.fiducial.enabled=false"
        )
    each: list[Tensor | None] = [None] * len(used)
    if weights is not None and weighed:
        each = [*event_weights(used, weights, settings.cache_dir)]
    raw = settings.device_transform and settings.cache == "none"
    return [
        EventFile(
            root,
            dict.fromkeys(names),
            kept=kept,
            weights=weight,
            normalization=None if raw else normalization,
            log_invalid=settings.log_invalid_npho,
        )
        for (root, kept), weight in zip(used, each, strict=True)
    ]


def open_roots(
    settings: DataSettings, path: str, names: Sequence[str] = (), *, optional: Sequence[str] = ()
) -> list[RootEvents]:
    """The files of a path, with photons, times and these quantities checked."""
    for name in names:
        if name not in BRANCHES:
            raise HoldfastError(f"no quantity {name!r}; there are {', '.join(BRANCHES)}")
    branches = {"npho": settings.npho_branch, "time": settings.time_branch}
    branches |= {name: BRANCHES[name] for name in (*_ALWAYS[2:], *names)}
    more = {name: BRANCHES.get(name, name) for name in optional}
    return [
        RootEvents(file, branches, settings.tree_name, settings.num_threads, optional=more)
        for file in find_files(path)
    ]


def _kept(root: RootEvents, settings: FiducialSettings) -> Tensor | None:
    """The entries inside the fiducial volume; None where all count."""
    if not settings.enabled:
        return None
    (stamp,) = stamps([root.path])
    known = stamp, root.tree_name, settings
    found = _kept_before.get(known)
    if found is None:
        u_B, v_B, w_B = root.read(0, len(root), ["uvwFI"])["uvwFI"].unbind(-1)
        inside_B = (u_B.abs() < settings.u_max) & (v_B.abs() < settings.v_max)
        inside_B &= w_B >= settings.w_min
        if settings.w_max is not None:
            inside_B &= w_B <= settings.w_max
        found = _kept_before[known] = inside_B.nonzero()[:, 0]
    return found


_kept_before: dict[tuple[tuple[str, int, int], str, FiducialSettings], Tensor] = {}


@functools.cache
def _warn_relative_npho() -> None:
    logger.warning(
        "data.npho_branch is relative_npho, which is deprecated: the energy cannot be told from "
        "it; use npho"
    )
