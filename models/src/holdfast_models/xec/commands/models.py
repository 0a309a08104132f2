"""The verbs about trained models: predict, export, plot, info, config."""

from __future__ import annotations

import argparse
import dataclasses
import signal
from pathlib import Path
from typing import Any, cast

from ...answers import (
    Verb,
    add_output,
    add_settings,
    answer,
    changed,
    named_run,
    say,
    whole,
    yaml_lines,
)

_KINDS = ("reg", "mae", "inp")
_TABLES = "tables"  # in a run folder


def add_model_verbs(verb: Verb) -> None:
    """Describe them."""
    one = verb("predict", "Write what a model says about events, as a ROOT file.", _predict, _HOW)
    one.add_argument(
        "source", metavar="RUN", type=named_run, help="run folder, checkpoint, or exported .onnx"
    )
    one.add_argument("files", metavar="FILES", help="file, folder or pattern of events")
    add_output(one, "ROOT file to write", required=True)
    one.add_argument(
        "--entries", metavar="FIRST:LAST", default=":", help="these events alone (default: all)"
    )
    one.add_argument("--batch", metavar="B", type=whole(1), help="events at once")
    one.add_argument("--chunk", metavar="N", type=whole(1), default=4096,
                     help="events after which what is written is safe (default: 4096)")  # fmt: skip
    one.add_argument("--max-events", metavar="N", type=whole(1),
                     help="at most; default: 1000 for an autoencoder, else all")  # fmt: skip
    one.add_argument(
        "--inpainter", metavar="RUN", type=named_run, help="study of dead sensors: this one fills"
    )
    one.add_argument("--dead", metavar="WHICH", default="branch",
                     help="branch, sentinels, or a text file of sensor ids")  # fmt: skip
    one.add_argument("--no-ema", action="store_true", help="the weights, not their average")
    one.add_argument("--device", metavar="NAME", default="cpu", help="cpu, cuda (default: cpu)")
    one.add_argument("--overwrite", action="store_true", help="replace what is there")

    what = "Write a regressor as ONNX, an inpainter as .pt2, and verify the file."
    one = verb("export", what, _export, "  holdfast xec export RUN --out angle.onnx --raw-input")
    one.add_argument("run", metavar="RUN", type=named_run, help="run folder or checkpoint")
    add_output(one, "default: model.onnx or model.pt2 in the run")
    one.add_argument("--raw-input", action="store_true", help="normalise inside the file (ONNX)")
    one.add_argument("--no-ema", action="store_true", help="the weights, not their average")
    one.add_argument("--verify-only", action="store_true", help="compare a file that is there")

    one = verb("plot", "Draw the figures of a run again, from its tables.", _plot)
    one.add_argument("folder", metavar="RUN|DIR", help="with predictions_TASK.csv in it")

    what = "Tell what a run or checkpoint is, or how large a model of some settings would be."
    one = verb("info", what, _info, "  holdfast xec info --kind mae --set model.encoder_dim=512")
    one.add_argument(
        "source", metavar="RUN", type=named_run, nargs="?", help="run folder or checkpoint"
    )
    one.add_argument("--kind", choices=_KINDS, default="reg", help="without RUN (default: reg)")
    add_settings(one, "such as synthetic or small")

    one = verb("config", "Print settings as YAML that `holdfast train` reads.", _config)
    one.add_argument("kind", choices=_KINDS, help="of which model")
    one.add_argument("--full", action="store_true", help="also what is as by default")
    add_settings(one, "such as synthetic or small")


_HOW = """\
  holdfast xec predict RUN 'val*.root' --out predictions.root
  holdfast xec predict model.onnx val.root --out predictions.root --entries 0:50000
  holdfast xec predict REG val.root --inpainter INP --dead dead.txt --out study.root
The same command goes on where an interrupted one stopped."""


