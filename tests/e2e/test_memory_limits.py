"""Out of memory on the host, really provoked: under a limit of the process, and by kill -9."""

from __future__ import annotations

import os
import resource
import signal

import pytest

from holdfast.types import Severity

from .conftest import TRAIN, Bench, await_line, child_of

MIB = 2**20
# torch itself maps some 1.2 GiB.
LIMIT = 3_000 * MIB
# For half as many samples, so that half as much has to be filled.
LITTLE = 2_100 * MIB

TOO_LARGE = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x = torch.randn(64 if step < 3 else 200_000, 256)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HELD = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
history = []
for step in range(200):
    loss = model(torch.randn(6_000, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    history.append(loss)
"""
PLAIN = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(4):
    if step == 3:
        table = [bytes(1 << 28) for _ in range(64)]
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "line", "words"),
    [
        (TOO_LARGE, "model(x)", ("allocating 3.1 GiB failed at the limit of its address space",)),
        (HELD, "backward", ("failed at the limit of its address space (ulimit -v), 2.9 GiB",)),
        (PLAIN, "bytes(", ("an allocation failed at the limit", "model and optimizer take only")),
    ],
    ids=["too big", "held by past steps", "a list of python"],
)
def test_the_limit_of_the_process_is_named(bench: Bench, script: str, line: str, words):
    process = bench.start_guarded(
        bench.write(script),
        options=["--no-split-batches"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT)),
    )
    seen = bench.end(process)
    assert seen.code == 1
    found = {finding.code: finding for finding in bench.record.findings()}
    assert set(found) == ({"MEM002", "MEM008"} if script is HELD else {"MEM008"})
    out = found["MEM008"]
    assert out.line == next(i for i, t in enumerate(script.splitlines(), 1) if line in t)
    assert all(word in f"{out.message} {out.advice}" for word in words), out.message
    assert "ulimit -v unlimited" in out.advice and out.evidence["limit_bytes"] == LIMIT
    assert bench.record.events("last_state")[0].data.get("checkpoint") or "saved" in seen.reported
    if script is HELD:
        assert "history" in found["MEM002"].message
        assert seen.reported.index("MEM002  ") < seen.reported.index("so also MEM008")


def test_a_batch_that_does_not_fit_is_split(bench: Bench):
    """Under a real limit, in a script that knows nothing of it."""
    script = TOO_LARGE.replace("200_000, 256", "50_000, 16").replace("256", "16")
    process = bench.start_guarded(
        bench.write(script + "print('done', flush=True)\n"),
        options=[],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LITTLE, LITTLE)),
    )
    seen = bench.end(process)
    assert seen.code == 0 and b"done" in seen.out, seen.reported
    (finding,) = bench.record.findings()
    assert (finding.code, finding.severity, finding.action) == (
        "MEM008",
        Severity.WARNING,
        "split_batch",
    )
    assert finding.evidence["samples"] == 50_000 and finding.evidence["parts"] > 1
    assert finding.evidence["exact"] and "with the same gradients" in finding.message
    assert finding.line == next(
        i for i, t in enumerate(TOO_LARGE.splitlines(), 1) if "model(x)" in t
    )
    assert not bench.record.events("holdfast_error")


@pytest.mark.slow
def test_a_kill_by_a_person_is_not_called_out_of_memory(bench: Bench):
    loop = 'train(20)\nprint("ready", flush=True)\nwhile True: train(1)\n'
    process = bench.start_guarded(bench.write(TRAIN + loop), options=[])
    await_line(process, b"ready")
    os.kill(child_of(process), signal.SIGKILL)
    seen = bench.end(process)
    assert seen.code == -signal.SIGKILL
    assert "killed by SIGKILL, not for lack of memory" in " ".join(seen.reported.split())
    assert bench.record.findings() == []
    (died,) = bench.record.events("died")
    assert died.data["signal"] == "SIGKILL" and 0 < died.data["process"] < died.data["used"]
