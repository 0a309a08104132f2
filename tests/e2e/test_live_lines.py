"""What holdfast says while a script runs and when it ends, and how it keeps out of the way."""

from __future__ import annotations

import json
import math
import re
import signal
from pathlib import Path

import pytest

from .conftest import TRAIN, Bench, Terminal, await_line

BAR = (
    TRAIN
    + """
import sys, time
total = 40
for step in range(total):
    train(1, bad=[0] if step in (10, 20) else [])
    sys.stderr.write(f"\\rtraining: {step + 1:3d}/{total} " + "#" * step)
    sys.stderr.flush()
    if step in (10, 20):
        time.sleep(0.7)  # time for the line of holdfast to come in between
sys.stderr.write("\\n")
print("the end")
"""
)


class Screen:
    """As much of a terminal as a progress bar needs: carriage return, newline, erase, colour."""

    def __init__(self) -> None:
        self.lines = [""]
        self._at = 0

    def feed(self, text: str) -> Screen:
        for piece in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[\r\n]|[^\r\n\x1b]+", text):
            if piece == "\r":
                self._at = 0
            elif piece == "\n":
                # A terminal turns a newline of a program into both.
                self.lines.append("")
                self._at = 0
            elif piece.endswith("K"):
                self.lines[-1] = "" if piece == "\x1b[2K" else self.lines[-1][: self._at]
            elif not piece.startswith("\x1b"):
                line = self.lines[-1].ljust(self._at)
                self.lines[-1] = line[: self._at] + piece + line[self._at + len(piece) :]
                self._at += len(piece)
        return self


@pytest.mark.slow
def test_a_progress_bar_on_a_terminal_is_not_garbled(bench: Bench):
    terminal = Terminal(bench.under_holdfast([bench.write(BAR)], []), bench.folder)
    assert terminal.end() == 0
    lines = Screen().feed(terminal.seen.decode()).lines
    ours = [line for line in lines if "[NUM001]" in line]
    assert len(ours) == 2, lines
    for step, line in zip((10, 20), ours, strict=True):
        assert line.startswith(f"step {step} ") and "#" not in line and "training" not in line
    bars = [line for line in lines if line.startswith("training: ")]
    assert bars[-1] == f"training:  40/40 {'#' * 39}"
    assert all(re.fullmatch(r"training: [ \d]{3}/40 #*", bar) for bar in bars)
    assert "the end" in lines


def test_what_is_said_and_where(bench: Bench):
    """Plain text to a pipe: no control characters, nothing on standard output."""
    script = bench.write(BAR)
    seen = bench.guarded(script, options=[])
    assert (seen.code, seen.out) == (0, b"the end\n")
    assert "\x1b" not in seen.reported
    # A bar that is not on a terminal still ends its line before ours begins, or after.
    ours = [line for line in seen.reported.splitlines() if "[NUM001]" in line]
    # On a slow machine the second comes with the end, and is told there.
    assert len(ours) in (1, 2)
    assert "skipped: loss is NaN" in ours[0]
    start = f"holdfast: guarding {Path(script).name}, recording to {bench.path}\n"
    assert seen.reported.count(start) == 1 and "policy" not in seen.reported
    summary = seen.reported[seen.reported.index("holdfast: finished") :]
    reported = " ".join(summary.split())
    assert reported.startswith("holdfast: finished after 40 steps.")
    assert "2 steps skipped" in reported
    # Of a run of seconds the summary tells it where looking into bad steps took a part worth
    # telling, which the clock decides; the report tells it in any case.
    cost = r"Guard cost .* of [\d.]+ m?s.*; too short a run to tell"
    assert "Guard cost" not in reported or re.search(cost, reported)
    report = " ".join(bench.cli("report", str(bench.path)).text.split())
    assert re.search(cost, report)
    assert "holdfast explain NUM001" in reported
    page = bench.path / "report.html"
    assert f"  report  {page}\n  text    holdfast report {bench.path}\n" in seen.reported
    assert "Finished with findings" in page.read_text() and "NUM001" in page.read_text()


@pytest.mark.slow
def test_quiet_says_nothing_and_records_all(bench: Bench):
    script = bench.write(TRAIN + "train(20, bad=[3, 5])\nprint('x')\n")
    seen = bench.guarded(script, options=["--quiet"])
    assert (seen.code, seen.out, seen.err) == (0, b"x\n", b"")
    assert bench.record.skipped() == [3, 5]
    report = bench.cli("report", str(bench.path), "--format", "json")
    reported = json.loads(report.text)
    assert (reported["skipped"], reported["steps"], reported["outcome"]) == (2, 20, "finished")
    assert [f["code"] for f in reported["findings"]] == ["NUM001"]
    assert (bench.path / "report.html").is_file()


