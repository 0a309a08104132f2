"""What the collections of the corpus say about themselves, and how they are read."""

from __future__ import annotations

import json
import re

import pytest
from detecting.corpus import (
    CATEGORIES,
    CORPUS,
    choose,
    choose_collections,
    read_collection,
    read_collections,
)

from holdfast.errors import UsageError

COLLECTIONS = choose_collections([])


def test_answers_are_true_to_their_scripts():
    for case in read_collections(COLLECTIONS):
        assert case.path.is_file() and case.why and case.first_step >= 0
        for file, line in case.places:
            text = (case.path.parent / file).read_text().splitlines()
            assert text[line - 1].strip(), f"{case.name}: line {line} of {file} is empty"


def test_every_folder_of_the_corpus_is_a_collection():
    assert [path for path in sorted(CORPUS.iterdir()) if path.is_dir()] == COLLECTIONS


@pytest.mark.parametrize("folder", COLLECTIONS, ids=lambda folder: folder.name)
def test_a_readme_says_what_a_collection_is(folder):
    text = (folder / "README.md").read_text()
    for name in ("Status", "Written", "Holds", "For", "Looked into", "First contact"):
        assert len(re.findall(rf"^- {name}: \S", text, re.MULTILINE)) == 1, name
    assert re.search(r"^- Status: (regression|first contact)$", text, re.MULTILINE)
    cases = read_collection(folder)
    healthy = sum(case.healthy for case in cases)
    assert f"- Holds: {len(cases) - healthy} faults, {healthy} healthy scripts\n" in text
    assert folder.name.startswith(re.findall(r"^- Written: (\S+),", text, re.MULTILINE)[0])


def test_the_list_of_the_corpus_is_complete():
    rows = re.findall(
        r"^\| \[(\S+)\]\((\S+)/README\.md\) \| (\S+) \| (\S+) \|",
        (CORPUS / "README.md").read_text(),
        re.MULTILINE,
    )
    counted = []
    for folder in COLLECTIONS:
        cases = read_collection(folder)
        healthy = sum(case.healthy for case in cases)
        counted.append((folder.name, folder.name, str(len(cases) - healthy), str(healthy)))
    assert rows == counted


def test_answers_become_cases(collection):
    leaky, spiky, quiet = read_collection(collection)
    assert (leaky.name, leaky.codes) == ("2026-01-31-other/leaky", ("MEM002",))
    assert leaky.places == (("leaky.py", 3), ("leaky.py", 7), ("meters.py", 9))
    assert (leaky.first_step, leaky.why) == (4, "a sum of losses")
    assert spiky.codes == ("OPT002", "OPT001") and spiky.places == () and not spiky.healthy
    assert quiet.healthy and quiet.path.is_absolute()


def test_a_collection_is_a_first_contact_until_its_readme_says_otherwise(collection):
    assert {case.status for case in read_collection(collection)} == {"first contact"}
    (collection / "README.md").write_text("# Other\n\n- Status: regression\n")
    assert {case.status for case in read_collection(collection)} == {"regression"}
    (collection / "README.md").write_text("# Other\n\n- Status: first contact\n")
    assert {case.status for case in read_collection(collection)} == {"first contact"}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], ["2026-01-31-other", "2026-02-01-other-2"]),
        (["2026-01-31-other"], ["2026-01-31-other"]),
        (["other"], ["2026-01-31-other"]),
        (["oth"], ["2026-01-31-other", "2026-02-01-other-2"]),
        (["2026-02"], ["2026-02-01-other-2"]),
        (["other-2", "2026-02-01-other-2"], ["2026-02-01-other-2"]),
    ],
)
def test_collections_are_chosen_by_name_or_beginning(collection, words, names):
    second = collection.parent / "2026-02-01-other-2"
    second.mkdir()
    (second / "answers.json").write_text("[]")
    (collection.parent / "no-collection").mkdir()
    chosen = choose_collections(words, collection.parent)
    assert [folder.name for folder in chosen] == names


def test_a_collection_may_lie_elsewhere(collection, tmp_path):
    assert choose_collections([str(collection)], tmp_path / "empty") == [collection]


def test_a_collection_that_is_not_there_names_the_nearest(collection):
    with pytest.raises(UsageError, match="did you mean 'other'"):
        choose_collections(["othr"], collection.parent)


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
        read_collection(collection)


def test_two_of_one_name_are_refused(collection):
    with pytest.raises(UsageError, match="two scripts are called 2026-01-31-other/leaky"):
        read_collections([collection, collection])


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("", ["leaky", "spiky", "quiet"]),
        ("MEM", ["leaky"]),
        ("opt001", ["spiky"]),
        ("healthy", ["quiet"]),
        ("quiet,2026-01-31-other/leaky", ["leaky", "quiet"]),
    ],
)
def test_scripts_are_chosen_by_name_or_code(collection, only, names):
    assert [case.path.stem for case in choose(read_collection(collection), only)] == names


def test_a_script_that_is_not_there_names_the_nearest(collection):
    with pytest.raises(UsageError, match="did you mean '2026-01-31-other/leaky'"):
        choose(read_collection(collection), "2026-01-31-other/leeky")


def test_categories_name_codes_once():
    assert len(set(CATEGORIES.values())) == len(CATEGORIES)
