"""kill -9: of the script, of us, at any instant. The last complete step is always there."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from .conftest import PATIENCE, TRAIN, Bench, await_line, child_of

# Prints the number of each step once it is complete.
COUNTING = """
step = 0
print("ready", flush=True)
while step < LIMIT:
    train(1)
    print("step", step, flush=True)
    step += 1
"""


def last_step(out: bytes) -> int:
    """The last step the script has told completely."""
    whole = out[: out.rfind(b"\n") + 1]
    steps = [int(line.split()[1]) for line in whole.splitlines() if line.startswith(b"step ")]
    return steps[-1] if steps else -1


@pytest.mark.slow
def test_the_script_is_killed_in_mid_run(bench: Bench):
    """A report while it lives neither waits for it nor disturbs it; another tells of its end."""
    script = bench.write(TRAIN + COUNTING.replace("LIMIT", "10**9"))
    process = bench.start_guarded(script, options=[])
    reported = await_line(process, b"step 100")
    report = bench.cli("report", str(bench.path))
    assert report.code == 0 and "RUNNING" in report.text
    assert int(bench.record.steps()["step"][-1]) >= 100
    os.kill(child_of(process), signal.SIGKILL)
    seen = bench.end(process)
    assert seen.code == -signal.SIGKILL
    rows = bench.record.steps()
    assert int(rows["step"][-1]) >= last_step(reported + seen.out) >= 100
    assert rows["step"].tolist() == list(range(len(rows)))
    assert not (bench.path / "ring.r0.bin").exists()
    assert "killed by SIGKILL" in seen.reported
    report = bench.cli("report", str(bench.path))
    assert report.code == 0 and bench.cli("check", str(bench.path)).code == 1
    assert report.text.splitlines()[1].startswith("KILLED")
    assert f"after {len(rows)} steps" in report.words
    page = (bench.path / "report.html").read_text()
    assert "Killed by SIGKILL" in page and f"after {len(rows):,} steps" in page


def test_holdfast_is_killed_and_the_script_goes_on(bench: Bench):
    """Nobody drains any more: what is in the ring stays there and is read from there."""
    script = bench.write(TRAIN + COUNTING.replace("LIMIT", "400") + "open('done', 'w').close()\n")
    process = bench.start_guarded(script, options=[])
    await_line(process, b"step 20")
    child = child_of(process)
    process.kill()
    seen = bench.end(process)
    assert process.returncode == -signal.SIGKILL
    until = time.monotonic() + PATIENCE
    while not (bench.folder / "done").exists():
        assert time.monotonic() < until and os.path.exists(f"/proc/{child}")
        time.sleep(0.02)
    while os.path.exists(f"/proc/{child}/exe") and time.monotonic() < until:
        time.sleep(0.02)
    assert last_step(seen.out) == 399, "its output still reaches the terminal"
    assert len(bench.record.steps()) == 400
    assert bench.record.events("end")
    report = bench.cli("report", str(bench.path))
    assert (
        report.code == 0
        and report.text.splitlines()[1].startswith("FINISHED")
        and "400 steps" in report.words
    )
    assert bench.cli("check", str(bench.path)).code == 0


@pytest.mark.slow
def test_both_are_killed_at_once(bench: Bench):
    script = bench.write(TRAIN + COUNTING.replace("LIMIT", "10**9"))
    process = bench.start_guarded(script, options=[], start_new_session=True)
    reported = await_line(process, b"step 50")
    os.killpg(process.pid, signal.SIGKILL)
    seen = bench.end(process)
    rows = bench.record.steps()
    assert int(rows["step"][-1]) >= last_step(reported + seen.out) >= 50
    report = bench.cli("report", str(bench.path))
    assert report.code == 0 and report.text.splitlines()[1].startswith("KILLED")
    assert bench.cli("check", str(bench.path)).code == 1


# One python imports torch; its forks are the victims, each with a lane of its own.
NURSERY = (
    TRAIN
    + """
import os, random, signal, sys, time
count = int(sys.argv[1])
rng = random.Random(int(sys.argv[2]))
print("ready", flush=True)
for child in range(count):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        step = 0
        while True:
            train(1, bad=[0] if step % 7 == 3 else [])
            os.write(write, b"%d\\n" % step)
            step += 1
    os.close(write)
    # On a busy machine all might die before their first step, and there would be no run to read.
    told = b"" if child else os.read(read, 65536)
    time.sleep(rng.uniform(0.0, 0.4))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while chunk := os.read(read, 65536):
        told += chunk
    os.close(read)
    last = told[: told.rfind(b"\\n") + 1].split()
    print("victim", pid, int(last[-1]) if last else -1, flush=True)
"""
)


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_kills_at_random_instants(bench: Bench, kills: int):
    seed = random.randrange(10**6)
    seen = bench.guarded(bench.write(NURSERY), str(kills), str(seed))
    assert seen.code == 0, seen.reported
    victims = [line.split()[1:] for line in seen.lines if line.startswith("victim")]
    assert len(victims) == kills
    record = bench.record
    by_pid = {e.data["pid"]: lane for lane in record.lanes for e in record.events("start", lane)}
    for pid, last in ((int(a), int(b)) for a, b in victims):
        if last < 0:
            continue
        steps = record.steps(by_pid[pid])["step"].tolist()
        assert steps == list(range(len(steps))), f"seed {seed}"
        assert steps[-1] >= last, f"seed {seed}"
        wanted = [s for s in steps if s % 7 == 3]
        assert record.skipped(by_pid[pid]) == wanted, f"seed {seed}"
    assert not list(bench.path.glob("ring.*"))