def test_a_storm_of_nan_is_no_storm_of_lines(bench: Bench):
    script = bench.write(TRAIN + "train(300, bad=range(100, 250))\nprint('x')\n")
    seen = bench.guarded(script, options=[])
    assert seen.out == b"x\n"
    lines = [line for line in seen.reported.splitlines() if "[NUM001]" in line]
    assert 1 <= len(lines) <= 8
    # What a rollback that was undone has shown has the code of its cause, too, and may come first.
    assert next(line for line in lines if "skipped" in line).startswith("step 100 ")
    assert "150 steps skipped" in " ".join(seen.reported.split())


def test_observe_changes_nothing_and_tells_all(bench: Bench):
    """``--observe``: the training dies of its NaN as it would have, and we say when."""
    script = bench.write(TRAIN + "train(9, bad=[4])\nprint(model.weight.tolist())\n")
    plain, guarded = bench.both(script, options=["--observe"])
    assert (guarded.code, guarded.out) == (plain.code, plain.out)
    assert b"nan" in guarded.out
    assert bench.record.skipped() == []
    assert bench.record.findings()[0].step == 4
    assert "NOT skipped" in guarded.reported
    assert "holdfast: only watching " in guarded.reported and "policy" not in guarded.reported


@pytest.mark.slow
def test_health_on_request(bench: Bench):
    script = bench.write(TRAIN + "train(61, bad=[33])\n")
    seen = bench.guarded(script, options=["--health", "20"])
    lines = [line for line in seen.reported.splitlines() if " steps/s" in line]
    assert [line.split("  ")[0] for line in lines] == ["step 20", "step 40", "step 60"]
    assert all(" grad norm " in line and "  lr " in line for line in lines)
    assert "(baseline " in lines[1] and lines[1].endswith("  1 skipped")


def test_a_healthy_run_hears_its_policy_one_summary_and_its_settings_are_recorded(bench: Bench):
    (bench.folder / "own.yaml").write_text("run:\n  layers_every: 3\n  memory_every: 5\n")
    script = bench.write(TRAIN + "train(9)\n")
    options = ["--config", "own.yaml", "--set", "run.memory_every=7", "--no-fused", "-v"]
    seen = bench.guarded(script, options=options)
    assert seen.out == b""
    lines = seen.reported.splitlines()
    assert lines[0].startswith("holdfast: guarding ")
    assert lines[1].startswith("holdfast: policy: ") and lines[1].endswith("to only record)")
    assert lines[2].startswith("holdfast: finished after 9 steps. No findings")
    assert len(lines) <= 6
    settings = bench.record.run.meta["settings"]
    assert settings["run"]["layers_every"] == 3
    assert settings["run"]["memory_every"] == 7
    assert settings["guard"]["fused"] is False
    assert bench.record.lane().tables["layers0"]["step"].tolist() == [0, 3, 6]


AVERAGE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 8)
x[100, 3] = float("nan")
loader = DataLoader(TensorDataset(x, x[:, :1]), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(3):
    total = 0.0
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"mean loss {total / len(loader):.4f}")
"""


@pytest.mark.parametrize("keep", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_average_of_a_script_stays_a_number(bench: Bench, keep: bool):
    outcome = bench.guarded(bench.write(AVERAGE), options=["--keep-nan"] if keep else [])
    record = bench.record
    means = [float(line.split()[-1]) for line in outcome.lines]
    assert len(means) == 3 and all(math.isnan(mean) is keep for mean in means)
    assert record.steps()["skipped"].sum() == 3
    assert math.isnan(record.steps()["loss"].sum())  # the record keeps what it was
    assert bool(record.events("loss_replaced")) is not keep
    reported = " ".join(outcome.reported.split())
    assert "3 losses not finite, mean without them" in reported and "column 3" in reported


CAUGHT = (
    TRAIN
    + """
import time
try:
    for step in range(600):
        train(1)
        if step == 5:
            print("ready", flush=True)
        time.sleep(0.05)
except KeyboardInterrupt:
    print("saved by hand")
"""
)


def test_a_script_that_catches_ctrl_c_was_interrupted_and_did_not_finish(bench: Bench):
    process = bench.start_guarded(bench.write(CAUGHT), options=[])
    await_line(process, b"ready")
    process.send_signal(signal.SIGINT)
    seen = bench.end(process)
    assert (seen.code, seen.out.splitlines()[-1]) == (0, b"saved by hand")
    reported = " ".join(seen.reported.split())
    assert "holdfast: interrupted from the keyboard, which the script handled, after" in reported
    assert [event.data["name"] for event in bench.record.events("signal")] == ["SIGINT"]


def test_a_script_without_training_hears_one_line(bench: Bench):
    seen = bench.guarded(bench.write("print('x')\n"), options=[])
    assert (seen.code, seen.out) == (0, b"x\n")
    assert seen.reported.splitlines() == [
        "holdfast: no backward pass and no optimizer step were seen; nothing to record"
    ]
    assert not bench.path.exists()
