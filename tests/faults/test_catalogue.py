from __future__ import annotations

import json
import subprocess
import sys

import pytest

from holdfast import faults
from holdfast.detectors import ALL
from holdfast.errors import UsageError
from holdfast.faults._catalogue import CATEGORIES, catalogue, choose, find

CASES = catalogue()


def test_every_listed_module_is_a_case():
    modules = [case for case in CASES if not case.group]
    assert {case.name for case in modules} == set(faults.ALL)
    assert {case.codes[0] for case in modules} <= {detector.code for detector in ALL}


def test_what_is_shipped_is_true_to_its_files():
    for case in CASES:
        assert case.path.is_file() and case.why and case.first_step >= 0
        for file, line in case.places:
            text = (case.path.parent / file).read_text().splitlines()
            assert text[line - 1].strip(), f"{case.name}: line {line} of {file} is empty"


def test_reading_it_loads_no_torch():
    code = "from holdfast.faults._catalogue import catalogue; catalogue(); import sys; "
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"], capture_output=True
    )
    assert done.stdout == b"False\n"


def test_answers_become_cases(collection):
    leaky, spiky, quiet = catalogue(collection / "nothing", [collection])
    assert (leaky.name, leaky.half, leaky.codes) == ("other/leaky", "unseen", ("MEM002",))
    assert leaky.places == (("leaky.py", 3), ("leaky.py", 7), ("meters.py", 9))
    assert (leaky.first_step, leaky.why, leaky.group) == (4, "a sum of losses", "other")
    assert spiky.codes == ("OPT002", "OPT001") and spiky.places == () and not spiky.healthy
    assert quiet.healthy and quiet.path.is_absolute()


def test_a_folder_of_collections(collection):
    assert len(catalogue(collection / "nothing", [collection.parent])) == 3


def test_lines_of_a_module_are_found_by_their_text(tmp_path):
    (tmp_path / "grown.py").write_text(
        '"""It grows."""\nCODE = "MEM001"\nFIRST_STEP = 3\nLINE_OF = "kept.append("\n'
        "kept = []\nfor i in range(3):\n    kept.append(i)\n"
    )
    (case,) = catalogue(tmp_path)
    assert case.places == (("grown.py", 7),) and case.why == "It grows."


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"script": "gone.py"}, "gone.py, which is not there"),
        ({"category": "weather"}, "category 'weather'"),
        ({"line": "x"}, "ValueError"),
    ],
)
def test_wrong_answers_are_one_sentence(collection, change, says):
    answers = json.loads((collection / "answers.json").read_text())
    (collection / "answers.json").write_text(json.dumps([answers[0] | change]))
    with pytest.raises(UsageError, match=says):
        catalogue(collection / "nothing", [collection])


def test_a_folder_without_answers_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no answers\.json"):
        catalogue(tmp_path, [tmp_path])


def test_two_of_one_name_are_refused(collection):
    with pytest.raises(UsageError, match="two scripts are called other/leaky"):
        catalogue(collection / "nothing", [collection, collection])


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("", ["leaky", "spiky", "quiet"]),
        ("MEM", ["leaky"]),
        ("opt001", ["spiky"]),
        ("healthy", ["quiet"]),
        ("other", ["leaky", "spiky", "quiet"]),
        ("quiet,other/leaky", ["leaky", "quiet"]),
    ],
)
def test_choosing(collection, only, names):
    cases = catalogue(collection / "nothing", [collection])
    assert [case.path.stem for case in choose(cases, "unseen", only)] == names


def test_choosing_what_is_not_there_names_the_nearest(collection):
    cases = catalogue(collection / "nothing", [collection])
    with pytest.raises(UsageError, match="did you mean 'other/leaky'"):
        choose(cases, only="other/leeky")
    with pytest.raises(UsageError, match="in the seen half"):
        choose(cases, "seen", "leaky")
    with pytest.raises(UsageError, match="no fault is called"):
        find(cases, "xyzzy")


def test_a_short_name_must_be_the_only_one(collection):
    two = collection.parent / "second"
    two.mkdir()
    (two / "leaky.py").touch()
    (two / "answers.json").write_text('[{"script": "leaky.py"}]')
    cases = catalogue(collection / "nothing", [collection.parent])
    assert find(cases, "quiet").name == "other/quiet"
    assert find(cases, "second/leaky").healthy
    with pytest.raises(UsageError, match="may be any of other/leaky, second/leaky"):
        find(cases, "leaky")


def test_categories_name_codes_once():
    assert len(set(CATEGORIES.values())) == len(CATEGORIES)
