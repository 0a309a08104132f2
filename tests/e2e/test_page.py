"""The page a run leaves: however it ended, and never at the expense of the run."""

from __future__ import annotations

import os
import signal

import pytest

from .conftest import TRAIN, Bench, await_line, child_of

SLOW = TRAIN + "train(20, bad=[3])\nprint('ready', flush=True)\nimport time\ntime.sleep(100)\n"


def test_a_finished_run_leaves_its_page_and_says_where(bench: Bench):
    seen = bench.guarded(bench.write(TRAIN + "train(20, bad=[3])\n"), options=[])
    page = bench.path / "report.html"
    assert f"  report  {page}\n  text    holdfast report {bench.path}\n" in seen.told
    told = page.read_text()
    assert "Finished with findings" in told and "NUM001" in told


def test_a_quiet_run_leaves_it_too(bench: Bench):
    seen = bench.guarded(bench.write(TRAIN + "train(20)\n"))
    assert (seen.code, seen.err) == (0, b"")
    assert (bench.path / "report.html").is_file()


def test_after_kill_nine(bench: Bench):
    process = bench.start_guarded(bench.write(SLOW))
    await_line(process, b"ready")
    os.kill(child_of(process.pid), signal.SIGKILL)
    assert bench.end(process).code == -signal.SIGKILL
    told = (bench.path / "report.html").read_text()
    assert "Killed by SIGKILL" in told and "after 20 steps" in told


def test_a_script_that_never_trained_leaves_nothing(bench: Bench):
    seen = bench.guarded(bench.write("import torch\nprint('x')\n"), options=[])
    assert (seen.code, seen.out, seen.err) == (0, b"x\n", b"")
    assert not bench.path.exists()


def test_a_page_that_cannot_be_made_is_one_line(bench: Bench):
    script = TRAIN + f"train(20)\nimport os\nos.mkdir({str(bench.path / 'report.html')!r})\n"
    seen = bench.guarded(bench.write(script), options=[])
    assert seen.code == 0
    (line,) = [line for line in seen.told.splitlines() if "report.html" in line]
    assert line.startswith("holdfast: report.html could not be made: ")
    assert f"report  holdfast report {bench.path}" in seen.told


@pytest.mark.parametrize("closing", ["watch.close()", "pass"])
def test_a_watched_loop_leaves_its_page(bench: Bench, closing: str):
    script = f"""
        import torch, holdfast
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = holdfast.watch(model, optimizer, run_dir="run")
        for step in range(12):
            x = torch.full((8, 4), float("nan") if step == 5 else 1.0)
            watch.backward((model(x) ** 2).mean())
            watch.step()
        {closing}
    """
    assert bench.plain(bench.write(script)).code == 0
    assert "Finished with findings" in (bench.path / "report.html").read_text()
