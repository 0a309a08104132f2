"""Healthy scripts of the corpus, plain against guarded, with the start taken off.

What counts is the time from the first optimizer of a script to its last line, in CPU seconds of its
process: everything before is import and start, everything after is the end, and other work on the
machine moves neither. Workers of loaders are processes of their own and not in it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detecting.corpus import Case, choose, choose_collections, read_collections

from holdfast.run import Run, read_run

from .parts import PARTS, PartTimers
from .whole import command, environment

_LIMIT = 240.0
_WORST = 3
"""So many scripts are run once more with timers around the parts of the guard."""
_TIMERS = "HOST_COST_TIMERS"


@dataclass(frozen=True, kw_only=True)
class Script:
    """One script: CPU seconds of its training."""

    name: str
    plain: float
    guarded: float
    noise: float
    """The longest plain run over the shortest."""
    steps: int

    @property
    def more(self) -> float:
        """What the guard adds, as a share of plain."""
        return self.guarded / self.plain - 1.0


def choose_scripts(words: Sequence[str]) -> list[Case]:
    """So many healthy scripts, evenly from all collections, or those that are named."""
    cases = [c for c in read_collections(choose_collections([])) if c.healthy and c.ranks == 1]
    if len(words) == 1 and words[0].isdigit():
        count = min(len(cases), int(words[0]))
        return [cases[i * len(cases) // count] for i in range(count)]
    return list(choose(cases, ",".join(words)))


def be_script(path: str, marks: str) -> None:
    """Run a script in this process, as python would, and note the CPU time of its training."""
    import torch

    timers = PartTimers() if os.environ.get(_TIMERS) else None
    if timers is not None:
        from holdfast.boot import session

        timers.install()
        session._make_engine()
    began: list[float] = []
    made = torch.optim.Optimizer.__init__

    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        torch.optim.Optimizer.__init__ = made  # type: ignore[method-assign]
        importlib.import_module("torch._dynamo")  # as in a plain run; otherwise at its first use
        began.append(time.process_time())
        if timers is not None:
            timers.clear()

    torch.optim.Optimizer.__init__ = first  # type: ignore[method-assign]
    sys.argv, sys.path[0] = [path], str(Path(path).parent)
    with contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
    spent = time.process_time() - began[0] if began else 0.0
    parts = {} if timers is None else {part: ns / 1e9 for part, ns in timers.spent.items()}
    Path(marks).write_text(json.dumps({"spent": spent, "parts": parts}))


def table(words: Sequence[str], repeats: int) -> list[str]:
    """The table of the chosen scripts, printed as it grows, with what is worst and why."""
    lines = [
        "## Healthy scripts",
        "",
        f"CPU seconds from the first optimizer to the last line, shortest of {repeats} runs each.",
        "",
        "| script | steps | plain ms per step | plain s | guarded s | more | noise |",
        "|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    found: dict[str, tuple[Case, Script]] = {}
    for case in choose_scripts(words):
        script = _measure(case, repeats)
        if isinstance(script, str):
            lines.append(f"| {case.name} | not measured: {script} |")
        else:
            found[case.name] = case, script
            lines.append(_line(script))
        print(lines[-1], flush=True)
    closing = _closing(list(found.values()))
    print("\n".join(closing), flush=True)
    return lines + closing


def _line(script: Script) -> str:
    each = script.plain / script.steps * 1e3 if script.steps else 0.0
    return (
        f"| {script.name} | {script.steps} | {each:.2f} | {script.plain:.2f} "
        f"| {script.guarded:.2f} | {script.more:+.1%} | {script.noise:.3f} |"
    )


def _closing(found: Sequence[tuple[Case, Script]]) -> list[str]:
    """Median, nine in ten, the worst, and the parts that the worst ones pay for."""
    if not found:
        return []
    found = sorted(found, key=lambda pair: pair[1].more)
    more = [script.more for _, script in found]
    nine = more[max(0, -(-9 * len(more) // 10) - 1)]
    lines = [
        "",
        f"{len(more)} scripts: median {statistics.median(more):+.1%}, nine in ten at most "
        f"{nine:+.1%}, worst {more[-1]:+.1%} ({found[-1][1].name}).",
        "",
        f"| worst, µs per step | {' | '.join(PARTS)} |",
        "|---|" + "---|" * len(PARTS),
    ]
    for case, script in reversed(found[-_WORST:]):
        ran = _run(case, "guarded", timers=True)
        if not isinstance(ran, str) and ran[1]:
            parts = (f"{ran[2].get(part, 0.0) / ran[1] * 1e6:.0f}" for part in PARTS)
            lines.append(f"| {script.name} | {' | '.join(parts)} |")
    return lines


def _measure(case: Case, repeats: int) -> Script | str:
    spent: dict[str, list[float]] = {"plain": [], "guarded": []}
    steps = 0
    for repeat in range(repeats):
        for kind in sorted(spent, reverse=bool(repeat % 2)):
            ran = _run(case, kind)
            if isinstance(ran, str):
                return ran
            spent[kind].append(ran[0])
            steps = max(steps, ran[1])
    return Script(
        name=case.name,
        plain=min(spent["plain"]),
        guarded=min(spent["guarded"]),
        noise=max(spent["plain"]) / min(spent["plain"]),
        steps=steps,
    )


def _run(case: Case, kind: str, *, timers: bool = False) -> tuple[float, int, Any] | str:
    """CPU seconds, steps of a guarded run, and seconds by part; or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        script = [os.path.abspath(sys.argv[0]), "--script", str(case.path)]
        script += ["--marks", f"{folder}/marks"]
        process = subprocess.Popen(
            command(kind, script, folder),
            env=environment() | ({_TIMERS: "1"} if timers else {}),
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=_LIMIT)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the script, too, which is a child of ours
            process.communicate()
            return f"more than {_LIMIT:.0f} s"
        if process.returncode:
            return " ".join(said.split())[-200:] or f"exit code {process.returncode}"
        marks = json.loads(Path(folder, "marks").read_text())
        if not marks["spent"]:
            return "no optimizer"
        return marks["spent"], _steps(Path(folder, "run")), marks["parts"]


def _steps(run: Path) -> int:
    lanes = read_run(Run.open(run)) if run.exists() else []
    return max((len(lane.steps) for lane in lanes), default=0)
