from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import config
from holdfast.config import RuleSettings, Settings
from holdfast.errors import SettingsError


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        return str(path)

    return write


def message(*args: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        config.load(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "policy: {OPT001: rollback, OPT002: {do: [skip, clip], budget: 50}}",
        "policy:\n  OPT001: [rollback]\n  OPT002: {do: [skip, clip], budget: 50}\n",
        "policy:\n  OPT001: {do: rollback}\n  OPT002: {do: [skip, clip], budget: 50}\n",
    ],
)
def test_a_policy_reads_the_same_in_every_spelling(file, text):
    plain: Any = {"OPT001": "rollback", "OPT002": {"do": ["skip", "clip"], "budget": 50}}
    wanted = Settings(
        policy={
            "OPT001": RuleSettings(do=("rollback",)),
            "OPT002": RuleSettings(do=("skip", "clip"), budget=50),
        }
    )
    typed = ["policy.OPT001=rollback", "policy.OPT002=skip, clip", "policy.OPT002.budget=50"]
    assert config.load(file(text)) == Settings(policy=plain) == config.load(None, typed) == wanted
    assert config.from_json(config.to_json(wanted)) == wanted
    assert config.to_dict(wanted)["policy"]["OPT002"]["do"] == ["skip", "clip"]


@pytest.mark.parametrize("order", [1, -1])
def test_overrides_change_a_rule_of_the_file_and_leave_the_rest_of_it(file, order):
    overrides = ["policy.OPT001.reset_after=7", "policy.OPT001=observe"][::order]
    short = config.load(file("policy: {OPT001: rollback}"), overrides).policy["OPT001"]
    assert short == RuleSettings(do=("observe",), reset_after=7)
    long = config.load(file("policy: {OPT001: {do: rollback, budget: 5}}"), overrides)
    assert long.policy["OPT001"] == RuleSettings(do=("observe",), reset_after=7, budget=5)


@pytest.mark.parametrize("text", ["policy: observe", "policy: {ALL: observe}"])
def test_one_word_is_the_rule_for_every_code(file, text):
    assert config.load(file(text)).policy == {"ALL": RuleSettings(do=("observe",))}
    assert config.load(file("policy: {OPT001: rollback}"), ["policy=observe"]).policy.keys() == {
        "ALL"
    }
    both = ["policy=observe", "policy.OPT001=rollback"]
    assert "policy is already set to 'observe'; remove one of the two" in message(None, both)
    assert config.load(file("policy:\n")).policy == {}


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("OPT001: quarantine", "policy.OPT001: quarantine is not possible for OPT001; choose from"),
        ("NUM003: skip", "skip is not possible for NUM003; choose from observe, rollback"),
        ("OPT: rollback", "policy.OPT: rollback is not possible for OPT002"),
        ("OTP001: rollback", "did you mean 'OPT001'?"),
        ("MEM1: observe", "not a code of a finding, nor a prefix of one"),
        ("MEM: rollback", "rollback is not possible for MEM; choose from observe, checkpoint"),
        ("OPT001: rolback", "policy.OPT001.do must be a list of one of observe, skip, clip"),
        ("OPT001: lower_lr", "write [rollback, lower_lr] or remove it"),
        ("NUM001: [skip, stop]", "stop cannot be combined with another action"),
        ("NUM001: [skip, observe]", "observe cannot be combined with another action"),
        ("NUM001: [skip, skip]", "an action appears twice"),
        ("NUM001: []", "write observe to do nothing"),
        ("NUM001: {bugdet: 3}", "did you mean 'policy.NUM001.budget'?"),
        ("NUM001: {budget: 0}", "must be a whole number of at least 1 or null"),
        ("NUM001: {cooldown: 1.5}", "must be a whole number of at least 0 or null"),
        ("NUM001: 5", "policy.NUM001.do must be a list of one of"),
    ],
)
def test_a_rule_that_cannot_be_carried_out_is_refused_when_it_is_read(file, rule, says):
    path = file(f"policy: {{{rule}}}")
    line = message(path)
    assert line.startswith(f"{path}: ") and says in line


def test_a_policy_that_is_no_mapping_is_refused(file):
    assert "policy must be a section of names, each with do, cooldown" in message(file("policy: 5"))
    with pytest.raises(SettingsError, match=r"Settings: policy\.OPT001: clip is not possible"):
        Settings(policy={"OPT001": RuleSettings(do=("clip",))})
