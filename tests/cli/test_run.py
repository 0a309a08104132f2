"""The options of ``holdfast run``: short names for settings, and where the script begins."""

from __future__ import annotations

import pytest

from holdfast import config
from holdfast.cli import main
from holdfast.cli._parser import Parser
from holdfast.cli._run_flags import overrides_of
from holdfast.cli.run import RunCommand, split
from holdfast.config import RuleSettings, Settings


def settings(*words: str, file: str | None = None) -> Settings:
    ours, command = split([*words, "train.py"])
    assert command == ["train.py"]
    args = Parser.of(RunCommand()).parse_args(ours)
    return config.load(file, overrides_of(args))


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--clip-norm", "1.5"], "clip.norm", 1.5),
        (["--clip-value=0.1"], "clip.value", 0.1),
        (["--clip-adaptive"], "clip.adaptive", True),
        (["--health"], "run.health", 50),
        (["--health", "20"], "run.health", 20),
        (["--health=7"], "run.health", 7),
        (["--scaler-policy"], "scaler.policy", True),
        (["--no-rollback"], "rollback.snapshots", 0),
        (["--checkpoint-minutes", "0.5"], "checkpoint.minutes", 0.5),
        (["--on", "OPT001=observe"], "policy.OPT001", RuleSettings(do=("observe",))),
        (["--on", "OPT002 = skip,clip"], "policy.OPT002", RuleSettings(do=("skip", "clip"))),
        (["--on", "NUM=observe", "--on=OPT=observe"], "policy.OPT", RuleSettings(do=("observe",))),
        (["--set", "policy.OPT001.budget=5"], "policy.OPT001", RuleSettings(budget=5)),
    ],
)
def test_a_flag_is_a_short_name_for_a_setting(words, key, value):
    found = settings(*words)
    for name in key.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == value


def test_set_beats_a_flag_and_a_flag_beats_the_file(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("policy: {OPT001: rollback}\nclip: {norm: 3}\n")
    assert settings("--clip-norm", "2", file=str(file)).clip.norm == 2
    assert settings("--clip-norm", "2", "--set", "clip.norm=1", file=str(file)).clip.norm == 1
    changed = settings("--on", "OPT001=observe", file=str(file))
    assert changed.policy["OPT001"].do == ("observe",)


def test_observe_changes_nothing_whatever_the_file_says(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(
        "policy: {OPT001: {do: rollback, budget: 9}}\nscaler: {policy: true}\n"
        "clip: {norm: 1, value: 1, per_parameter: 1, adaptive: true}\nquarantine: {skip: true}\n"
    )
    found = settings("--observe", file=str(file))
    assert found.policy == {"ALL": RuleSettings(do=("observe",))}
    assert not found.guard.skip and not found.scaler.policy and not found.quarantine.skip
    assert found.clip == config.ClipSettings()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--on", "OPT001"], "write it as CODE=ACTION"),
        (["--on", "=observe"], "write it as CODE=ACTION"),
        (["--on", "OPT001="], "write it as CODE=ACTION"),
        (["--on", "OPT001=quarantine"], "quarantine is not possible for OPT001"),
        (["--on", "OTP001=observe"], "policy.OTP001: no detector has this code; did you mean"),
        (["--observe", "--on", "OPT001=rollback"], "policy is already set to 'observe'"),
        (["--observe", "--clip-norm", "1"], "--clip-norm changes the training; remove one of them"),
        (["--observe", "--scaler-policy"], "--scaler-policy changes the training"),
        (["--clip-norm", "-1"], "clip.norm must be a number above 0.0"),
        (["--health=often"], "run.health must be a whole number"),
        (["--checkpoint-minutes", "soon"], "checkpoint.minutes must be a number"),
        (["--clip-nrom", "1"], "did you mean '--clip-norm'?"),
    ],
)
def test_a_mistake_is_one_line(capsys, words, says):
    assert main(["run", *words, "train.py"]) == 2
    line = capsys.readouterr().err
    assert says in line and line.count("\n") == 1


def test_the_policy_can_be_looked_at_before_a_run(capsys):
    assert main(["run", "--show-policy", "--on", "OPT001=observe"]) == 0
    reported = capsys.readouterr().out.splitlines()
    assert reported[0].startswith("NUM001, NUM002: skip (stop after 1000")
    assert "OPT001: observe" in reported and reported[-1] == "everything else: observe"


def test_the_help_names_every_flag(capsys):
    assert main(["run", "--help"]) == 0
    reported = capsys.readouterr().out
    for flag in ("--on", "--observe", "--clip-norm", "--clip-value", "--clip-adaptive", "--health",
                 "--scaler-policy", "--no-rollback", "--checkpoint-minutes"):  # fmt: skip
        assert f"\n  {flag} " in reported or f"\n  {flag}\n" in reported
