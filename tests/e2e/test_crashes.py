"""Crashes under ``holdfast run``: python's own words, and a finding with its line."""

from __future__ import annotations

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
    assert state.step == 29 and "failed" not in state.data
