"""Memory and time on a device, in whole runs of small scripts: code and line, or silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import holdfast

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

HEAD = """
    import tempfile, torch
    from torch import nn
    torch.manual_seed(0)
    layers = [m for _ in range(8) for m in (nn.Linear(1024, 1024), nn.GELU())]
    net = nn.Sequential(*layers, nn.Linear(1024, 10)).cuda()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    total, kept, norms = 0.0, [], {}
    folder = tempfile.mkdtemp()
    def batch():
        return torch.randn(1024, 1024, device="cuda"), torch.randint(0, 10, (1024,), device="cuda")
    def train():
        x, y = batch()
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        return loss
"""

LOOPS = {
    "graph": ("MEM002", "opt.step()\n    total += loss  # HERE"),
    "pile": ("MEM001", "opt.step()\n    kept.append(net(batch()[0]).detach())  # HERE"),
    "reads": (
        "TPT002",
        "for name, p in net.named_parameters():\n"
        "        norms[name] = p.grad.norm().item() + p.norm().item()  # HERE\n"
        "    opt.step()",
    ),
    "stall": (
        "TPT005",
        "opt.step()\n    if step % 10 == 9:\n"
        "        torch.save(opt.state_dict(), folder + '/last.pt')  # HERE",
    ),
    "healthy": ("", "opt.step()\n    if step % 50 == 49:\n        kept.append(loss.item())"),
}


def findings(
    tmp_path: Path, text: str, *options: str, dies: bool = False
) -> tuple[list[dict], int]:
    script = tmp_path / "train.py"
    script.write_text(text)
    under = [sys.executable, "-m", "holdfast", "run", "--quiet", "--run-dir", str(tmp_path / "run")]
    # From another folder, and where holdfast is not installed.
    source = str(Path(holdfast.__file__).resolve().parents[1])
    env = {**os.environ, "PYTHONPATH": source}
    ended = subprocess.run([*under, *options, str(script)], check=False, cwd=tmp_path, env=env)
    assert (ended.returncode != 0) is dies
    reported = [
        json.loads(line)
        for path in (tmp_path / "run").glob("findings.*.jsonl")
        for line in path.read_text().splitlines()
    ]
    line = next((n for n, row in enumerate(text.splitlines(), 1) if "# HERE" in row), 0)
    return [f for f in reported if f["severity"] != "info"], line


@pytest.mark.parametrize("name", LOOPS)
def test_on_a_device(tmp_path: Path, name: str) -> None:
    code, loop = LOOPS[name]
    text = f"{textwrap.dedent(HEAD)}\nfor step in range(200):\n    loss = train()\n    {loop}\n"
    reported, line = findings(tmp_path, text)
    if not code:
        assert not reported
        return
    first = next(f for f in reported if f["code"] == code)
    assert (Path(first["file"]).name, first["line"]) == ("train.py", line)
    assert code == reported[0]["code"]


def test_the_allocator_runs_out_again_and_again(tmp_path: Path) -> None:
    loop = """
torch.cuda.set_per_process_memory_fraction(0.03)
for step in range(300):
    loss = train()
    # Larger each time than any piece that is left.
    scratch = torch.empty((1200 + 2 * step) << 18, device="cuda")
    del scratch
    opt.step()
"""
    reported, _ = findings(tmp_path, textwrap.dedent(HEAD) + loop)
    first = next(f for f in reported if f["code"] == "MEM007")
    assert first["evidence"]["key"] == "retries"
    assert first["evidence"]["retries"] >= 4


def test_steps_that_are_slow_because_the_allocator_runs_out(tmp_path: Path) -> None:
    loop = """
torch.cuda.set_per_process_memory_fraction(0.03)
for step in range(400):
    loss = train()
    # From some step on larger each time than any piece that is left.
    size = 1200 + 2 * max(0, step - 100)
    scratch = torch.empty(size << 18, device="cuda")  # HERE
    del scratch
    opt.step()
"""
    reported, line = findings(tmp_path, textwrap.dedent(HEAD) + loop)
    first = next(f for f in reported if f["code"] == "TPT004")
    assert first["evidence"]["what"] == "retries"
    assert (Path(first["file"]).name, first["line"]) == ("train.py", line)


DOES_NOT_FIT = """
torch.cuda.set_per_process_memory_fraction(0.02)
def batch():
    return torch.randn(120_000, 1024, device="cuda"), torch.randint(0, 10, (120_000,)).cuda()
for step in range(3):
    loss = train()
    opt.step()
"""


def test_a_run_whose_steps_do_not_fit_goes_on(tmp_path: Path) -> None:
    reported, _ = findings(tmp_path, textwrap.dedent(HEAD) + DOES_NOT_FIT)
    # Split in forward, and before that was known perhaps a backward pass that was lost.
    assert {(f["code"], f["severity"]) for f in reported} == {("MEM008", "warning")}


def test_what_a_step_that_does_not_fit_needs(tmp_path: Path) -> None:
    text = textwrap.dedent(HEAD) + DOES_NOT_FIT
    reported, _ = findings(tmp_path, text, "--set", "guard.split=false", dies=True)
    (first,) = [f for f in reported if f["code"] == "MEM008"]
    needs, capacity = first["evidence"]["needs"], first["evidence"]["capacity"]
    # Nine linear layers of 1024 and their activations: input and output of each, GELU between.
    assert needs["optimizer state"] == 2 * needs["weights"] == 2 * needs["gradients"]
    assert needs["activations"] > 16 * 4 * 1024 * 120_000
    assert sum(needs.values()) > capacity
    assert 0 < first["evidence"]["fits"] < 120_000
