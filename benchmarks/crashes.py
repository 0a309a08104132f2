"""What is said of scripts that crash, beside what their authors say, and which states were kept.

    python benchmarks/detection.py crashes --keep DIR      # run them
    python benchmarks/crashes.py DIR                       # then read what they left

Line and code are compared by ``detection.py``; whether a cause and a fix are right is for people
to judge: the table shows both. A state counts as kept if the newest checkpoint of the run can be
read and is the one after the last complete step.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from detecting.corpus import ANSWERS, CORPUS

from holdfast.checkpoint.store import FOLDER, CheckpointStore
from holdfast.errors import HoldfastError
from holdfast.report import summarize
from holdfast.run import Run


def kept_step(run: Path) -> int | None:
    """Complete steps in the newest good checkpoint; None without one."""
    folder = run / FOLDER
    found = CheckpointStore(folder).latest() if folder.is_dir() else None
    return None if found is None else int(found.record.get("steps", found.step))


def reported(run: Path) -> tuple[str, str]:
    """The message and the advice of the first finding."""
    try:
        groups = summarize(Run.open(run)).finding_groups
    except HoldfastError as error:
        return f"({error})", ""
    if not groups:
        return "(no findings)", ""
    first = groups[0].finding
    return f"{first.code} {Path(first.file).name}:{first.line} {first.message}", first.advice


def block(answer: dict[str, Any], run: Path) -> tuple[str, bool | None]:
    """What was said of one script beside its answer; whether its state was kept, if it had one."""
    message, advice = reported(run)
    steps, kept = int(answer["steps"]), kept_step(run)
    state = None if not steps or not answer["exception"] else kept == steps
    where = f"{answer.get('file') or answer['script']}:{answer['line']}"
    lines = [
        f"### {answer['script']}",
        f"- said: {message}",
        f"- advice: {advice}",
        f"- author: {answer['exception'] or 'swallowed'} at {where}; {answer['cause']}",
        f"- fix: {answer['fix']}",
        f"- state: {'none' if kept is None else f'after {kept} steps'}, of {steps}",
    ]
    return "\n".join(lines), state


def main(argv: list[str] | None = None) -> int:
    """Print everything; 1 when a state was lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("kept", type=Path, help="folder given to detection.py --keep")
    parser.add_argument("--collection", default="2026-11-17-crashes")
    args = parser.parse_args(argv)
    answers = json.loads((CORPUS / args.collection / ANSWERS).read_text())
    states: list[bool] = []
    for answer in answers:
        text, state = block(answer, args.kept / args.collection / Path(answer["script"]).stem)
        print(text, end="\n\n")
        states += [] if state is None else [state]
    print(f"state after the last complete step kept: {sum(states)} of {len(states)}")
    return int(not all(states))


if __name__ == "__main__":
    sys.exit(main())
