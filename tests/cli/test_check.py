from __future__ import annotations

import json
import os
import sys
import types
from typing import Any

import pytest

from holdfast.cli import main
from holdfast.detectors import Detector
from holdfast.run import ProcessMark
from holdfast.types import Severity


@pytest.fixture
def sick(make_run, make_rows):
    return str(make_run(make_rows(20, loss_bad={5: 1}, grad_bad={9: 1})).path)


def test_a_healthy_run_gives_0(make_run, capsys):
    assert main(["check", str(make_run().path)]) == 0
    assert capsys.readouterr().out == "No findings in 20 rows of 1 process\n"


def test_findings_give_1(sick, capsys):
    assert main(["check", sick]) == 1
    reported = capsys.readouterr().out
    assert (
        reported.startswith("2 findings in 20 rows")
        and "NUM001" in reported
        and "NUM002" in reported
    )


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        (["--select", "NUM001"], ["NUM001"]),
        (["--ignore", "NUM001"], ["NUM002"]),
        (["--select", "NUM", "--ignore", "NUM001,NUM002"], []),
        (["--select", "NUM003", "--select", "num002"], ["NUM002"]),
    ],
)
def test_select_and_ignore(sick, capsys, options, codes):
    assert main(["check", sick, "--format", "json", *options]) == int(bool(codes))
    data = json.loads(capsys.readouterr().out)
    assert [finding["code"] for finding in data["findings"]] == codes


@pytest.mark.parametrize(
    ("recorded", "given", "codes"),
    [
        ({}, [], []),
        ({"NUM006": {"streak": 6}}, [], ["NUM006"]),
        ({"NUM006": {"streak": 6, "gone": 1}}, ["NUM006.lowest=2"], ["NUM006"]),
        ({"NUM006": {"streak": 6}}, ["scaler_collapse.streak=9"], []),
        ({}, ["NUM006.streak=8"], ["NUM006"]),
    ],
)
def test_options_are_those_the_run_was_judged_with_but_for_those_given(
    make_run, make_rows, capsys, recorded, given, codes
):
    bad = {"scaler_skipped": dict.fromkeys(range(12, 20), 1)}
    bad |= {"grad_bad": bad["scaler_skipped"]}
    settings = {"detectors": {"select": ["ALL"], "ignore": [], "options": recorded}}
    run = make_run(make_rows(20, scale=512.0, **bad), meta={"settings": settings})
    sets = [f"--set=detectors.{one}" for one in given]
    assert main(["check", str(run.path), "--format", "json", *sets]) == int(bool(codes))
    data = json.loads(capsys.readouterr().out)
    assert [finding["code"] for finding in data["findings"]] == codes


@pytest.mark.parametrize("given", ["guard.skip=off", "detectors.select=NUM", "detectors.NUM006=1"])
def test_no_other_setting_means_anything_to_a_recorded_run(sick, capsys, given):
    assert main(["check", sick, "--set", given]) == 2
    assert given in capsys.readouterr().err


def test_an_unknown_code_is_2(sick, capsys):
    assert main(["check", sick, "--select", "NMU"]) == 2
    assert "'NMU'" in capsys.readouterr().err


def test_no_such_run_is_2(tmp_path, capsys):
    assert main(["check", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


class Chatty(Detector):
    """Speaks on every row, at INFO."""

    code, name, severity, needs, since = "TST001", "chatty", Severity.INFO, ("loss",), "0.1"

    def check(self, window):
        return self.finding(window, "1 row seen", "nothing to do")


class Broken(Chatty):
    """Raises."""

    code, name = "TST002", "broken"

    def check(self, window):
        raise KeyError("x")


@pytest.fixture
def plugin(monkeypatch):
    def put(*detectors):
        module: Any = types.ModuleType("holdfast_test_plugin")
        module.DETECTORS = detectors
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setenv("HOLDFAST_PLUGINS", module.__name__)

    return put


def test_plugins_take_part_and_info_is_no_failure(make_run, capsys, plugin):
    plugin(Chatty)
    assert main(["check", str(make_run().path)]) == 0
    assert "TST001" in capsys.readouterr().out


def test_a_plugin_that_fails_is_reported_and_the_rest_goes_on(sick, capsys, plugin, monkeypatch):
    plugin(Broken)
    assert main(["check", sick]) == 1
    captured = capsys.readouterr()
    assert "detector TST002 broken: KeyError: 'x'" in captured.err
    assert "NUM001" in captured.out
    monkeypatch.setenv("HOLDFAST_PLUGINS", "no_such_plugin_module")
    assert main(["check", sick]) == 1
    assert "plugin no_such_plugin_module" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("exit_code", "code", "says"),
    [
        (1, 1, "ailed with exit code 1"),
        (-9, 1, "Killed by SIGKILL, perhaps out of host memory"),
        (-15, 1, "Killed by SIGTERM"),
        (-2, 0, "Interrupted from the keyboard"),
    ],
)
def test_a_run_that_died_is_sick(make_run, capsys, exit_code, code, says):
    path = str(make_run(exit_code=exit_code).path)
    assert main(["check", path]) == code
    reported = capsys.readouterr().out
    assert reported.startswith("No findings in 20 rows of 1 process\n") and reported.endswith(
        f"{says}\n"
    )
    assert main(["check", path, "--format", "json"]) == code
    assert json.loads(capsys.readouterr().out)["sick"] == bool(code)


@pytest.mark.parametrize(("bad", "code"), [({}, 0), ({5: 1}, 1)])
def test_a_run_that_goes_on_is_judged_by_what_is_there(make_run, make_rows, capsys, bad, code):
    meta = {"process": ProcessMark.of().to_dict()}
    run = make_run(make_rows(20, loss_bad=bad), finished=False, meta=meta)
    assert main(["check", str(run.path)]) == code
    assert f"Still running, process {os.getpid()}" in capsys.readouterr().out


def test_the_newest_run_is_the_default(make_run, tmp_path, monkeypatch, capsys):
    make_run(name="runs/only")
    monkeypatch.chdir(tmp_path)
    assert main(["check"]) == 0
    assert "No findings" in capsys.readouterr().out
