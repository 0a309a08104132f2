"""Settings, and the one strict way to read them from Python, YAML and the command line.

Settings are frozen keyword-only dataclasses whose defaults work. A dataclass that derives
from ``Section`` is checked however it is made; a model family brings its own and reads it
with the same ``load``. Nothing is guessed: an unknown key, a wrong type or an impossible
value is a ``SettingsError`` that says what, where and the next move.

    >>> load(None, ["guard.fused=off", "detectors.ignore=NUM006"]).guard.fused
    False
    >>> load(None, ["guard.fusd=off"])
    Traceback (most recent call last):
    holdfast.errors.SettingsError: override 'guard.fusd=off': unknown setting 'guard.fusd'; ...
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, overload

from holdfast.config import yaml_values
from holdfast.config.rules import EVERY, RuleSettings
from holdfast.config.strict import (
    Section,
    Word,
    bounded,
    build,
    put,
)
from holdfast.errors import SettingsError

__all__ = [
    "CheckpointSettings",
    "ClipSettings",
    "DetectorSettings",
    "GuardSettings",
    "QuarantineSettings",
    "RestartSettings",
    "RollbackSettings",
    "RuleSettings",
    "RunSettings",
    "ScalerSettings",
    "Section",
    "Settings",
    "SpikeSettings",
    "TrackSettings",
    "WatcherSettings",
    "bounded",
    "from_dict",
    "from_json",
    "load",
    "to_dict",
    "to_json",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardSettings(Section):
    """How a step is guarded and what that may cost."""

    skip: bool = True
    fused: bool = True
    keep_nan: bool = False  # leave the loss of a skipped step as it is, for the script to read
    device_path: bool = False  # force the path of a GPU onto CPU tensors, for tests
    restore_buffers: bool = True
    restore_rng: bool = True
    explain: bool = True  # rerun a bad step, once per fault, to find the line
    replay: bool = True  # where that needs it, feed a bad batch through the loop again
    split: bool = True  # make calls of a model that run out of memory in parts of the batch
    budget: float = bounded(0.02, 0.0, 1.0)  # share of the step time the guard may take


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings(Section):
    """Where a run is recorded and how often the costlier measurements are taken."""

    root: str = "runs"
    dir: str | None = None
    shared: bool = False  # others may read it, as the umask says
    quiet: bool = False
    verbose: bool = False  # also print the policy and what every run does
    health: int = bounded(0, 0)  # steps between two health lines; 0: none
    layers_every: int = bounded(16, 1)
    memory_every: int = bounded(16, 1)
    parameters_every: int = bounded(128, 1)
    ring_mib: int = bounded(8, 1, 4096)
    hang_after: float = bounded(600.0, 0.0)  # seconds without a step or a batch; 0: never looked at


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrackSettings(Section):
    """Experiment trackers that follow the run, in a process of their own."""

    to: tuple[Literal["mlflow", "tensorboard", "json"], ...] = ()
    every: int = bounded(10, 1)  # steps that are averaged to one point
    experiment: str | None = (
        None  # MLflow: the name of the recipe or the script where there is none
    )
    name: str | None = None  # MLflow: the name of the run folder where there is none
    new_run: bool = False  # MLflow: a resumed run gets a new run there, with all of its history


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpikeSettings(Section):
    """When a loss or a gradient norm is far above its baseline."""

    detect: bool = True
    warmup: int = bounded(20, 8, 64)  # steps until there is a baseline
    patience: int = bounded(6, 2)  # consecutive losses far above it before weights are suspected


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipSettings(Section):
    """Clipping on the device, in the step itself; off unless asked for."""

    norm: float | None = bounded(None, 0.0, above=True)  # largest global L2 norm
    per_parameter: float | None = bounded(None, 0.0, above=True)  # largest L2 norm of each gradient
    value: float | None = bounded(None, 0.0, above=True)  # largest absolute value of each element
    adaptive: bool = False  # largest global norm taken from the baseline of this run


@dataclasses.dataclass(frozen=True, kw_only=True)
class RollbackSettings(Section):
    """Snapshots of the whole state in host memory, and rollback after a spike."""

    snapshots: int = bounded(3, 0, 16)  # 0: none are taken, nothing can be rolled back
    every: int = bounded(16, 1)  # steps between two at least; more where that would cost too much
    cost: float = bounded(0.005, 0.0, 1.0)  # share of the step time they may take
    memory: float = bounded(0.25, 0.0, 1.0)  # share of the free host memory they may take
    lr: float = bounded(0.5, 0.0, 1.0, above=True)  # factor of `lower_lr` on the learning rate
    best: int = bounded(2, 0)  # times that the best state by validation follows the last rollback
    schedule: bool = False  # roll learning-rate schedules back too; else they follow the loop
    reset_moments: bool = False  # reset the optimizer state after a rollback


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalerSettings(Section):
    """GradScaler policy for fp16: low start, slow growth, a floor; only on request."""

    policy: bool = False
    init: float = bounded(1024.0, 1.0)
    growth: float = bounded(1.5, 1.0)
    interval: int = bounded(200, 1)  # clean steps between two growths
    backoff: float = bounded(0.5, 0.0, 1.0, above=True)  # on an overflow
    explosion: float = bounded(0.1, 0.0, 1.0, above=True)  # on a gradient explosion
    floor: float = bounded(1.0, 0.0, above=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuarantineSettings(Section):
    """Samples that make non-finite values, and those that cannot be read."""

    write: bool = True
    skip: bool = False  # skip them in later epochs
    replace: bool = True  # put another sample in the place of one that cannot be read
    batches: tuple[str, ...] = ()  # batches that are skipped, by their marks; set by a restart


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestartSettings(Section):
    """Starting a script again that crashed, hung or was killed."""

    times: int = bounded(0, 0)  # how often in all; 0: never, and what hangs is not ended
    grace: float = bounded(30.0, 0.0)  # seconds that one which hangs has to save after SIGTERM
    # A script that resumes by itself must load a file written since then; set by a restart.
    own: float = bounded(0.0, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSettings(Section):
    """Full states on disk, in the run folder."""

    minutes: float = bounded(10.0, 0.0)  # between two; 0: none by the clock
    steps: int = bounded(0, 0)  # between two; 0: none by the count
    last: int = bounded(2, 1)  # how many of the latest are kept
    best: int = bounded(1, 0)  # how many of the best by `metric` are kept beside them
    metric: str = "loss"
    mode: Literal["min", "max"] = "min"
    compress: bool = False
    at_end: bool = True  # save the last state of a run that crashes, or is interrupted or ended
    # Signals before whose end that is saved; SLURM sends what --signal=USR1@60 names.
    signals: tuple[Literal["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"], ...] = ("SIGTERM", "SIGHUP")
    # Seconds after such a signal for the step at work to come to its end: only then can a script be
    # resumed from that very step. `docker stop` leaves 10, SLURM and Kubernetes 30.
    wait: float = bounded(5.0, 0.0)
    dir: str | None = None  # instead of RUN/checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectorSettings(Section):
    """Which detectors run: codes or prefixes of codes, ``ALL`` for every one; and their options.

    A section that is called like a detector, by code or name, holds options of it:
    ``detectors.TPT004.grew``. Where detectors are made they are checked (``detectors.options``).
    """

    others = "options"

    select: tuple[str, ...] = ("ALL",)
    ignore: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=dict[str, Mapping[str, Any]]
    )

    def wants(self, code: str) -> bool:
        """Whether the detector with this code runs; ``ignore`` beats ``select``."""
        selected = "ALL" in self.select or code.startswith(self.select)
        return selected and "ALL" not in self.ignore and not code.startswith(self.ignore)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatcherSettings(Section):
    """Watchers over many steps; ``--no-watchers`` switches all of them off."""

    memory: bool = True  # leaks: graphs, tensors and objects that are kept
    time: bool = True  # lost time: data, reads, recompilations, stalls, slowdowns
    # Fetch samples of a loader with workers in this process too, to name the line of its dataset.
    fetch_samples: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Section):
    """Everything a user can set for ``holdfast run`` and ``holdfast.watch``.

    ``policy`` may be written as plainly as in a file:

        Settings(policy={"OPT001": "observe", "OPT002": {"do": ["skip", "clip"], "budget": 50}})
    """

    guard: GuardSettings = GuardSettings()
    run: RunSettings = RunSettings()
    track: TrackSettings = TrackSettings()
    spike: SpikeSettings = SpikeSettings()
    clip: ClipSettings = ClipSettings()
    rollback: RollbackSettings = RollbackSettings()
    scaler: ScalerSettings = ScalerSettings()
    quarantine: QuarantineSettings = QuarantineSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    policy: Mapping[str, RuleSettings] = dataclasses.field(  # by code; what is not named stays
        default_factory=dict[str, RuleSettings], metadata={"whole": EVERY}
    )
    detectors: DetectorSettings = DetectorSettings()
    restart: RestartSettings = RestartSettings()
    watchers: WatcherSettings = WatcherSettings()


S = TypeVar("S", bound=Section)


@overload
def load(path: str | None = None, overrides: Sequence[str] = ()) -> Settings: ...
@overload
def load(path: str | None = None, overrides: Sequence[str] = (), *, kind: type[S]) -> S: ...
def load(
    path: str | None = None, overrides: Sequence[str] = (), *, kind: type[Section] = Settings
) -> Section:
    """Read a YAML file, then apply overrides such as ``guard.fused=false``.

    Args:
        path: the file, or None to start from the defaults.
        overrides: ``section.key=value`` each; all beat the file, the last one wins.
        kind: the dataclass to fill.
    """
    data = _mapping(yaml_values.read(Path(path)), path) if path is not None else {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"override {text!r}: no value; write it as section.key=value")
        word = Word(value.strip())
        word.override = text
        put(kind, data, name.strip().split("."), word)
    return from_dict(data, kind=kind, source=path or "settings")


@overload
def from_dict(data: Mapping[str, Any], *, source: str = ...) -> Settings: ...
@overload
def from_dict(data: Mapping[str, Any], *, kind: type[S], source: str = ...) -> S: ...
def from_dict(
    data: Mapping[str, Any], *, kind: type[Section] = Settings, source: str = "settings"
) -> Section:
    """Fill a settings dataclass from nested plain data; errors begin with ``source``."""
    return build(kind, _mapping(data, source), source)


def to_dict(settings: Section) -> dict[str, Any]:
    """Plain data that ``from_dict`` reads back and JSON can hold."""
    return json.loads(to_json(settings))


def from_json(text: str, *, source: str = "settings") -> Settings:
    """Read back what ``to_json`` wrote, for example from an environment variable."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{source}: not JSON ({error}); unset it or write it again") from None
    return from_dict(_mapping(data, source), source=source)


def to_json(settings: Section) -> str:
    """One line that carries the settings to another process."""
    return json.dumps(dataclasses.asdict(cast(Any, settings)))


def _mapping(data: Any, source: str) -> dict[str, Any]:
    if data is None:  # an empty file
        return {}
    if not isinstance(data, Mapping):
        found = reprlib.repr(data)
        raise SettingsError(f"{source}: holds {found}, no settings; write `section:` lines")
    return dict(cast(Mapping[str, Any], data))
