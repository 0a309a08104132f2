"""Files that a script writes: a resumed run finds them as they were, and no row comes twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.checkpoint.file import load, save
from holdfast.checkpoint.tree import flatten
from holdfast.run.script_files import KEPT

from .conftest import Bench
from .test_idioms import MADE, STEP

LOGS = {
    "append": """
for epoch in range(4):
    for x, y in train:"""
    + STEP
    + """
    with open("log.csv", "a") as f: f.write(f"{epoch},{loss.item()}\\n")
print(loss.item())
""",
    "append_open": """
log = open("log.csv", "a")
for epoch in range(4):
    for x, y in train:"""
    + STEP
    + """
        log.write(f"{epoch},{loss.item()}\\n")
    log.flush()
log.close()
print(loss.item())
""",
    "path": """
from pathlib import Path
import csv, json
for epoch in range(4):
    for x, y in train:"""
    + STEP
    + """
        with Path("deep.jsonl").open("a") as f: f.write(json.dumps({"loss": loss.item()}) + "\\n")
    with open("log.csv", "a", newline="") as f: csv.writer(f).writerow([epoch, loss.item()])
print(loss.item())
""",
    "anew": """
import json
with open("log.csv", "w") as f: f.write("epoch,loss\\n")
history = []
for epoch in range(4):
    for x, y in train:"""
    + STEP
    + """
    with open("log.csv", "a") as f: f.write(f"{epoch},{loss.item()}\\n")
    history.append(loss.item())
    with open("history.json", "w") as f: json.dump(history, f)
print(loss.item())
""",
    "write_open": """
log = open("log.csv", "w")
log.write("epoch,loss\\n")
for epoch in range(4):
    for x, y in train:"""
    + STEP
    + """
        log.write(f"{epoch},{loss.item()}\\n")
log.close()
print(loss.item())
""",
    "logging": """
import logging
logging.basicConfig(filename="train.log", format="%(message)s", level=logging.INFO, force=True)
for epoch in range(4):
    for x, y in train:"""
    + STEP
    + """
        logging.info("%s %s", epoch, loss.item())
print(loss.item())
""",
}

LOGS |= {
    "second_loop": """
x_val, y_val = data(16, 2).tensors
got = []
for epoch in range(2):
    for x, y in train:"""
    + STEP
    + """
    got.append(model(x_val).sum().item())
late = open("late.csv", "a")
late.write("epoch,loss\\n")
for epoch in range(3):
    for x, y in train:"""
    + STEP
    + """
    late.write(f"{epoch},{loss.item()},{model(x_val).sum().item()}\\n")
late.close()
print(got, loss.item())
""",
}


def _files(folder: Path) -> dict[str, bytes]:
    ours = (".out", ".err", ".py")
    found = [path for path in folder.iterdir() if path.is_file() and path.suffix not in ours]
    return {path.name: path.read_bytes() for path in found}


@pytest.mark.parametrize("name", LOGS)
def test_no_row_of_a_log_comes_twice(bench: Bench, name: str) -> None:
    script = bench.script(MADE + LOGS[name])
    whole = bench.run(script, every=4)
    assert whole.code == 0, whole.err
    assert whole.refusal.get("accepted"), whole.refusal
    files = _files(bench.folder)
    assert files
    kept = bench.folder / "kept"
    kept.mkdir()
    for file in files:
        shutil.copy(bench.folder / file, kept)
    for checkpoint in (whole.checkpoints[0], whole.checkpoints[1], whole.checkpoints[-2]):
        for file in files:
            shutil.copy(kept / file, bench.folder)
        resumed = bench.run(script, checkpoint)
        assert resumed.code == 0, resumed.err
        assert resumed.out == whole.out
        assert _files(bench.folder) == files, checkpoint


def test_what_is_cut_off_is_kept_and_other_files_are_left_alone(bench: Bench) -> None:
    script = bench.script(MADE + LOGS["append"])
    whole = bench.run(script, every=4)
    log, own = bench.folder / "log.csv", bench.folder / "mine.csv"
    rows = log.read_text()
    log.write_text(rows + "of another run\n")
    own.write_text("never opened by the script\n")
    tree, _ = load(whole.checkpoints[-2])
    tree["resume"]["outputs"].append([str(own), 0, b"forged"])
    forged = bench.folder / "run1" / "checkpoints" / "forged.safetensors"
    save(forged, *flatten(tree), {"step": 20, "resume": True})
    resumed = bench.run(script, forged)
    assert resumed.code == 0, resumed.err
    assert log.read_text() == rows
    assert "of another run" in (resumed.run.path / KEPT / "log.csv").read_text()
    assert f"{log} is cut back from" in resumed.err
    assert own.read_text() == "never opened by the script\n"


def test_a_forged_checkpoint_writes_no_file_that_the_script_only_reads(bench: Bench) -> None:
    own = bench.folder / "settings.json"
    own.write_text("[1, 2]")
    script = bench.script(
        MADE
        + """
