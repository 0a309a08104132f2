"""How often the right line is named: every blind fault script, under ``holdfast run``.

    python benchmarks/provenance.py                  # the table
    python benchmarks/provenance.py --scripts numbers        # loops built in unusual ways
    python benchmarks/provenance.py --write          # also into benchmarks/results/
    python benchmarks/provenance.py --set guard.device_path=true     # the way a GPU goes

The scripts and what is true about them were written by someone who had not seen the exams; see
the manifest.json beside them in tests/e2e/scripts, or answers.json in corpus/2026-11-15-numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

from overhead import hardware

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "causes": ROOT / "tests" / "e2e" / "scripts" / "causes",
    "numbers": ROOT / "corpus" / "2026-11-15-numbers",
}


def truths_of(name: str) -> dict[str, dict[str, Any]]:
    """What is true about the scripts of a folder, by name."""
    if name == "causes":
        return json.loads((FOLDERS[name] / "manifest.json").read_text())
    answers = json.loads((FOLDERS[name] / "answers.json").read_text())
    return {
        one["script"]: {**one, "category": one["fault"], "lines": [one["line"], *one["also"]]}
        for one in answers
        if "phase" in one
    }


def examine(folder_of: Path, name: str, options: list[str]) -> dict[str, Any]:
    """Run one script and return the first cause that was recorded; empty without one."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "holdfast", "run", "--quiet", "--run-dir", str(run)]
        subprocess.run(
            [*command, *options, name],
            cwd=folder_of,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=False,
        )
        for path in sorted(run.glob("events*.jsonl")):
            for line in path.read_text().splitlines():
                event = json.loads(line)
                if event["kind"] == "cause":
                    return event["data"]
    return {}


def right(cause: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Whether the cause names what is true: the line, the parameter or the sample."""
    if not cause:
        return False
    if truth["phase"] in ("parameter", "input"):
        key = "layer" if truth["phase"] == "parameter" else "sample"
        return cause["phase"] == truth["phase"] and cause[key] == truth[key]
    return Path(cause["file"]).name == truth["file"] and cause["line"] in truth["lines"]


def main() -> int:
    """Run everything, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--scripts", default="causes", choices=tuple(FOLDERS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    args = parser.parse_args()
    options = [word for setting in args.set for word in ("--set", setting)]
    folder, truths = FOLDERS[args.scripts], truths_of(args.scripts)
    with ThreadPoolExecutor(args.jobs) as pool:
        found = pool.map(lambda name: examine(folder, name, options), truths)
        causes = dict(zip(truths, found, strict=True))
    hits = sum(right(causes[n], truths[n]) for n in truths)
    wanted = [n for n in truths if truths[n]["sample"] is not None]
    samples = sum(causes[n].get("sample") == truths[n]["sample"] for n in wanted)
    command = " ".join(["python benchmarks/provenance.py --scripts", args.scripts, *options])
    lines = [
        "# The right line",
        "",
        f"Command: `{command}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
        f"Right line: {hits} of {len(truths)}. "
        f"Right dataset index: {samples} of {len(wanted)} where one sample is to blame.",
        "",
        "| script | fault | phase | named | how | right |",
        "|---|---|---|---|---|---|",
    ]
    for name, truth in truths.items():
        cause = causes[name]
        file = Path(cause["file"]).name if cause else ""
        named = cause.get("layer") or (f"{file}:{cause['line']}" if cause else "nothing")
        lines.append(
            f"| {name} | {truth['category']} | {truth['phase']} | {named} "
            f"| {cause.get('how', '-')} | {'yes' if right(cause, truth) else 'NO'} |"
        )
    table = "\n".join(lines) + "\n"
    print(table)
    if args.write:
        kind = "device_path" if any("device_path" in s for s in args.set) else "cpu"
        scripts = "_numbers" if args.scripts == "numbers" else ""
        (Path(args.write) / f"provenance{scripts}_{kind}_{date.today()}.md").write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