def _predict(args: argparse.Namespace) -> int:
    from ..loading import load_run
    from ..predictions.dead_channels import study_files
    from ..predictions.file_predictions import load_predictor, predict_files

    averaged = False if args.no_ema else None
    how: dict[str, Any] = {"entries": _entries(args.entries), "chunk": args.chunk, "say": say}
    how["overwrite"] = args.overwrite
    if args.batch:
        how["batch"] = args.batch
    if args.inpainter:
        models = [load_run(one, device=args.device, averaged=averaged)
                  for one in (args.source, args.inpainter)]  # fmt: skip
        done = study_files(models[0], models[1], args.files, args.out, dead=args.dead, **how)
    else:
        predictor = load_predictor(args.source, device=args.device, averaged=averaged)
        most = args.max_events or (1000 if predictor.settings.kind == "mae" else None)
        done = predict_files(predictor, args.files, args.out, max_events=most, **how)
    plain = {"file": args.out, **dataclasses.asdict(done)}
    again = f", {done.before} of them before" if done.before else ""
    answer(args, plain, [f"{done.entries} events{again}, {done.seconds:.1f} s: {args.out}"])
    if not done.finished:
        say("interrupted; the same command goes on from here")
    return 0 if done.finished else 128 + signal.SIGINT


def _export(args: argparse.Namespace) -> int:
    from ..export import default_path, export
    from ..loading import load_run
    from ..verification import verify

    loaded = load_run(args.run, averaged=False if args.no_ema else None)
    path = Path(args.out) if args.out else default_path(loaded)
    if not args.verify_only:
        export(loaded, path, raw_input=args.raw_input)
    found = verify(loaded, path)
    answer(args, found.plain(), found.lines())
    return 0 if found.ok else 1


def _plot(args: argparse.Namespace) -> int:
    from ..figures.learning import learning_curves
    from ..figures.pictures import FOLDER, need_matplotlib, write_pictures
    from ..figures.tables import read_tables

    need_matplotlib()
    from ..figures.resolution_figures import resolution

    given = Path(args.folder)
    run = given if (given / _TABLES).is_dir() else None
    makers: dict[str, Any] = {
        task: lambda task=task, columns=columns: resolution(task, columns)
        for task, columns in read_tables(given / _TABLES if run else given).items()
    }
    if run is not None:
        makers["learning"] = lambda: learning_curves(run)
    done = write_pictures(given / FOLDER if run else given, makers)
    plain = {"files": [str(one) for one in done.files], "failed": list(done.failed)}
    answer(args, plain, [*plain["files"], *(f"NOT drawn: {one}" for one in done.failed)])
    return 1 if done.failed else 0


def _info(args: argparse.Namespace) -> int:
    from ..loading import settings_of
    from .described import described_model, described_run

    if args.source is None:
        preset = args.preset or (None if args.config or args.set else "synthetic")
        args.preset = preset if args.kind != "inp" else args.preset
        more = ["model.freeze_encoder=false"] if args.kind == "inp" else []
        found = described_model(settings_of(args.kind, args, more))
    else:
        found = described_run(args.source)
    settings = found.pop("settings", None)
    lines = [f"{name:<14}{value}" for name, value in found.items() if name != "parameters"]
    lines += [f"  {part:<26}{count:>12,}" for part, count in found["parameters"].items()]
    if settings is not None:
        lines += ["", *yaml_lines(settings)]
        found["settings"] = settings
    answer(args, found, lines)
    return 0


def _config(args: argparse.Namespace) -> int:
    from ..loading import settings_of
    from ..recipe_settings import SETTINGS

    settings = dataclasses.asdict(settings_of(args.kind, args))
    if not args.full:
        # Made of the fields: there is no regressor without a task.
        fields = dataclasses.fields(cast(Any, SETTINGS[args.kind].settings))
        usual: dict[str, Any] = {field.name: field.default for field in fields}
        sections = {n: cast(Any, v) for n, v in usual.items() if dataclasses.is_dataclass(v)}
        usual |= {name: dataclasses.asdict(one) for name, one in sections.items()}
        settings = changed(settings, usual)
    answer(args, settings, [*yaml_lines(settings)] or ["# everything is as by default"])
    return 0


def _entries(text: str) -> tuple[int, int | None]:
    """``FIRST:LAST``, either of which may be missing."""
    from holdfast import HoldfastError

    first, colon, last = text.partition(":")
    if not colon or not (first or "0").isdecimal() or not (last or "0").isdecimal():
        raise HoldfastError(f"--entries {text!r}; write FIRST:LAST, such as 0:50000")
    found = int(first or 0), int(last) if last else None
    if found[1] is not None and found[1] <= found[0]:
        raise HoldfastError(f"--entries {text!r} are none; write FIRST:LAST, such as 0:50000")
    return found
