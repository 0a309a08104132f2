"""Text from elsewhere never acts on a terminal, nor passes for a line of ours."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from holdfast.records.base import event_from
from holdfast.records.run import PartFailed
from holdfast.report import card_html, end_summary, saved_words
from holdfast.report.live import Live, start_line
from holdfast.report.terminal import Terminal
from holdfast.run import LaneReader, LaneWriter, Run
from holdfast.types import Event, Finding, Severity

EVIL = (
    "x\x1b]0;PWNED\x07\x1b[31m\x9b2J\x7f\r\u202eback\u2066\ud800\n::error::forged\n```\n::error::b"
    "\n\u2003 ::set-env name=A::b\n##[add-mask]c ##vso[task]d" + " ::stop-commands::e" * 9
)
# What the log of a CI service obeys.
OBEYED = re.compile(r"^\s*::|##\w*\[", re.M)
# What a terminal acts on, and what hides or turns text around; a lone half prints as "?" at most.
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
EXCERPT = [[7, "before"], [8, EVIL]]
EXCEPTION = {
    "type": EVIL, "message": EVIL, "file": EVIL, "line": 8, "function": EVIL, "code": EVIL,
    "traceback": EVIL, "phase": EVIL, "start": 8, "excerpt": EXCERPT, "called_from": EVIL,
    "frames": [{"file": EVIL, "line": 8, "function": EVIL, "code": EVIL}],
    "operands": [{"name": EVIL, "shape": EVIL, "dtype": EVIL, "device": EVIL}],
    "variables": [{"name": EVIL, "repr": EVIL, "type": EVIL}],
}  # fmt: skip
CAUSE = {
    **dict.fromkeys(("phase", "op", "file", "function", "code", "module", "layer"), EVIL),
    "opt": 0, "how": "replay", "observed": 3, "line": 8, "start": 8, "excerpt": EXCERPT,
    "inputs": [], "sample": 4, "samples": [[0, EVIL]], "columns": [1], "samples_bad": 1,
}  # fmt: skip
EVENTS: dict[str, dict[str, Any]] = {
    "start": {"torch": EVIL, "python": EVIL, "device": EVIL, "world": EVIL},
    "policy": {"rules": [EVIL]},
    "optimizer": {"opt": 0, "cls": EVIL, "layers": [EVIL], "buffers": [EVIL], "how": EVIL},
    "not_covered": {"what": EVIL, "why": EVIL},
    "holdfast_error": {"where": EVIL, "error": EVIL},
    "switched_to_fused": {"opt": 0, "cls": EVIL},
    "rollback": {"opt": 0, "code": EVIL, "why": EVIL, "steps": 2, "to": 1},
    "quarantine": {"opt": 0, "index": EVIL, "file": EVIL, "reason": EVIL},
    "stop": {"code": EVIL, "why": EVIL, "checkpoint": EVIL},
    "cause": CAUSE,
    "checkpoint": {"file": EVIL, "models": [EVIL], "optimizers": 1, "bytes": 9, "seconds": 1.0},
    "resumable": {"accepted": False, "reason": EVIL, "file": EVIL, "line": 3},
    "last_state": {"failed": EVIL},
    "exception": EXCEPTION,
}  # fmt: skip
FINDING = Finding(
    code=f"NUM001{EVIL}", name=EVIL, severity=Severity.ERROR, step=3, message=EVIL, advice=EVIL,
    file=EVIL, line=8, action=EVIL,
    evidence={"headline": EVIL, "diff": f"-{EVIL}\n+{EVIL}", "cause": CAUSE, "layer": EVIL},
)  # fmt: skip


@pytest.fixture
def forged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    command = [EVIL, f"--{EVIL}"]
    meta = {"script": EVIL, "command": command, "holdfast": EVIL, "python": EVIL, "platform": EVIL}
    run = Run.create(tmp_path / "runs" / "forged", {**meta, "settings": {EVIL: EVIL}})
    run.update_meta(status="finished", exit_code=1, restarts=[{"reason": EVIL, "step": 2}])
    writer = LaneWriter(run, "r0")
    writer.write_events(
        [Event(time=1.0, rank=0, step=3, kind=kind, data=data) for kind, data in EVENTS.items()]
    )
    writer.write_findings([FINDING])
    writer.close()
    other = tmp_path / "runs" / "x\x1b[31m\u202ey"
    Run.create(other, {**meta, "status": EVIL, "created": EVIL})
    saved = run.path / "checkpoints" / "step-0000000003.r0.json"
    saved.parent.mkdir()
    saved.write_text(json.dumps({"file": EVIL, "kind": EVIL, "metrics": {EVIL: EVIL}, EVIL: EVIL}))
    return run


COMMANDS = """
report RUN
report RUN --format json
report RUN --format md
report RUN --format html --output /dev/stdout
report RUN --format github
report RUN --format sarif
check RUN
check RUN --format json
check RUN --format github
compare RUN RUN
compare RUN OTHER
runs runs
runs runs --format json
runs prune runs --keep 0 --dry-run
explain EVIL
report EVIL
report OTHER
checkpoint list RUN
checkpoint show RUN
track RUN --to jsonl
open RUN
EVIL
report RUN --EVIL
"""


@pytest.mark.parametrize("words", COMMANDS.strip().splitlines())
@pytest.mark.parametrize("colour", ["0", "1"])
def test_nothing_a_terminal_acts_on_is_printed(words, colour, forged, capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", colour)
    monkeypatch.setenv("HOLDFAST_PLUGINS", "none")
    known = {"RUN": str(forged.path), "OTHER": str(forged.path.parent / "x\x1b[31m\u202ey")}
    given = [word.replace("EVIL", EVIL) for word in words.split()]
    main([str(known.get(word, word)) for word in given])
    reported = capfd.readouterr()
    assert reported.out or reported.err
    if "open" not in words.split():
        harmless(reported.out)
    harmless(reported.err)
    if "github" in words:
        assert all(row.startswith("::") for row in reported.out.splitlines())
        assert "::error::" not in reported.out.splitlines()
    elif "html" not in words:
        assert not OBEYED.search(reported.out)
        assert "md" not in words or ": :error::forged" in reported.out
    assert not OBEYED.search(reported.err)


def test_live_lines_and_the_last_words_are_harmless(forged):
    for terminal in (Terminal(), Terminal(there=True, colour=True)):
        reported: list[str] = []
        live = Live(reported.append, verbose=True, health=1, terminal=terminal)
        data = LaneReader(forged, "r0").read()
        live.show(data.findings, data.events)
        assert len(reported) > 8
        harmless("".join(text.removeprefix("\r\x1b[2K") for text in reported))
        reported += [end_summary(forged, terminal), saved_words(forged)]
        assert not any(OBEYED.search(text) for text in reported)
        harmless("".join(reported[-2:]))
    harmless(card_html(forged))
    live = Live(reported.append, start=start_line(EVIL, EVIL, acts=True), terminal=Terminal())
    live.show([], [Event(time=0.0, rank=0, step=0, kind="policy", data={"rules": ["x: y"]})])
    harmless(reported[-1])


def harmless(text: str) -> None:
    """Only our own colours are escapes."""
    found = ACTS.search(re.sub(r"\x1b\[[\d;]+m(?!\x1b)([^\x1b]*)\x1b\[0m", r"\1", text))
    assert found is None, text[max(0, found.start() - 60) : found.end() + 60]


HUGE = 300_000
LONG = {"text": f"begin {'word ' * (HUGE // 5)}end", "one word": f"begin{'x' * HUGE}end"}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_nobody_has_to_read_megabytes(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOLDFAST_PLUGINS", "none")
    run = Run.create(tmp_path / "run", {"script": "train.py"})
    run.update_meta(status="finished", exit_code=1)
    evidence = {"headline": text, "diff": "+a\n" * 99, "traceback": text, "frames": [],
                "cause": CAUSE | {"code": text, "op": text, "excerpt": [[8, text]]}}  # fmt: skip
    writer = LaneWriter(run, "r0")
    writer.write_findings(
        [dataclasses.replace(FINDING, message=text, advice=text, name=text, evidence=evidence)]
    )
    failures = [PartFailed(where=f"{i}", error=text) for i in range(3)]
    failures += [PartFailed(where="", error=f"{i}") for i in range(90)]
    writer.write_events([event_from(3, failure, 0) for failure in failures])
    writer.close()
    for form in ("text", "md", "github"):
        assert main(["report", str(run.path), "--format", form]) == 0
        reported = capsys.readouterr().out.replace("\\", "")
        assert (
            len(reported) < 90_000 and "characters more: holdfast report --format json)" in reported
        )
        assert "begin" in reported and "end" in reported
        assert form == "github" or "53 more: holdfast report --format json" in reported
        assert form == "github" or "59 lines more: holdfast report --format json" in reported
    assert len(end_summary(run)) < 70_000
    assert main(["report", str(run.path), "--format", "json"]) == 0
    assert text in capsys.readouterr().out
