"""The page a run leaves, never at the expense of the run; test_live_lines and test_kill too."""

from __future__ import annotations

import pytest

from .conftest import TRAIN, Bench


@pytest.mark.slow
def test_a_page_that_cannot_be_made_is_one_line(bench: Bench):
    script = TRAIN + f"train(20)\nimport os\nos.mkdir({str(bench.path / 'report.html')!r})\n"
    seen = bench.guarded(bench.write(script), options=[])
    assert seen.code == 0
    (line,) = [line for line in seen.reported.splitlines() if "report.html" in line]
    assert line.startswith("holdfast: could not write report.html: ")
    assert f"report  holdfast report {bench.path}" in seen.reported


@pytest.mark.parametrize("closing", ["pass", pytest.param("watch.close()", marks=pytest.mark.slow)])
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
