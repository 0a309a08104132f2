"""The guides in docs/: what the user sees, what is said, and that the proposed change cures it."""

from __future__ import annotations

from pathlib import Path

from .conftest import Bench

ROOT = Path(__file__).parents[2]


def cured(folder: Path, script: str, diff: str) -> None:
    """Apply a finding's diff to the script and run it again: nothing is left to say."""
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
    assert bench.record.findings() == []


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
