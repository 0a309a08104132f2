"""The guides in docs/: what the user sees, what is said, and that the proposed change cures it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from holdfast.types import Severity

from .conftest import Bench

ROOT = Path(__file__).parents[2]


def cured(folder: Path, script: str, diff: str) -> None:
    """Apply a finding's diff to the script and run it again: nothing is left to warn of."""
    removed, added = (
        [line[1:] for line in diff.splitlines() if line.startswith(mark) and line[:3] != mark * 3]
        for mark in ("-", "+")
    )
    assert removed and added
    before, after = "\n".join(removed), "\n".join(added)
    assert before in script
    bench = Bench(folder)
    path = bench.write(script.replace(before, after), "cured.py")
    outcome = bench.guarded(path)
    assert outcome.code == 0
    assert [f for f in bench.record.findings() if f.severity > Severity.INFO] == []


@pytest.mark.slow
def test_nan_in_addmmbackward0(bench: Bench, tmp_path: Path) -> None:
    script = (ROOT / "examples" / "nan_in_addmm.py").read_text()
    path = bench.write(script, "nan_in_addmm.py")
    assert bench.plain(path).lines[-1] == "epoch 2 loss nan"
    outcome = bench.guarded(path)
    assert outcome.code == 0 and float(outcome.lines[-1].split()[-1]) < 0.3
    (finding,) = bench.record.findings()
    wanted = next(n for n, x in enumerate(script.splitlines(), 1) if "model(readings)" in x)
    assert (finding.code, finding.file, finding.line) == ("NUM005", "nan_in_addmm.py", wanted)
    assert finding.evidence["skipped"] == finding.evidence["count"] == 60
    cured(tmp_path / "cured", script, finding.evidence["diff"])


def line_of(script: str, text: str) -> int:
    """The number of the first line that holds a text."""
    return next(n for n, line in enumerate(script.splitlines(), 1) if text in line)


@pytest.mark.slow
def test_oom_on_batch_2(bench: Bench, tmp_path: Path) -> None:
    script = (ROOT / "examples" / "oom_on_second_batch.py").read_text()
    path = bench.write(script, "oom_on_second_batch.py")
    # On other processors a convolution has needs of its own, and takes its time.
    limited = platform.machine() == "x86_64"
    if limited:
        died = bench.plain(path, "--limit", "200")
        assert died.code == 1 and "can't allocate memory" in died.reported and len(died.lines) < 5
    assert bench.guarded(path, options=("--quiet",)).code == 0
    (finding,) = bench.record.findings()
    assert finding.code == "MEM002" and finding.step <= 20
    assert Path(finding.file).name == "oom_on_second_batch.py"
    assert finding.line == line_of(script, "epoch_loss += loss")
    assert "`epoch_loss += loss.item()`" in finding.advice
    cured = Bench(tmp_path / "cured")
    changed = script.replace("epoch_loss += loss\n", "epoch_loss += loss.item()\n")
    path = cured.write(changed, "oom_on_second_batch.py")
    assert not limited or cured.plain(path, "--limit", "200").code == 0
    assert cured.guarded(path, options=("--quiet",)).code == 0 and cured.record.findings() == []


@pytest.mark.slow  # compares times
def test_slow_after_the_first_batch(bench: Bench, tmp_path: Path) -> None:
    script = (ROOT / "examples" / "slow_after_first_batch.py").read_text()
    path = bench.write(script, "slow_after_first_batch.py")
    assert bench.guarded(path, options=("--quiet",)).code == 0
    finding = next(f for f in bench.record.findings() if f.code == "TPT004")
    assert finding.line == line_of(script, "order = scores.argsort()")
    cured = Bench(tmp_path / "cured")
    slow = "        area = area_under_curve(torch.cat(scores), torch.cat(labels))\n"
    show = "        if step % 50 == 0:\n"
    assert slow + show in script
    path = cured.write(script.replace(slow + show, show + "    " + slow), "cured.py")
    assert cured.guarded(path, options=("--quiet",)).code == 0
    assert "TPT004" not in cured.record.codes()
