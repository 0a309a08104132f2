"""Detectors: one fault, one file. They read recorded rows and never import torch.

``ALL`` is the whole list, most causal first: that order ranks findings of equal severity.

    >>> by_code("NUM001").name
    'nonfinite_loss'
    >>> [d.code for d in select(["NUM"], ignore=["NUM006"])][:2]
    ['NUM005', 'NUM003']
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from ..errors import SettingsError
from ._plugins import Plugins, load_plugins
from ._remedies import Explanation, Remedy, remedy
from ._window import (
    HISTORY,
    Measurement,
    Rows,
    Window,
)
from .base import (
    SECTIONS,
    Detector,
    DetectorDoc,
    document,
)
from .collective_hang import CollectiveHang
from .crash import Crash
from .different_settings import DifferentSettings
from .divergence import Divergence
from .evaluation_with_graph import EvaluationWithGraph
from .fragmentation import Fragmentation
from .gradient_explosion import GradientExplosion
from .hang import Hang
from .host_sync import HostSync
from .input_bound import InputBound
from .leaks import GraphLeak, ObjectLeak, StateNotDetached, TensorLeak
from .loss_spike import LossSpike
from .nonfinite_buffer import NonfiniteBuffer
from .nonfinite_gradient import NonfiniteGradient
from .nonfinite_input import NonfiniteInput
from .nonfinite_loss import NonfiniteLoss
from .nonfinite_parameter import NonfiniteParameter
from .out_of_memory import OutOfMemory
from .rank_lost import RankLost
from .recompile import Recompile
from .replicas_out_of_sync import ReplicasOutOfSync
from .same_data import SameData
from .scaler_collapse import ScalerCollapse
from .slow_down import SlowDown
from .stall import Stall
from .straggler import Straggler
from .swallowed_exception import SwallowedException
from .uneven_batches import UnevenBatches
from .unreadable_sample import UnreadableSample
from .unused_parameters import UnusedParameters
from .worker_leak import WorkerLeak

ALL: tuple[type[Detector], ...] = (
    # what ended the run comes first, and of that what only all ranks together show
    RankLost,
    UnevenBatches,
    CollectiveHang,
    Crash,
    Hang,
    SwallowedException,
    UnreadableSample,
    ReplicasOutOfSync,
    DifferentSettings,
    SameData,
    NonfiniteInput,
    NonfiniteParameter,
    Divergence,
    NonfiniteBuffer,
    NonfiniteLoss,
    NonfiniteGradient,
    ScalerCollapse,
    LossSpike,
    GradientExplosion,
    StateNotDetached,
    GraphLeak,
    TensorLeak,
    ObjectLeak,
    WorkerLeak,
    EvaluationWithGraph,
    Fragmentation,
    OutOfMemory,
    # time, behind memory
    Straggler,
    UnusedParameters,
    Recompile,
    SlowDown,
    HostSync,
    InputBound,
    Stall,
)


def reject_duplicates(detectors: Iterable[type[Detector]]) -> None:
    """Fail when two detectors share a code or a name."""
    seen: dict[str, type[Detector]] = {}
    for detector in detectors:
        for label in (detector.code, detector.name):
            if label in seen:
                names = f"{seen[label].__name__} and {detector.__name__}"
                raise ValueError(f"detectors {names} both answer to {label}")
            seen[label] = detector


reject_duplicates(ALL)


def by_code(code: str, among: Sequence[type[Detector]] = ALL) -> type[Detector]:
    """The detector with this code or name, in any case; a wrong one names the nearest."""
    wanted = code.strip().lower()
    labels = {label.lower(): d for d in among for label in (d.code, d.name)}
    if wanted in labels:
        return labels[wanted]
    # A word may be like a name by chance, as overfitting is like forgetting.
    least = 0.6 if any(map(str.isdigit, wanted)) else 0.8
    near = difflib.get_close_matches(wanted, labels, n=3, cutoff=least)
    hint = ", ".join(f"{labels[n].code} {labels[n].name}" for n in near)
    raise SettingsError(
        f"no finding is called {code!r}, and there is nothing about it yet; "
        + (f"did you mean {hint}?" if hint else "`holdfast explain` lists all of them")
    )


def select(
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    among: Sequence[type[Detector]] = ALL,
) -> tuple[type[Detector], ...]:
    """The detectors whose code starts with one of ``select`` and with none of ``ignore``.

    Nothing selected means all of them, and so does ``ALL``. A prefix that matches no code is a
    mistake and says so.
    """
    select = [prefix for prefix in select if prefix.upper() != "ALL"]
    for prefix in (*select, *ignore):
        if not prefix or not any(d.code.startswith(prefix.upper()) for d in among):
            codes = ", ".join(sorted(d.code for d in among))
            raise SettingsError(f"no detector code starts with {prefix!r}; there are {codes}")
    wanted = tuple(s.upper() for s in select) or ("",)
    unwanted = tuple(i.upper() for i in ignore)
    return tuple(
        d
        for d in among
        if d.code.startswith(wanted) and not (unwanted and d.code.startswith(unwanted))
    )


__all__ = [
    "ALL",
    "HISTORY",
    "SECTIONS",
    "Detector",
    "DetectorDoc",
    "Explanation",
    "Measurement",
    "Plugins",
    "Remedy",
    "Rows",
    "Window",
    "by_code",
    "document",
    "load_plugins",
    "reject_duplicates",
    "remedy",
    "select",
]
