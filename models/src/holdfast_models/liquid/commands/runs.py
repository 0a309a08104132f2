"""The verbs about runs: eval, show, continual, export."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from holdfast import HoldfastError

from ...answers import Verb, add_output, answer, named_run, whole, yaml_lines

_MEASURES = ("accuracy", "backward_transfer", "forward_transfer", "forgetting")


def add_run_verbs(verb: Verb) -> None:
    """Describe them."""
    what = "Measure a run on held-out data, beside what needs no network."
    one = verb("eval", what, _eval, "  holdfast liquid eval RUN --data notes.txt more_texts")
    one.add_argument("--data", metavar="TEXT", nargs="+", default=[], help="other corpora or files")
    one.add_argument("--batch-size", metavar="N", type=whole(1), default=64, help="default: 64")
    one.add_argument("--device", metavar="NAME", default="cpu", help="cpu, cuda (default: cpu)")
    _add_run(one)

    one = verb("show", "Tell what a run is, and how its units behave on held-out data.", _show)
    _add_run(one)

    what = "Show scores on every task after every task; compare several runs."
    one = verb("continual", what, _continual, "  holdfast liquid continual runs/naive runs/replay")
    _add_run(one, nargs="+")

    one = verb("export", "Write the network as .pt2 or ONNX, and verify the file.", _export)
    add_output(one, "default: model.pt2 in the run")
    _add_run(one)


def _add_run(parser: argparse.ArgumentParser, **how: Any) -> None:
    parser.add_argument(
        "run", metavar="RUN", type=named_run, help="run folder or checkpoint", **how
    )


def placed(net: Any, name: str) -> Any:
    """The network on a device of this name; one that is not there is one line."""
    try:
        return net.to(name)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0][:120]
        raise HoldfastError(f"--device {name} cannot be used ({first}); try cpu") from None


def _eval(args: argparse.Namespace) -> int:
    from ..evaluation.evaluate import evaluate
    from ..loading import load_run

    loaded = load_run(args.run)
    placed(loaded.net, args.device)
    found = evaluate(loaded, args.data, batch=args.batch_size)
    answer(args, found.plain(), found.lines())
    return 0


def _show(args: argparse.Namespace) -> int:
    from ..loading import load_run
    from .described import described

    found = described(load_run(args.run))
    answer(args, found, [*yaml_lines(found)])
    return 0


def _continual(args: argparse.Namespace) -> int:
    from ..continual.scores import TaskScores
    from ..recipe import read_table

    found = {run: read_table(Path(run), "continual") for run in args.run}
    lines: list[str] = []
    for run, table in found.items():
        lines += [run, *(f"  {line}" for line in TaskScores.of(table).lines())]
    width = max(map(len, found))
    if len(found) > 1:
        lines.append(" " * width + "".join(f"{name.replace('_', ' '):>20}" for name in _MEASURES))
        for run, table in found.items():
            cells = [table.get(name) for name in _MEASURES]
            shown = ["-" if cell is None else f"{cell:+.4f}" for cell in cells]
            lines.append(f"{run:<{width}}" + "".join(f"{cell:>20}" for cell in shown))
    answer(args, found, lines)
    return 0


def _export(args: argparse.Namespace) -> int:
    from ..export import export
    from ..loading import load_run

    loaded = load_run(args.run)
    found = export(loaded, Path(args.out) if args.out else loaded.run / "model.pt2")
    answer(args, found._asdict() | {"ok": found.ok}, [found.line()])
    return 0 if found.ok else 1