for epoch in range(4):
    for x, y in train:"""
        + STEP
        + """
    with open("settings.json") as f: print(f.read())
print(loss.item())
"""
    )
    whole = bench.run(script, every=4)
    for contents in (b"forged", None):
        tree, _ = load(whole.checkpoints[-2])
        tree["resume"]["outputs"].append([str(own), 3, contents])
        forged = bench.folder / "run1" / "checkpoints" / "forged.safetensors"
        save(forged, *flatten(tree), {"step": 20, "resume": True})
        resumed = bench.run(script, forged)
        assert resumed.code == 2 and "is read and is not what it was" in resumed.err
        assert own.read_text() == "[1, 2]"


def test_a_log_that_is_shorter_than_it_was_is_refused(bench: Bench) -> None:
    script = bench.script(MADE + LOGS["append_open"])
    whole = bench.run(script, every=4)
    (bench.folder / "log.csv").write_text("0")
    resumed = bench.run(script, whole.checkpoints[-2])
    assert resumed.code == 2 and "log.csv is shorter than it was" in resumed.err


VALIDATED = MADE + "\nx_val, y_val = data(16, 2).tensors\n"
READS = {
    "a file that is read on": """
with open("rows.txt", "w") as f: f.writelines(f"{n / 40}\\n" for n in range(40))
rows = open("rows.txt")
for n in range(30):
    x, y = x_val * float(rows.readline()), y_val"""
    + STEP.replace("\n        ", "\n    ")
    + """
    print(n, loss.item())
""",
    "a file in memory": """
import io
text = io.StringIO()
for n in range(30):
    x, y = x_val, y_val"""
    + STEP.replace("\n        ", "\n    ")
    + """
    text.write(f"{loss.item()}\\n")
print(text.getvalue())
""",
}


@pytest.mark.parametrize("name", READS)
def test_a_file_that_is_read_goes_on_at_its_place(bench: Bench, name: str) -> None:
    script = bench.script(VALIDATED + READS[name])
    whole = bench.run(script, every=4)
    assert whole.code == 0, whole.err
    assert whole.refusal.get("accepted"), whole.refusal
    for checkpoint in (whole.checkpoints[1], whole.checkpoints[-2]):
        resumed = bench.run(script, checkpoint)
        assert resumed.code == 0, resumed.err
        assert resumed.out.splitlines()[-2:] == whole.out.splitlines()[-2:]


def test_a_file_that_is_another_one_each_time_is_refused(bench: Bench) -> None:
    script = bench.script(
        VALIDATED
        + """
for epoch in range(4):
    rows = open(f"log{epoch}.csv", "w")
    for x, y in train:"""
        + STEP
        + """
        rows.write(f"{loss.item()}\\n")
    rows.close()
    print(model(x_val).sum().item())
"""
    )
    whole = bench.run(script, every=4)
    resumed = bench.run(script, whole.checkpoints[-2])
    assert resumed.code == 2, resumed.out
    assert "is the file log0.csv when the resumed run comes to its loop" in resumed.err
    assert "train.py:" in resumed.err


def test_a_log_is_on_record_as_soon_as_it_has_a_row_of_the_training(bench: Bench) -> None:
    script = bench.script(
        VALIDATED
        + """
import os
for n in range(30):
    x, y = x_val, y_val"""
        + STEP.replace("\n        ", "\n    ")
        + """
    with open("rows.csv", "a") as f: f.write(f"{n}\\n")
    if n == 1: os._exit(9)
"""
    )
    killed = bench.run(script)
    assert killed.code == 9
    opened = [event.data for event in killed.events if event.kind == "output"]
    assert [Path(one["file"]).name for one in opened] == ["rows.csv"]
