"""Crashes under ``holdfast run``: python's own words, and a finding with its line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Bench

WORKER = """
import torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
torch.set_num_threads(1)
class Pictures(Dataset):
    def __init__(self):
        self.files = [f"pictures/{i}.png" for i in range(16)]
    def __len__(self):
        return len(self.files)
    def __getitem__(self, index):
        kinds = {"even": 0, "odd": 1}
        return torch.randn(4), kinds["od" if index == 9 else "even"]
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Pictures(), batch_size=4, num_workers=1):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BACKWARD = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    h = torch.sigmoid(model(torch.ones(2, 4)))
    if step == 2:
        h *= 2
    optimizer.zero_grad()
    h.sum().backward()
    optimizer.step()
"""


def line_of(script: str, text: str) -> int:
    return next(i for i, line in enumerate(script.splitlines(), 1) if text in line)


def test_a_worker_that_raises_names_its_line_and_its_sample(bench: Bench):
    seen = bench.same(bench.write(WORKER))
    assert seen.code == 1 and b"holdfast" not in seen.err
    (finding,) = bench.record.findings()
    assert (finding.code, finding.step) == ("RUN001", 2)
    assert finding.file.endswith("script.py") and finding.line == line_of(WORKER, "return torch")
    assert finding.message.endswith("in loader worker 0 (sample 9, 9.png)")
    assert "did you mean 'odd'?" in finding.advice
    text = bench.record.run.traceback_path("r0").read_text()
    assert "KeyError: 'od'" in text and "holdfast" not in text
    report = bench.cli("report", str(bench.path))
    assert "crashed with KeyError: 'od' at script.py" in report.words


@pytest.mark.slow
def test_a_backward_that_raises_names_the_line_that_overwrote(bench: Bench):
    """Our own call lies between the script's and torch's: the terminal does not show it."""
    bench.same(bench.write(BACKWARD))
    (finding,) = bench.record.findings()
    assert (finding.step, finding.line) == (2, line_of(BACKWARD, "backward"))
    assert f"script.py:{line_of(BACKWARD, 'h *= 2')}" in str(finding.evidence["headline"])


LIMITED = """
import resource
import torch
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
def train():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(30):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
train()
with open("big.bin", "wb", buffering=0) as file:
    for _ in range(8):
        file.write(bytes(100_000))
"""


@pytest.mark.slow
def test_a_process_with_a_limit_for_files_is_recorded_and_its_last_state_kept(bench: Bench):
    """Neither the ring nor the model of a function that has returned may be lost."""
    bench.same(bench.write(LIMITED))
    (finding,) = bench.record.findings()
    assert (finding.code, finding.step) == ("RUN001", 30)
    assert finding.line == line_of(LIMITED, "file.write")
    assert "larger than the limit of 0.4 MiB" in str(finding.evidence["headline"])
    (state,) = bench.record.events("last_state")
    assert state.step == 29 and not state.data["failed"]


GIVEN_UP = """
import sys
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for step in range(4):
        labels = torch.zeros(2 if step < 2 else 3, dtype=torch.long)
        loss = torch.nn.functional.cross_entropy(model(torch.ones(2, 4)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
LEAVE = """
try:
    train()
except ValueError as error:
    print("training failed:", error)
    sys.exit(3)
finally:
    print("bye")
"""
QUIET = {
    "with code 0": LEAVE.replace("(3)", "(0)"),
    "the exit is caught": f"def main():{LEAVE.replace(chr(10), chr(10) + '    ')}\n"
    "try:\n    main()\nexcept SystemExit as left:\n    print(left.code)\n",
    "wrong arguments": "import argparse\nargparse.ArgumentParser().parse_args(['--no'])",
    "an exit of its own": "train.__code__\nsys.exit(4)",
}


@pytest.mark.slow
def test_an_exception_that_the_script_gives_up_on_is_explained(bench: Bench):
    seen = bench.same(bench.write(GIVEN_UP + LEAVE))
    assert seen.code == 3
    (finding,) = bench.record.findings()
    assert (finding.code, finding.step) == ("RUN001", 2)
    assert finding.line == line_of(GIVEN_UP, "cross_entropy")
    assert finding.message.endswith("caught by the script, which left with sys.exit(3)")
    assert bench.record.events("last_state")
    report = bench.cli("report", str(bench.path))
    assert "gave up with exit code 3 after ValueError" in report.words


@pytest.mark.slow
@pytest.mark.parametrize("case", QUIET)
def test_other_exits_are_the_scripts_own_business(bench: Bench, case: str):
    seen = bench.same(bench.write(GIVEN_UP + QUIET[case]))
    assert seen.code == {"wrong arguments": 2, "an exit of its own": 4}.get(case, 0)
    assert b"holdfast" not in seen.err
    assert not bench.path.exists() or bench.record.findings() == []


@pytest.mark.slow
@pytest.mark.parametrize("leave", ["exit(5)", "sys.exit(5)", "quit(code=5)"])
def test_given_up_before_torch(bench: Bench, leave: str):
    script = f"import sys\ntry:\n    import no_such_module\nexcept ImportError:\n    {leave}\n"
    assert bench.same(bench.write(script)).code == 5
    (finding,) = bench.record.findings()
    assert (finding.code, finding.line) == ("RUN001", 3)


PRINTS = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2000):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    print("step", step, "x" * 200, flush=True)
"""


@pytest.mark.slow
def test_a_reader_of_the_output_that_went_away_is_reported_as_that(tmp_path: Path):
    """As ``| head``: python's own exit is kept, and no rank is blamed."""
    script = tmp_path / "prints.py"
    script.write_text(PRINTS)
    codes: list[int] = []
    for start in ([], ["-m", "holdfast", "run"]):
        child = subprocess.Popen(
            [sys.executable, *start, str(script)], cwd=tmp_path, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None and child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        reported = child.stderr.read()
        child.stderr.close()
        codes.append(child.wait(timeout=120))
    assert codes[0] == codes[1] != 0
    assert "the reader of the output went away (stdout)" in " ".join(reported.split())
    assert "rank" not in reported.partition("RUN001")[2]
