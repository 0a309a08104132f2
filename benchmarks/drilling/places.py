"""A disk that is full while a state is saved, and folders that cannot be written."""

from __future__ import annotations

import functools
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.checkpoint.store import FOLDER, CheckpointStore
from holdfast.errors import HoldfastError

from . import stage
from .score import Progress, Score, Try, counted, quiet
from .stage import Ended

FULL = (
    "from one step on no file may grow beyond a random size, or a small file system is full; "
    "survived when the run comes to its end, no checkpoint is damaged, the older one is good and, "
    "if there is room again, a newer one follows; silent when neither an event nor a line tells of "
    "a save that failed or a row that is missing"
)
READ_ONLY = (
    "the place of the checkpoints or of the whole run is a file, below /proc, read-only, or is "
    "replaced by a file during the run; survived when the run comes to its end and older "
    "checkpoints stay good; silent when neither an event nor a line tells of it"
)
STEPS, EVERY, WIDTH = 140, 12, 96
# The state of the victim at this width is some 130 kB, the largest file of all but the ring.
LARGEST = 120_000


def full_disk(count: int = 20, *, seed: int = 0, show: Progress = quiet) -> Score:
    """Let ``count`` runs meet a full disk: watched ones, guarded ones, on a file system or not."""
    score, rng = Score("disk full", FULL), random.Random(seed)
    kinds = [
        _watched,
        _guarded,
        _watched_with_log,
        *([_watched_on_tmpfs, _guarded_on_tmpfs] if _can_mount() else []),
    ]
    for number in counted(score.name, range(count), show):
        start = rng.randrange(60, 90)
        # Every second time the disk stays full.
        stop = start + 30 if number // len(kinds) % 2 else STEPS + 1
        limit = rng.choice([0, 512, rng.randrange(1024, 30_000), rng.randrange(30_000, LARGEST)])
        with tempfile.TemporaryDirectory() as folder:
            full = ["--full", f"{start}:{stop}", "--limit", str(limit)]
            run_dir, ended = kinds[number % len(kinds)](Path(folder), full)
            what = f"{kinds[number % len(kinds)].__name__[1:]}, {' '.join(full)}"
            score.tries.append(_after_full(what, run_dir, ended, start, stop < STEPS))
    if not _can_mount():
        score.notes.append("disk full: no file system could be mounted here; size limits only.")
    return score


_VICTIM = ["--steps", str(STEPS), "--every", str(EVERY), "--width", str(WIDTH)]
# Steps of a millisecond would have a snapshot, and so a save, only every hundred or so.
_SETTINGS = [f"checkpoint.steps={EVERY}", "run.ring_mib=1", "rollback.every=4", "rollback.cost=1"]


def _watched(folder: Path, options: Sequence[str]) -> tuple[Path, Ended]:
    run_dir = folder / "run"
    return run_dir, stage.watched(run_dir, *_VICTIM, *options)


def _watched_with_log(folder: Path, options: Sequence[str]) -> tuple[Path, Ended]:
    """What is said goes to a file, which meets the full disk as well."""
    run_dir, log = folder / "run", folder / "log"
    with log.open("wb") as file:
        ended = stage.watched(run_dir, *_VICTIM, *options, stderr=file)
    return run_dir, replace(ended, err=log.read_text())


def _guarded(folder: Path, options: Sequence[str]) -> tuple[Path, Ended]:
    run_dir = folder / "run"
    return run_dir, stage.guarded(run_dir, *_VICTIM, *options, settings=_SETTINGS)


def _watched_on_tmpfs(folder: Path, options: Sequence[str]) -> tuple[Path, Ended]:
    return _on_tmpfs(folder, options, stage.watched)


def _guarded_on_tmpfs(folder: Path, options: Sequence[str]) -> tuple[Path, Ended]:
    return _on_tmpfs(folder, options, functools.partial(stage.guarded, settings=_SETTINGS))


def _on_tmpfs(
    folder: Path, options: Sequence[str], run: Callable[..., Ended]
) -> tuple[Path, Ended]:
    """The same on a file system of its own, of which a copy is kept when it is unmounted."""
    place, copy = folder / "small", folder / "copy"
    place.mkdir()
    script = (
        'mount -t tmpfs -o size=6m none "$0" || exit 99; copy="$1"; shift; "$@"; code=$?; '
        'cp -r "$0" "$copy"; exit $code'
    )
    below = ["unshare", "-rm", "sh", "-c", script, str(place), str(copy)]
    ballast = ["--ballast", str(place / "ballast")]
    ended = run(place / "run", *_VICTIM, *options, *ballast, below=below)
    return copy / "run", ended


@functools.cache
def _can_mount() -> bool:
    """Whether a file system can be mounted here; root is not needed where namespaces are open."""
    if shutil.which("unshare") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        words = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", folder]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _after_full(what: str, run_dir: Path, ended: Ended, start: int, freed: bool) -> Try:
    if ended.code or ended.end is None or ended.end[0] != STEPS:
        return Try(what, lost=f"the run ended with {ended.code}: {ended.err[-300:]}")
    lost = _why_no_good(run_dir / FOLDER)
    newest = CheckpointStore(run_dir / FOLDER).latest()
    if not lost and freed and newest is not None and newest.step < start + 30:
        lost = f"there was room again and the newest is still of step {newest.step}"
    return Try(what, lost=lost, silent=_untold(run_dir, ended, must_fail=True))


