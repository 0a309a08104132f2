"""``holdfast faults``."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..faults._bench import bench, read_trials
from ..faults._catalogue import HALVES, Case, catalogue, choose, find
from ..faults._score import grade, grades_of, scores_of
from ..faults._table import (
    cells_of,
    goal_sentences,
    markdown_of,
    plain_of,
    score_sentences,
    text_of,
)
from ..faults._trial import Trial, run_plain, try_case
from ..report import finding_lines, summarize
from ..run import Run, encode
from . import _output

_PAGE = "detection.md"
_SHOWN = ("detected", "code", "line", "steps", "alive", "alarms", "cost", "trouble")


class FaultsCommand:
    """List, run and bench scripts that go wrong in a known way.

    The catalogue has two halves: scripts written together with the detectors (seen), and scripts
    written by someone who had not seen them (unseen). Some are healthy: there nothing may be said.
    bench exits with 1 when a goal is missed: 95 % detected, 90 % right code first, 75 % exact
    line, 90 % within two lines on the unseen half, silence on everything healthy.

      holdfast faults list --half unseen
      holdfast faults run nonfinite_loss --keep out/nan
      holdfast faults bench --only MEM,throughput,healthy --write out
      holdfast faults bench --write out --resume       only what is not in out yet
      holdfast faults bench --from my_scripts          a collection of your own, see answers.json
    """

    name = "faults"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the verbs and their options."""
        verbs = parser.add_subparsers(metavar="VERB", dest="verb", required=True)

        def verb(name: str, what: str, act: Callable[[Any], int]) -> Any:
            one = verbs.add_parser(name, help=what, description=what, allow_abbrev=False)
            one.add_argument("--json", action="store_true", help="for programs")
            one.add_argument(
                "--from", metavar="DIR", dest="more", action="append", default=[], type=Path,
                help="another collection: a folder with an answers.json, or folders of such",
            )  # fmt: skip
            one.set_defaults(act=act)
            return one

        _choosing(verb("list", "List the scripts with what is true about them.", _list))
        run = verb("run", "Run one plain and guarded, and tell what was found.", _run)
        run.add_argument("name", metavar="NAME", help="a name of the list")
        run.add_argument("--keep", metavar="DIR", type=Path, help="keep the run folder here")
        many = verb("bench", "Run many guarded, and make the table.", _bench)
        _choosing(many)
        many.add_argument("--jobs", metavar="N", type=int, default=1, help="at a time (default: 1)")
        many.add_argument(
            "--write", metavar="DIR", type=Path,
            help="keep trials (merged by name) and table in this folder",
        )  # fmt: skip
        many.add_argument(
            "--resume", action="store_true", help="with --write: run only what has no trial yet"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Carry out one verb."""
        return args.act(args)


def _choosing(parser: Any) -> None:
    parser.add_argument("--half", choices=HALVES, help="only this half")
    parser.add_argument(
        "--only", metavar="WHICH", default="",
        help="names, folders, codes or their beginnings, or healthy; with commas",
    )  # fmt: skip


def _list(args: argparse.Namespace) -> int:
    cases = choose(catalogue(more=args.more), args.half, args.only)
    if args.json:
        _output.write(encode([case.plain() for case in cases], indent=2).decode() + "\n")
        return 0
    width = max((len(case.name) for case in cases), default=0)
    for half in HALVES:
        part = [case for case in cases if case.half == half]
        sick = [case for case in part if not case.healthy]
        if part:
            _output.write(f"{half}: {len(sick)} faults, {len(part) - len(sick)} healthy\n")
        for case in part:
            code = case.codes[0] if case.codes else "healthy"
            _output.write(f"  {case.name.ljust(width)}  {code.ljust(7)}  {_short(case.why)}\n")
    return 0


def _short(text: str, limit: int = 90) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _run(args: argparse.Namespace) -> int:
    case = find(catalogue(more=args.more), args.name)
    if args.keep is not None:
        # A folder that is taken is told before anything is run.
        Run.create(args.keep, {"script": case.path.name}).remove_if_empty()
    plain_code, plain_seconds = run_plain(case)
    with tempfile.TemporaryDirectory() as folder:
        path = args.keep or Path(folder) / "run"
        trial = try_case(case, path)
        summary = summarize(Run.open(path)) if path.exists() else None
    result = grade(case, trial)
    if args.json:
        told = plain_of([result], [])["cases"][0]
        told["plain"] = {"exit_code": plain_code, "seconds": round(plain_seconds, 2)}
        _output.write(encode(told, indent=2).decode() + "\n")
        return int(not result.good)
    wanted = "nothing is wrong" if case.healthy else f"{case.codes[0]} from step {case.first_step}"
    where = ", ".join(f"{file}:{line}" for file, line in case.places)
    ended = "took too long" if plain_code is None else f"exit code {plain_code}"
    facts = {
        "script": str(case.path),
        "true": f"{wanted}{' at ' if where else ''}{where}",
        "why": case.why,
        "python": f"{ended}, {plain_seconds:.1f} s",
        "holdfast": f"exit code {trial.exit_code}, {trial.seconds:.1f} s, {trial.steps} steps",
        **{name: text for name, text in cells_of(result).items() if name in _SHOWN and text != "-"},
        "run": str(args.keep or ""),
    }
    told = [f"  {name.ljust(9)} {text}" for name, text in facts.items() if text]
    _output.write("\n".join([case.name, *told]) + "\n")
    for sighting in summary.sightings if summary is not None else ():
        _output.show([(), *finding_lines(sighting, _output.width())])
    return int(not result.good)


def _bench(args: argparse.Namespace) -> int:
    if args.resume and args.write is None:
        raise UsageError("--resume continues what --write DIR has begun; give both")
    if args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs} is no number of scripts; give 1 or more")
    every = catalogue(more=args.more)
    cases = choose(every, args.half, args.only)
    before = read_trials(args.write) if args.write is not None else {}
    todo = [case for case in cases if not (args.resume and case.name in before)]
    with _progress(len(todo)) as told:
        trials = bench(todo, jobs=args.jobs, folder=args.write, told=told)
    grades = grades_of(cases, {**before, **trials})
    scores = scores_of(grades)
    if args.write is not None:
        # The file of a folder tells of everything that was ever tried there.
        everything = grades_of(every, {**before, **trials})
        table = markdown_of(everything, scores_of(everything))
        command = f"Command: `holdfast {shlex.join(['faults', 'bench', *_words(args)])}`"
        _output.save(f"# The bench of faults\n\n{command}\n\n{table}", str(args.write / _PAGE))
    if args.json:
        _output.write(encode(plain_of(grades, scores), indent=2).decode() + "\n")
    else:
        lines = [*text_of(grades), ""]
        lines += [text for score in scores for text in score_sentences(score)]
        _output.write("\n".join([*lines, *goal_sentences(scores)]) + "\n")
    return int(any(score.missed for score in scores))


def _words(args: argparse.Namespace) -> list[str]:
    words = ["--half", args.half] if args.half else []
    words += ["--only", args.only] if args.only else []
    return [*words, *(["--jobs", str(args.jobs)] if args.jobs > 1 else [])]


@contextlib.contextmanager
def _progress(total: int) -> Generator[Callable[[Case, Trial | None], None]]:
    """A bar on a terminal, a line for each script elsewhere; both on standard error."""
    done = 0

    def line(case: Case, trial: Trial | None) -> None:
        nonlocal done
        if trial is not None:
            done += 1
            said = " ".join(_codes(trial)) or "nothing"
            print(
                f"[{done}/{total}] {case.name}: {said}, {trial.seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    if not sys.stderr.isatty():
        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        running: list[str] = []

        def step(case: Case, trial: Trial | None) -> None:
            if trial is None:
                running.append(case.name)
            else:
                running.remove(case.name)
                bar.advance(task)
            bar.update(task, description=" ".join(running))

        yield step


def _codes(trial: Trial) -> Sequence[str]:
    return list(dict.fromkeys(said.code for said in trial.said))
