"""``holdfast energy_flow``: what can be done with a trained lattice, beside training it.

Nothing heavy is imported before a verb is carried out: the help of holdfast lists this command.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...answers import add_format, add_set, named_run, whole
from .data import add_data_verbs

if TYPE_CHECKING:
    from ..evaluation.loading import Loaded
    from ..run_settings import EnergyFlowSettings

__all__ = ["EnergyFlowCommand"]


class EnergyFlowCommand:
    """Evaluate, ask, time and describe energy-flow models, and keep their data.

    RUN is a folder that `holdfast train energy_flow` made; its best weights are used. --set
    changes a setting of the run, as long as the weights still fit. The exit code is 0 when all is
    well, 1 when data is not valid, 2 when something that was given is wrong.

      holdfast energy_flow eval RUN                      measures on the test split
      holdfast energy_flow eval RUN --split validation --json
      holdfast energy_flow eval RUN --baselines          also what the mappers alone reach
      holdfast energy_flow chat RUN                      a text in, a text out, line by line
      holdfast energy_flow chat RUN --text "A man is riding a bicycle."
      holdfast energy_flow bench --preset exp50 --batch 64 --steps 50 --json
      holdfast energy_flow data make sets --count 5000   see: holdfast energy_flow data --help
      holdfast energy_flow show RUN                      sizes, and what the settings mean
    """

    name = "energy_flow"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the verbs and their options."""
        verbs = parser.add_subparsers(metavar="VERB", dest="verb", required=True)

        def verb(name: str, what: str, act: Callable[[Any], int]) -> argparse.ArgumentParser:
            one = verbs.add_parser(name, help=what, description=what, allow_abbrev=False)
            add_set(one, "change one setting, e.g. data.split=hard")
            add_format(one)
            one.set_defaults(act=act)
            return one

        one = verb("eval", "Measure a run on pairs it was not trained on.", _eval)
        _run_options(one)
        one.add_argument(
            "--split", choices=("test", "validation", "train"), default="test",
            help="which part of the data (default: test)",
        )  # fmt: skip
        one.add_argument(
            "--texts", metavar="N", type=whole(0), default=64,
            help="write out so many texts at most (default: 64)",
        )  # fmt: skip
        one.add_argument(
            "--baselines", action="store_true",
            help="also train the mappers alone as the run was trained, and for fields five "
            "convolutions; the time is told first",
        )  # fmt: skip
        one = verb("chat", "Give texts to a run and read its answers.", _chat)
        _run_options(one)
        one.add_argument("--text", metavar="TEXT", help="one text; lines of standard input if not")
        one.add_argument(
            "--nearest", metavar="N", type=whole(1), default=3,
            help="name so many training sentences (default: 3)",
        )  # fmt: skip
        one = verb("bench", "Time the forward pass and the training step.", _bench)
        one.add_argument("--preset", metavar="NAME", help="settings of the recipe's own")
        one.add_argument("--batch", metavar="B", type=whole(1), help="samples at once")
        one.add_argument(
            "--steps", metavar="N", type=whole(1), default=50, help="timed (default: 50)"
        )
        one.add_argument(
            "--precision", choices=("auto", "fp32", "bf16"), default="auto",
            help="auto: bf16 on a GPU, fp32 elsewhere",
        )  # fmt: skip
        one.add_argument("--guard", action="store_true", help="train under holdfast's guard")
        _device_option(one)
        one = verb(
            "show", "Tell the sizes of a run or a preset, and what its settings mean.", _show
        )
        _run_options(one, needed=False)
        one.add_argument("--preset", metavar="NAME", help="instead of a run")
        data = verbs.add_parser("data", help="Make and keep sets of pairs.", allow_abbrev=False)
        add_data_verbs(data)

    def run(self, args: argparse.Namespace) -> int:
        """Carry out one verb."""
        return args.act(args)


