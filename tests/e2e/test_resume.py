"""N steps, kill -9, resume, the rest: bit for bit what an undisturbed run ends with."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from .conftest import Bench, Outcome, Record

# Augmentation in the workers, shuffling, dropout, running statistics, a schedule that is stepped
# after the step, an average, and windows that do not divide an epoch.
SCRIPT = """
import hashlib, random, sys, time
import numpy, torch, holdfast
from holdfast.config import CheckpointSettings, Settings
from torch import nn
from torch.optim.swa_utils import AveragedModel

class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 136

    def __getitem__(self, index):
        noise = torch.randn(6) + random.random() + float(numpy.random.rand())
        return torch.full((6,), index / 136) + 0.1 * noise, torch.tensor([index % 7 / 7])

def main(kind, workers, window):
    torch.set_num_threads(1)
    torch.manual_seed(5)
    random.seed(6)
    numpy.random.seed(7)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
    optimizer = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
        "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    }[kind](net.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-2, total_steps=1000, cycle_momentum=kind != "adafactor"
    )
    average = AveragedModel(net, avg_fn=lambda old, new, n: 0.9 * old + 0.1 * new)
    loader = torch.utils.data.DataLoader(Noisy(), 8, shuffle=True, num_workers=workers)
    watch = holdfast.watch(
        net, optimizer, scheduler=scheduler, ema=average, run_dir="mine", resume="auto",
        settings=Settings(checkpoint=CheckpointSettings(steps=3)),
    )
    print("ready", flush=True)
    for epoch in watch.epochs(8):
        for x, y in watch(loader):
            loss = nn.functional.mse_loss(net(x), y)
            watch.backward(loss)
            if watch.passes == window:
                watch.step()
                scheduler.step()
                average.update_parameters(net)
                print("step", epoch, watch.batches, flush=True)
                time.sleep(0.01)  # time for the disk: the test kills after a checkpoint
    watch.close()
    state = [*net.state_dict().values(), *average.state_dict().values()]
    state += [torch.tensor([scheduler.get_last_lr()[0], random.random(), numpy.random.rand()])]
    state += [torch.rand(3)]
    print("end", hashlib.sha256(b"".join(t.numpy().tobytes() for t in state)).hexdigest())

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
"""


def kill_after(bench: Bench, words: list[str], *, saved: Path, more: int) -> int:
    """Start the script and kill it ``more`` steps after its first new checkpoint; steps seen."""
    process = bench.start(words, start_new_session=True)
    assert process.stdout is not None
    before = {path.name for path in saved.glob("*.json")}
    steps = 0
    left = -1
    for line in process.stdout:
        steps += line.startswith(b"step ")
        assert not line.startswith(b"end "), "the script ended before it was killed"
        if left < 0 and {path.name for path in saved.glob("*.json")} - before:
            left = more
        if left == 0:
            process.send_signal(signal.SIGKILL)
            break
        left -= left > 0
    else:
        pytest.fail(f"the script ended by itself: {bench.end(process)}")
    assert bench.end(process).code == -signal.SIGKILL
    return steps


def result(out: str) -> str:
    (line,) = [line for line in out.splitlines() if line.startswith("end ")]
    return line


@contextlib.contextmanager
def undisturbed(
    tmp_path: Path, script: str, how: Sequence[str], *, guarded: bool = False
) -> Iterator[Future[Outcome]]:
    """The same script in another folder, at the same time, from the first step to the last."""
    whole = Bench(tmp_path / "whole")
    whole.write(SCRIPT, script)
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(whole.guarded if guarded else whole.plain, script, *how)
    whole.close()


def prove(bench: Bench, tmp_path: Path, *how: str, kills: int, more: int) -> None:
    """An undisturbed run and one that is killed some times end alike."""
    script = bench.write(SCRIPT)
    saved = bench.folder / "mine" / "checkpoints"
    with undisturbed(tmp_path, script, how) as expected_later:
        for _ in range(kills):
            kill_after(bench, [script, *how], saved=saved, more=more)
        last = bench.plain(script, *how)
        expected = expected_later.result()
    assert last.code == expected.code == 0, (last.reported, expected.reported)
    assert result(last.text) == result(expected.text)
    assert last.text.count("step ") < expected.text.count("step "), "it went on, not anew"
    record = Record(bench.folder / "mine")
    resumed = [e for lane in record.lanes for e in record.events("resume", lane)]
    assert len(resumed) == kills
    assert all(event.data["exact"] for event in resumed), resumed


@pytest.mark.slow
def test_killed_with_workers_and_accumulation(bench: Bench, tmp_path: Path) -> None:
    prove(bench, tmp_path, "adamw", "2", "3", kills=1, more=4)


@pytest.mark.slow
def test_killed_without_workers(bench: Bench, tmp_path: Path) -> None:
    prove(bench, tmp_path, "sgd", "0", "1", kills=1, more=9)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(12))
def test_killed_at_any_instant(bench: Bench, tmp_path: Path, number: int) -> None:
    rng = random.Random(number)
    kind = rng.choice(["adamw", "sgd", "adafactor"])
    workers, window = rng.choice("013"), rng.choice("125")
    prove(bench, tmp_path, kind, workers, window, kills=rng.randrange(1, 3), more=rng.randrange(9))


@pytest.mark.slow
def test_the_same_script_under_holdfast_run(bench: Bench, tmp_path: Path) -> None:
    """Killed as a plain script, taken up under ``holdfast run``: the folder is the script's own."""
    script = bench.write(SCRIPT)
    how = ["adamw", "1", "2"]
    with undisturbed(tmp_path, script, how, guarded=True) as expected_later:
        kill_after(bench, [script, *how], saved=bench.folder / "mine" / "checkpoints", more=5)
        seen = bench.guarded(script, *how)
        expected = expected_later.result()
    assert seen.code == expected.code == 0, (seen.reported, expected.reported)
    assert result(seen.text) == result(expected.text)
    (resumed,) = bench.record.events("resume")
    assert resumed.data["exact"] is True
    steps = bench.record.steps()["step"]
    assert steps[0] == resumed.step and steps[-1] == 67
    assert bench.record.events("checkpoint")[-1].data["kind"] == "end"


@pytest.mark.slow
def test_under_holdfast_run_checkpoints_go_to_the_run_folder(bench: Bench) -> None:
    """Those of the watch alone: the guard, which knows less, leaves it to it."""
    text = SCRIPT.replace('run_dir="mine", resume="auto",', "")
    script = bench.write(
        text[: text.index("        settings=")] + text[text.index("    )\n    print") :]
    )
    options = ["--quiet", "--set", "checkpoint.steps=30", "--set", "checkpoint.last=9"]
    seen = bench.guarded(script, "sgd", "0", "1", options=options)
    assert seen.code == 0, seen.reported
    reported = [event.step for event in bench.record.events("checkpoint")]
    files = sorted(path.name for path in (bench.path / "checkpoints").glob("*.json"))
    assert files == [f"step-{step:010d}.r0.json" for step in reported]
    # One that is due waits for the disk; the last is the end.
    assert reported[0] == 30 and reported[-1] == 136
    assert all(later - earlier >= 30 for earlier, later in itertools.pairwise(reported[:-1]))
