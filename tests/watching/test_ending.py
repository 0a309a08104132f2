"""What a watched loop leaves for a person: a summary at its end, a card in a notebook, samples."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import holdfast
from holdfast import config

POISONED = 21


def trained(
    folder: Path, *, poisoned: bool = True, epochs: int = 1, **given: Any
) -> holdfast.Watch:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    data = DataLoader(samples(poisoned), 8, **given.pop("loader", {}))
    watch = holdfast.watch(net, opt, run_dir=folder, **given)
    for _ in range(epochs):
        for x, y in watch(data):
            weight = x.square().sum(1, keepdim=True).log()
            watch.backward((net(x) * weight - y).square().mean())
            watch.step()
    watch.close()
    return watch


def samples(poisoned: bool) -> TensorDataset:
    torch.manual_seed(1)
    x = torch.randn(64, 4)
    if poisoned:
        x[POISONED] = 0.0
    return TensorDataset(x, torch.randn(64, 1))


def test_the_end_is_reported_once_with_the_path_of_the_report(tmp_path: Path) -> None:
    said: list[str] = []
    watch = trained(tmp_path / "run", say=said.append)
    watch.close()
    (summary,) = [line for line in said if "finished after 8 steps" in line]
    assert summary is said[-1] and not summary.endswith("\n")
    assert str(tmp_path / "run" / "report.html") in summary and "NUM001" in summary


def test_standard_error_is_where_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    trained(tmp_path / "run")
    out, err = capsys.readouterr()
    assert "finished after 8 steps" in err and out == ""


@pytest.mark.parametrize(
    "given",
    [{"quiet": True}, {"settings": config.load(None, ["run.quiet=true"])}],
    ids=["argument", "setting"],
)
def test_a_quiet_run_says_nothing(tmp_path: Path, given: dict[str, Any]) -> None:
    said: list[str] = []
    watch = trained(tmp_path / "run", say=said.append, **given)
    assert said == [] and watch.skipped == 1 and (tmp_path / "run" / "report.html").is_file()


def test_without_a_summary_findings_are_reported_all_the_same(tmp_path: Path) -> None:
    said: list[str] = []
    trained(tmp_path / "run", say=said.append, summary=False)
    assert any("[NUM001]" in line for line in said)
    assert not any("finished after" in line for line in said)


@pytest.mark.slow
def test_the_end_of_the_process_is_the_end_of_the_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import torch, holdfast
        net = torch.nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.01)
        watch = holdfast.watch(net, opt, run_dir="run")
        for step in range(5):
            watch.backward(net(torch.randn(8, 4)).square().mean())
            watch.step()
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout == ""
    assert done.stderr.count("finished after 5 steps") == 1
    assert done.stderr.count("report.html") == 1


@pytest.mark.parametrize(
    "loader",
    [
        {},
        {"shuffle": True},
        {"shuffle": True, "num_workers": 2, "multiprocessing_context": "fork"},
        pytest.param(
            {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["in order", "shuffled", "workers", "lasting workers"],
)
def test_the_finding_names_the_sample(tmp_path: Path, loader: dict[str, Any]) -> None:
    watch = trained(tmp_path / "run", loader=loader, quiet=True, epochs=2)
    (finding,) = watch.findings
    assert finding.code == "NUM001" and finding.evidence["samples"] == [POISONED]
    assert f"index\N{NO-BREAK SPACE}{POISONED}" in watch._repr_html_()
    quarantined = (tmp_path / "run" / "quarantine.r0.jsonl").read_text()
    assert f'"index":{POISONED}' in quarantined.replace(" ", "")


def test_torch_is_what_it_was_when_the_last_watch_is_closed(tmp_path: Path) -> None:
    before = _BaseDataLoaderIter._next_index
    nets = [nn.Linear(4, 1) for _ in range(2)]
    watches = [
        holdfast.watch(net, torch.optim.SGD(net.parameters(), lr=0.1), run_dir=tmp_path / str(i))
        for i, net in enumerate(nets)
    ]
    assert _BaseDataLoaderIter._next_index is not before
    watches[0].close()
    assert _BaseDataLoaderIter._next_index is not before
    watches[1].close()
    assert _BaseDataLoaderIter._next_index is before


class TestCard:
    def test_before_the_first_step(self) -> None:
        net = nn.Linear(4, 1)
        with holdfast.watch(net, torch.optim.SGD(net.parameters(), lr=0.1)) as watch:
            assert "No steps yet" in watch._repr_html_()

    def test_what_it_says(self, tmp_path: Path) -> None:
        watch = trained(tmp_path / "run", quiet=True)
        card = watch._repr_html_()
        assert "NUM001" in card and "test_ending.py:" in card
        assert "Finished with findings" in card and "1 step skipped" in card
        assert str(tmp_path / "run" / "report.html") in card
        assert "clamp_min" in card  # the diff

    def test_it_is_whole_in_itself(self, tmp_path: Path) -> None:
        """Notebooks strip sheets and scripts, and have a light and a dark theme of their own."""
        card = trained(tmp_path / "run", quiet=True)._repr_html_()
        assert not re.search(r"<(style|script|link|img|iframe|a)\b|url\(|https?:|\bon\w+=", card)
        # The text has the notebook's colour on the notebook's ground, except white on a badge.
        grounds = re.findall(r'style="([^"]*)"', card)
        assert all("background" in one for one in grounds if re.search(r"(^|;)color:#", one))
        assert "color:inherit;background:transparent" in card

    @pytest.mark.parametrize("colour", ["#2e7d4f", "#4a6fa5", "#a3620a", "#c0392b"])
    def test_its_colours_can_be_read_on_white_and_on_black(self, colour: str) -> None:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        light = sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
        assert 1.05 / (light + 0.05) >= 4.5  # white text on it
        assert (light + 0.05) / 0.05 >= 3.0  # a line of it on black

    def test_text_of_others_is_escaped(self, tmp_path: Path) -> None:
        name = "<script>alert(1)</script>"
        card = trained(tmp_path / "run", quiet=True, name=name)._repr_html_()
        assert "<script" not in card and "&lt;script&gt;" in card

    def test_a_run_that_goes_on(self, tmp_path: Path) -> None:
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        with holdfast.watch(net, opt, run_dir=tmp_path / "run", quiet=True) as watch:
            watch.backward(net(torch.ones(2, 4)).mean() * math.nan)
            watch.step()
            assert "Still going" in watch._repr_html_()
