"""Odd input for every reading command: tracebacks, escapes, time and memory are counted.

    python benchmarks/odd_input.py                     # all of it, some forty minutes
    python benchmarks/odd_input.py --part damages      # systematic, more, damages, lines or long
    python benchmarks/odd_input.py --every 20          # one case in twenty
    python benchmarks/odd_input.py --every 8 --first 3 # the fourth of eight shares

A call is a process forked from this one that carries out a command line; its time is that of the
processor, its memory all that it held at its most, the interpreter with numpy included (about
90 MB). A traceback is an exception that leaves ``holdfast.cli.main``. Of the changed run folder
``report`` and ``check`` are called in every case, and one of the other commands in turn.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date
from itertools import chain, cycle
from pathlib import Path

from odd.base import write_base
from odd.calls import MEGABYTES, SECONDS, Called, call
from odd.cases import MORE, Case, command_lines, damages, fresh, systematic, write_configs
from overhead import hardware

PARTS = ("systematic", "more", "damages", "lines", "long")
BOTH = (("report", "runs/odd"), ("check", "runs/odd"))
OTHERS = (
    ("report", "runs/odd", "--format", "md"), ("runs", "runs"),
    ("report", "runs/odd", "--format", "html", "--output", "page.html"),
    ("report", "runs/odd", "--format", "github"), ("track", "runs/odd", "--to", "json"),
    ("report", "runs/odd", "--format", "json"), ("compare", "runs/base", "runs/odd"),
    ("checkpoint", "list", "runs/odd"), ("report", "runs/odd", "--format", "sarif"),
    ("checkpoint", "show", "runs/odd"), ("check", "runs/odd", "--format", "json"),
    ("compare", "runs/odd", "runs/base", "--format", "json"),
    ("runs", "prune", "runs", "--keep", "9", "--dry-run"),
    ("compare", "runs/odd", "runs/base", "--format", "html", "--output", "overlay.html"),
)  # fmt: skip
MILLION = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one case in N")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="begin with case K")
    parser.add_argument("--output", type=Path, help="append the table to this file, too")
    given = parser.parse_args()
    os.environ |= {"HOLDFAST_PLUGINS": "none", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_base(work / "runs" / "base")
        write_configs(work)
        rows = [
            row(part, list(carry_out(part, work, given.first, given.every)))
            for part in given.part or PARTS
        ]
    reported = "\n".join([f"{hardware()}, {date.today()}", "", HEAD, *rows])
    print(reported)
    if given.output:
        with given.output.open("a") as file:
            file.write(f"{reported}\n")


HEAD = (
    "| part | cases | calls | tracebacks | escapes | over 10 s | over 300 MB | slowest | largest "
    "| detectors off |\n|---|---|---|---|---|---|---|---|---|---|"
)


def carry_out(part: str, work: Path, first: int, every: int) -> Iterator[tuple[str, Called]]:
    """Case and call, of one part."""
    if part == "lines":
        for number, words in enumerate(command_lines(200)):
            if number % every == first:
                yield f"line {number}", call(words, work)
        return
    if part == "long":
        write_base(work / "runs" / "long", MILLION)
        fresh(work / "runs" / "base", work / "runs" / "odd")
        for words in (("report",), ("check",), ("report", "--format", "html")):
            yield "a million rows", call([words[0], "runs/long", *words[1:]], work)
        return
    others = cycle(OTHERS)
    for case in list(cases(part))[first::every]:
        case.change(fresh(work / "runs" / "base", work / "runs" / "odd"))
        for words in (*BOTH, next(others)):
            yield case.name, call(words, work)


def cases(part: str) -> Iterable[Case]:
    if part == "damages":
        return damages(400)
    return systematic(MORE) if part == "more" else systematic()


def row(part: str, done: list[tuple[str, Called]]) -> str:
    """A row of the table; what went wrong is told on standard error, each place once."""
    wrong: Counter[str] = Counter()
    first: dict[str, str] = {}
    for name, one in done:
        for what in filter(None, problems(one)):
            wrong[what] += 1
            first.setdefault(what, f"{name}: holdfast {' '.join(one.words)!r}"[:300])
    for what, count in wrong.most_common():
        print(f"{count:5}  {what}\n       {first[what]}", file=sys.stderr)
    calls = [one for _, one in done]
    counts = (
        len({name for name, _ in done}), len(calls), sum(one.traceback for one in calls),
        sum(one.escapes for one in calls), sum(one.seconds > SECONDS for one in calls),
        sum(one.megabytes > MEGABYTES for one in calls),
        f"{max(one.seconds for one in calls):.1f} s",
        f"{max(one.megabytes for one in calls):.0f} MB",
        sum(bool(one.switched_off) for one in calls),
    )  # fmt: skip
    return f"| {part} | {' | '.join(map(str, counts))} |"


def problems(one: Called) -> Iterator[str]:
    """What went wrong in a call."""
    if one.traceback:
        yield f"traceback {one.place}"
    if one.escapes:
        yield f"escape in {' '.join(one.words[:1])}"
    if one.heavy:
        yield f"heavy: {' '.join(one.words[:1])} {one.seconds:.0f} s {one.megabytes / 100:.0f}00 MB"
    yield from chain.from_iterable([[f"off: {text}"] for text in one.switched_off])


if __name__ == "__main__":
    main()