def _why_no_good(store: Path) -> str:
    if bad := stage.damaged(store):
        return f"{bad[0].path.name} is damaged: {bad[0].damage}"
    return "" if CheckpointStore(store).latest() is not None else "no good checkpoint is left"


def _untold(run_dir: Path, ended: Ended, *, must_fail: bool) -> str:
    """What nobody was told of; "" when everything was."""
    try:
        data = stage.lane(run_dir)
    except HoldfastError as error:
        return "" if _said(ended) else f"unreadable without a line: {error}"
    failed = [e for e in stage.events(data, "checkpoint") if e.data.get("failed")]
    if must_fail and not failed and not _said(ended):
        return f"no event and no line tells of a save that failed: {ended.err[-200:]!r}"
    missing = stage.why_not_whole(data, 1, STEPS)
    if missing and not _said(ended) and not stage.events(data, "dropped"):
        return f"{missing}, and nothing tells of it"
    return ""


def _said(ended: Ended) -> bool:
    """Whether a line says that something could not be written."""
    words = ("cannot", "could not", "no space", "not be written", "file too large", "not recorded")
    return any(word in ended.err.lower() for word in words)


def read_only(kinds: Sequence[str] = (), *, show: Progress = quiet) -> Score:
    """Each way in which a folder cannot be written, watched and guarded."""
    score = Score("read-only folder", READ_ONLY)
    possible = [k for k in kinds or _UNWRITABLE if "permission" not in k or _can_be_refused()]
    for kind in counted(score.name, possible, show):
        with tempfile.TemporaryDirectory() as folder:
            score.tries.append(_UNWRITABLE[kind](kind, Path(folder)))
    return score


def _can_be_refused() -> bool:
    return os.geteuid() != 0 or shutil.which("setpriv") is not None


def _file_instead(run: Callable[..., tuple[Path, Ended]], what: str, folder: Path) -> Try:
    """There is a file where the checkpoints should be."""
    (folder / "run").mkdir()
    (folder / "run" / FOLDER).write_text("no folder")
    return _after_refusal(what, *run(folder, []))


def _swapped(run: Callable[..., tuple[Path, Ended]], what: str, folder: Path) -> Try:
    """The folder of the checkpoints is replaced by a file while the run goes on."""
    run_dir, ended = run(folder, ["--swap", "70"])
    judged = _after_refusal(what, run_dir, ended)
    lost = judged.lost or _why_no_good(run_dir / "moved")
    return Try(what, lost, judged.silent)


def _elsewhere(what: str, folder: Path) -> Try:
    """``checkpoint.dir`` cannot be made, not even by root."""
    return _after_refusal(what, *_watched(folder, ["--dir", "/proc/holdfast"]))


def _elsewhere_guarded(what: str, folder: Path) -> Try:
    settings = [*_SETTINGS, "checkpoint.dir=/proc/holdfast"]
    run_dir = folder / "run"
    return _after_refusal(what, run_dir, stage.guarded(run_dir, *_VICTIM, settings=settings))


def _no_run_folder(what: str, folder: Path) -> Try:
    """The run itself cannot be recorded: its folder is a file."""
    (folder / "run").write_text("no folder")
    return _after_refusal(what, *_watched(folder, []))


def _below_proc(what: str, folder: Path) -> Try:
    run_dir = Path("/proc/holdfast/run")
    return _after_refusal(what, run_dir, stage.watched(run_dir, *_VICTIM))


def _permissions(what: str, folder: Path) -> Try:
    """The folder of the checkpoints may be read and not written."""
    run_dir = folder / "run"
    store = run_dir / FOLDER
    store.mkdir(parents=True)
    store.chmod(0o555)
    # Root may write everywhere; without this one capability it is like everybody else.
    below = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    ended = stage.watched(run_dir, *_VICTIM, below=below)
    store.chmod(0o755)
    return _after_refusal(what, run_dir, ended)


_UNWRITABLE: dict[str, Callable[[str, Path], Try]] = {
    "a file, watched": functools.partial(_file_instead, _watched),
    "a file, guarded": functools.partial(_file_instead, _guarded),
    "becomes a file, watched": functools.partial(_swapped, _watched),
    "becomes a file, guarded": functools.partial(_swapped, _guarded),
    "checkpoint.dir below /proc, watched": _elsewhere,
    "checkpoint.dir below /proc, guarded": _elsewhere_guarded,
    "no permission, watched": _permissions,
    "the run folder is a file, watched": _no_run_folder,
    "the run folder is below /proc, watched": _below_proc,
}


def _after_refusal(what: str, run_dir: Path, ended: Ended) -> Try:
    if ended.code or ended.end is None or ended.end[0] != STEPS:
        return Try(what, lost=f"the run ended with {ended.code}: {ended.err[-300:]}")
    return Try(what, silent=_untold(run_dir, ended, must_fail=True))