def _run_options(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    parser.add_argument(
        "run", metavar="RUN", type=named_run, nargs=None if needed else "?", help="run folder"
    )
    parser.add_argument(
        "--newest", action="store_true", help="the newest weights instead of the best"
    )
    _device_option(parser)


def _device_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", metavar="NAME", default="auto", help="auto, cpu, cuda, cuda:1 (default: auto)"
    )


def _eval(args: argparse.Namespace) -> int:
    from ..evaluation.baselines import baselines_of, expected_seconds
    from ..evaluation.evaluate import evaluate

    loaded = _loaded(args)
    baselines = baselines_of(loaded) if args.baselines else []
    for one in baselines:
        steps, seconds = expected_seconds(one, loaded.sets)
        print(
            f"holdfast: {one.name}: {steps} steps of training, about {seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    found = evaluate(loaded, args.split, texts=args.texts, baselines=baselines)
    _tell(
        args.format == "json", {"weights": str(loaded.checkpoint), **found.plain()}, found.lines()
    )
    return 0


def _chat(args: argparse.Namespace) -> int:
    from ..evaluation.conversation import Conversation

    talk = Conversation(_loaded(args), args.nearest)
    for text in _lines_of_input() if args.text is None else (args.text,):
        answer = talk.answer(text)
        # One object a line, so that a program can follow a long talk.
        print(
            json.dumps(answer.plain()) if args.format == "json" else "\n".join(answer.lines()),
            flush=True,
        )
    return 0


def _bench(args: argparse.Namespace) -> int:
    from ..evaluation.benchmark import bench, bench_lines
    from ..evaluation.loading import device_named

    batch = [] if args.batch is None else [f"train.data.batch={args.batch}"]
    found = bench(
        _settings(args.preset, [*args.set, *batch]),
        device_named(args.device),
        steps=args.steps,
        precision=args.precision,
        guard=args.guard,
    )
    _tell(args.format == "json", found, bench_lines(found))
    return 0


def _show(args: argparse.Namespace) -> int:
    from holdfast import HoldfastError
    from holdfast.training import Place

    from ..evaluation.loading import device_named
    from ..evaluation.overview import overview
    from ..forecast import forecast, sketch

    if (args.run is None) == (args.preset is None):
        raise HoldfastError(
            f"show: run is {args.run}, preset {args.preset}; give either RUN or --preset NAME"
        )
    where: dict[str, str] = {}
    if args.run is None:
        settings = _settings(args.preset, args.set)
        model = sketch(settings)
    else:
        loaded = _loaded(args)
        settings, model = loaded.settings, loaded.model
        where = {"weights": str(loaded.checkpoint)}
    found = overview(settings, model)
    place = Place(device_named(args.device))
    expected = forecast(settings, place)
    lines = [*(f"{name} {value}" for name, value in where.items()), *found.lines()]
    lines += ["", *expected.lines(place), *([expected.fits] if expected.fits else [])]
    plain = {"memory": dict(expected.memory), "step_seconds": expected.step_seconds}
    plain |= {"steps": expected.steps, "fits": expected.fits}
    _tell(args.format == "json", {**where, **found._asdict(), "forecast": plain}, lines)
    return 0


def _loaded(args: argparse.Namespace) -> Loaded:
    from ..evaluation.loading import load_run

    loaded = load_run(args.run, overrides=args.set, device=args.device, best=not args.newest)
    for remark in loaded.remarks:
        print(f"holdfast: {remark.line}", file=sys.stderr)
    return loaded


def _settings(preset: str | None, overrides: Sequence[str]) -> EnergyFlowSettings:
    from holdfast.training import resolve

    from ..recipe import RECIPE

    return resolve(RECIPE, preset=preset, overrides=overrides)


def _lines_of_input() -> Iterator[str]:
    """Texts of standard input until it ends; a person is asked for each."""
    person = sys.stdin.isatty()
    while True:
        if person:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


def _tell(as_json: bool, plain: dict[str, Any], lines: Sequence[str]) -> None:
    print(json.dumps(_finite(plain), indent=2) if as_json else "\n".join(lines))


def _finite(value: Any) -> Any:
    """The same without numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [_finite(inside) for inside in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
