"""Children of a script: those that train have a lane of their own, all others leave no trace."""

from __future__ import annotations

import pytest

from .conftest import TRAIN, Bench

MULTIPROCESSING = """
import multiprocessing, os, sys
import torch

def train(steps, bad=()):
    torch.manual_seed(steps)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        x = torch.randn(8, 4)
        if step in bad:
            x[0, 0] = float("nan")
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()
    return bool(torch.isfinite(model.weight).all())

def trains(steps):
    print(__name__ in ("__main__", "__mp_main__"), train(steps, bad=[1]), flush=True)

def idles():
    print(torch.ones(2).sum().item(), flush=True)

def fails():
    sys.exit(3)

if __name__ == "__main__":
    torch.set_num_threads(1)
    multiprocessing.set_start_method(sys.argv[1])
    if sys.argv[2:] == ["parent trains"]:
        print(train(4), flush=True)
    # A spawned child imports torch anew.
    others = () if sys.argv[1] == "spawn" else ((trains, (6,)), (idles, ()))
    work = ((trains, (5,)), *others, (fails, ()))
    children = [multiprocessing.Process(target=target, args=args) for target, args in work]
    for child in children:
        child.start()
    for child in children:
        child.join()
    print([child.exitcode for child in children])
"""


@pytest.mark.parametrize(
    "method", ["spawn", *(pytest.param(m, marks=pytest.mark.slow) for m in ("fork", "forkserver"))]
)
def test_children_of_multiprocessing(bench: Bench, method: str):
    script = bench.write(MULTIPROCESSING)
    # Whether the parent trained before must not matter, least of all to a forked child.
    parent = ["parent trains"] if method == "fork" else []
    seen = bench.guarded(script, method, *parent)
    others = [] if method == "spawn" else ["True True", "2.0"]
    reported = ["True"] * bool(parent) + ["True True", *others]
    reported.append(f"[{'0, ' * (len(others) + 1)}3]")
    assert (seen.code, sorted(seen.lines), seen.err) == (0, sorted(reported), b"")
    record = bench.record
    lengths = {lane: len(record.steps(lane)) for lane in record.lanes}
    assert sorted(lengths.values()) == [4] * bool(parent) + [5] + [6] * bool(others)
    assert "r0" in lengths and all(name.startswith("r0") for name in lengths)
    for lane, length in lengths.items():
        assert record.skipped(lane) == ([] if length == 4 else [1])
        assert len(record.events("start", lane)) == len(record.events("end", lane)) == 1
        assert list(record.steps(lane)["step"]) == list(range(length))


@pytest.mark.slow
def test_children_made_by_hand(bench: Bench):
    """``os.fork`` and a second python: each that trains has its lane, rows do not mix."""
    bench.write(TRAIN + "train(7)\nprint('other')", "other.py")
    script = bench.write(
        TRAIN
        + """
import os, subprocess, sys
train(3)
sys.stdout.flush()
for steps, leave in ((4, sys.exit), (0, os._exit), (5, os._exit)):
    pid = os.fork()
    if pid == 0:
        if steps:
            train(steps, bad=[2])
        leave(0)
    print(os.waitpid(pid, 0)[1], flush=True)
subprocess.run([sys.executable, "other.py"], check=True)
train(2)
"""
    )
    seen = bench.guarded(script)
    assert (seen.code, seen.lines, seen.err) == (0, ["0", "0", "0", "other"], b"")
    record = bench.record
    lengths = {lane: len(record.steps(lane)) for lane in record.lanes}
    assert lengths["r0"] == 5
    assert sorted(lengths.values()) == [4, 5, 5, 7]
    assert record.skipped("r0") == []
    assert [record.skipped(n) for n, k in lengths.items() if k == 4] == [[2]]


LOADERS = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        x = torch.full((3,), float(index))
        if index == 13:
            x[0] = float("nan")
        return x

if __name__ == "__main__":
    torch.set_num_threads(1)
    for context in ("fork", "spawn"):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        loader = DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True,
                            multiprocessing_context=context, shuffle=False)
        for epoch in range(2):
            for x in loader:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
        print(context, type(iter(loader)).__name__, torch.isfinite(model.weight).all().item())
        del loader
"""


def test_loader_workers_never_write_and_bad_samples_are_named(bench: Bench):
    seen = bench.guarded(bench.write(LOADERS))
    reported = [f"{context} _MultiProcessingDataLoaderIter True" for context in ("fork", "spawn")]
    assert (seen.code, seen.lines, seen.err) == (0, reported, b"")
    record = bench.record
    assert record.lanes == ["r0"]
    assert len(record.events("start")) == 1
    rows = record.steps()
    assert len(rows) == 24
    assert record.skipped() == [3, 9, 15, 21]
    assert set(rows["worker"]) == {0.0, 1.0}
    batches = record.lane().batches
    assert [b["indices"] for b in batches] == [[12, 13, 14, 15]] * 4
    assert all(b["bad"][0][2] == [13] for b in batches)
    assert record.codes() == {"NUM005"}
    assert record.findings()[0].step == 3


SLOW_WORKERS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Coded(Dataset):
    def __len__(self):
        return 480

    def __getitem__(self, index):
        value = 1
        for _ in range(30_000):
            value = value * 31 % 65_521  # decodes
        return torch.full((8,), value / 65_521)

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(Coded(), batch_size=8, num_workers=1):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
    print("done")
"""


@pytest.mark.slow  # by the time of a real run; exams/test_worker_samples.py has the parts
def test_the_line_that_keeps_workers_busy_is_named_without_calling_the_dataset(bench: Bench):
    seen = bench.guarded(bench.write(SLOW_WORKERS), options=("--quiet",))
    assert (seen.code, seen.lines) == (0, ["done"])
    (finding,) = bench.record.findings()
    rows = SLOW_WORKERS.splitlines()
    loop = next(n for n, row in enumerate(rows, 1) if "# decodes" in row)
    assert finding.code == "TPT001" and finding.line in (loop - 1, loop)


@pytest.mark.slow
def test_a_notebook_like_thread_trains_too(bench: Bench):
    """A training in a thread of its own is guarded like one in the main thread."""
    script = bench.write(
        TRAIN
        + """
import threading
thread = threading.Thread(target=train, args=(6, [4]))
thread.start()
thread.join()
print(torch.isfinite(model.weight).all().item())
"""
    )
    assert bench.guarded(script).lines == ["True"]
    assert bench.record.skipped() == [4]
