from __future__ import annotations

from holdfast.detectors import ALL
from holdfast.detectors.options import configured
from holdfast.faults.catalogue import HERE, read_fault
from holdfast.faults.running import run_guarded, run_plain
from holdfast.report import replay, summarize
from holdfast.run import Run


def test_a_script_runs_as_it_is_and_leaves_its_exit_code(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nopen('left', 'w')\nsys.exit(3)\n")
    assert run_plain(script).exit_code == 3
    assert run_guarded(script, tmp_path / "run").exit_code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_foreign_variables_are_kept_away(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nsys.exit('RANK' in os.environ)\n")
    monkeypatch.setenv("RANK", "1")
    assert run_plain(script).exit_code == 0


def test_a_script_that_takes_too_long_is_killed_with_its_children(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "time.sleep(60)\n"
    )
    ended = run_plain(script, limit=1.0)
    assert ended.too_long and ended.exit_code == -9 and ended.seconds < 20


def test_a_run_is_judged_with_the_options_that_it_was_given(tmp_path):
    path = read_fault(HERE / "scaler_collapse.py").path
    run_guarded(path, tmp_path / "run", given=("--set", "detectors.scaler_collapse.streak=8"))
    run = Run.open(tmp_path / "run")
    assert run.meta["settings"]["detectors"]["options"] == {"NUM006": {"streak": 8}}
    (live,), again = summarize(run).findings, replay(run, configured(ALL, {})).findings
    assert (live.code, live.step) == ("NUM006", 7)
    assert [finding.step for finding in again] == [11]
