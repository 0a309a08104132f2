"""Options of detectors as settings: checked by name and type, used live and by check."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from holdfast import config, detectors
from holdfast.config import DetectorSettings, Settings
from holdfast.detectors import ALL
from holdfast.detectors.options import check_options, configured, recorded_options
from holdfast.detectors.slow_down import SlowDown
from holdfast.errors import SettingsError

LIST = Path(__file__).with_name("options.json")


def loaded(*overrides: str) -> dict[str, dict[str, object]]:
    return check_options(config.load(None, overrides).detectors.options, ALL)


def test_the_list_of_all_options_changes_on_purpose_only():
    """The options that users may rely on; those of a new detector are listed with its release."""
    listed = json.loads(LIST.read_text())
    codes = {code for code, *_ in listed}
    now = [
        [detector.code, field.name, field.type, field.default]
        for detector in sorted(ALL, key=lambda detector: detector.code)
        for field in dataclasses.fields(detector.Options)
        if detector.code in codes
    ]
    assert now == listed


def test_code_or_name_mean_the_same_and_values_get_their_type():
    assert loaded("detectors.TPT004.grew=2", "detectors.scaler_collapse.streak=20") == {
        "TPT004": {"grew": 2.0},
        "NUM006": {"streak": 20},
    }
    assert isinstance(loaded("detectors.tpt004.grew=2")["TPT004"]["grew"], float)


def test_a_file_and_python_may_say_it(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("detectors:\n  ignore: [NUM006]\n  TPT004: {grew: 2, explains: 0.5}\n")
    read = config.load(str(path), ["detectors.TPT004.explains=0.6"]).detectors
    assert read.ignore == ("NUM006",)
    assert check_options(read.options, ALL) == {"TPT004": {"grew": 2.0, "explains": 0.6}}
    given = Settings(detectors=DetectorSettings(options={"slow_down": {"grew": 2}}))
    assert check_options(given.detectors.options, ALL) == {"TPT004": {"grew": 2.0}}
    assert config.from_json(config.to_json(given)) == given


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("TPT004.grw=2", "unknown setting 'detectors.TPT004.grw'; did you mean .*TPT004.grew'"),
        ("TPT04.grew=2", "detectors.TPT04: no detector has this code or name; did you mean 'TPT0"),
        ("slow_dwn.grew=2", "detectors.slow_dwn: no detector .* did you mean 'slow_down'"),
        ("xyzzy.grew=2", "detectors.xyzzy: no detector .*; `holdfast explain` lists all"),
        ("TPT004.grew=much", "detectors.TPT004.grew must be a number, not 'much'; the default"),
        ("NUM006.streak=2.5", "detectors.NUM006.streak must be a whole number"),
        ("NUM001.worth=2", "detectors.NUM001 has no options"),
    ],
)
def test_what_is_wrong_is_reported_with_the_override_and_the_nearest(override, words):
    with pytest.raises(SettingsError, match=f"^override 'detectors.{override}': .*{words}"):
        loaded(f"detectors.{override}")


@pytest.mark.parametrize("override", ["detectors.selct=NUM", "detectors.TPT004=2"])
def test_what_is_no_section_is_no_detector(override):
    with pytest.raises(SettingsError, match="unknown setting"):
        config.load(None, [override])


def test_detectors_are_made_with_them_and_the_others_as_ever():
    made = configured([*ALL], {"TPT004": {"grew": 2.0}})
    assert [type(detector) for detector in made] == [*ALL]
    by_code = {detector.code: detector.options for detector in made}
    assert by_code.pop("TPT004") == SlowDown.Options(grew=2.0)
    assert all(options == detectors.by_code(code).Options() for code, options in by_code.items())


def test_recorded_options_that_are_gone_are_left():
    kept = {"TPT004": {"grew": 2.0, "gone": 1}, "ABC999": {"x": 1}}
    meta = {"settings": {"detectors": {"options": kept}}}
    assert recorded_options(meta, ALL) == {"TPT004": {"grew": 2.0}}
    assert recorded_options({}, ALL) == {} == recorded_options({"settings": {}}, ALL)
