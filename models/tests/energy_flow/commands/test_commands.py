"""``holdfast energy_flow``: every verb on one tiny run, and what is said to bad input."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from holdfast import HoldfastError, Run
from holdfast.cli import main
from holdfast.training import resolve, run_recipe
from holdfast_models.energy_flow.assembly import make_model
from holdfast_models.energy_flow.data.dataset_tool import make
from holdfast_models.energy_flow.data.pairs import DataSettings, Pairs, load_pairs
from holdfast_models.energy_flow.data.provenance import changed_data, keep_data_facts
from holdfast_models.energy_flow.data.tables import Embedded, Tables
from holdfast_models.energy_flow.data.text_pairs import TextPair, read_pairs, write_pairs
from holdfast_models.energy_flow.evaluation.conversation import Conversation
from holdfast_models.energy_flow.evaluation.evaluate import evaluate
from holdfast_models.energy_flow.evaluation.loading import Loaded, load_run
from holdfast_models.energy_flow.recipe import RECIPE

COMMAND = "holdfast_models.energy_flow.commands:EnergyFlowCommand"
SMALL = (
    "model.lattice.width=5",
    "model.lattice.height=4",
    "model.lattice.depth=4",
    "model.carrier.hidden=8",
    "model.flows.spawn_most=0",
    "model.width=16",
    "data.width=16",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a file of pairs that learned a little."""
    folder = tmp_path_factory.mktemp("energy_flow")
    make(folder, DataSettings(count=200))
    options = (
        *SMALL,
        "data.source=pairs",
        f"data.path={folder / 'grammar_rewrite_n200_s0.jsonl'}",
        "bridge.width=8",
        "bridge.heads=2",
        "bridge.length=6",
        "bridge.beams=1",
        "train.steps=8",
        "pictures=false",
        "train.data.workers=0",
        "train.optimizer.lr=1e-2",
    )
    settings = resolve(RECIPE, overrides=options, platform="none")
    assert run_recipe(RECIPE, settings, run_dir=folder / "run", quiet=True) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def loaded(run: Path) -> Loaded:
    return load_run(run, device="cpu")


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Carries out ``holdfast energy_flow WORDS``: exit code, output, errors."""
    plugin: Any = types.ModuleType("holdfast_test_energy_flow")
    plugin.COMMANDS = (COMMAND,)
    monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
    monkeypatch.setenv("HOLDFAST_PLUGINS", plugin.__name__)
    capsys.readouterr()

    def carry_out(*words: object) -> tuple[int, str, str]:
        code = main(["energy_flow", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    yield carry_out


def answered(call: Callable[..., tuple[int, str, str]], *words: object) -> Any:
    code, out, err = call(*words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_eval_finds_what_the_best_validation_of_the_training_found(run, loaded, call) -> None:
    lines = (run / "events.r0.jsonl").read_text().splitlines()
    reported = [one for one in map(json.loads, lines) if one["kind"] == "validation"]
    best = [one["data"] for one in reported if one["data"]["best"]][-1]
    found = answered(call, "eval", run, "--split", "validation", "--device", "cpu")
    assert found["weights"] == str(loaded.checkpoint)
    assert found["pairs"] == len(loaded.sets.validation)
    for name in ("cosine", "fvu"):
        assert found["model"][name] == pytest.approx(best[name], abs=1e-4)
    assert found["flows"]["completion"] == 1.0


def test_eval_shows_the_model_beside_predictors_without_a_lattice(run, call) -> None:
    code, out, err = call("eval", run, "--texts", "2")
    assert (code, err) == (0, "")
    assert out.startswith("test: ")
    rows = {line[:16].strip(): line.split()[-4:] for line in out.splitlines() if "." in line[16:24]}
    assert rows["training mean"][1] == "1.000"
    assert {"this model", "copied input", "ridge regression"} <= rows.keys()
    assert "of 2 written exactly" in out and "reached a face" in out


def test_the_references_are_what_their_names_say(loaded) -> None:
    x_NE, y_NE = loaded.sets.train.tensors()
    found = evaluate(loaded, "train", texts=0)
    assert found.texts == {}
    mean, ridge = found.references["training mean"], found.references["ridge regression"]
    assert mean.fvu == pytest.approx(1.0)
    centred = x_NE - x_NE.mean(0)
    best = torch.linalg.lstsq(centred, y_NE - y_NE.mean(0)).solution
    left = (centred @ best + y_NE.mean(0) - y_NE).square().sum()
    least = float(left / (y_NE - y_NE.mean(0)).square().sum())
    assert least <= ridge.fvu < 1.01 * least < 1
    copied = (x_NE - y_NE).square().sum() / (y_NE - y_NE.mean(0)).square().sum()
    assert found.references["copied input"].fvu == pytest.approx(float(copied), rel=1e-5)


def test_eval_never_holds_the_training_part_in_memory(loaded, monkeypatch) -> None:
    wanted = evaluate(loaded, texts=0)
    monkeypatch.setattr(loaded.sets.train, "tensors", lambda: pytest.fail("copied whole"))
    assert evaluate(loaded, texts=0) == wanted


def test_written_texts_are_compared_by_their_pieces(loaded, monkeypatch) -> None:
    targets = [loaded.sets.test.text(index).target for index in range(4)]
    wrong = "nothing"
    said = iter([[targets[0].upper(), targets[1], wrong, wrong]])
    monkeypatch.setattr(loaded.model.bridge, "write", lambda surface_BS: next(said))
    found = evaluate(loaded, texts=4).texts
    assert found["written"] == 4 and found["exact"] == 0.5
    assert 0.5 <= found["f1"] < 0.75


def test_a_setting_may_change_and_is_reported_on_standard_error(run, call) -> None:
    changed = ("--set", "model.flows.splat=nearest", "--set", "data.split=pair")
    code, out, err = call("eval", run, "--texts", "0", *changed)
    assert code == 0 and "texts:" not in out
    assert err == "holdfast: warning: model.flows.splat was bilinear, is nearest\n"


def test_the_vocabulary_stays_that_of_the_run_when_other_pairs_are_measured(run, loaded) -> None:
    other = load_run(run, overrides=["data.source=grammar", "data.count=400"], device="cpu")
    assert len(other.sets.train) > len(loaded.sets.train)
    assert other.model.bridge is not None and loaded.model.bridge is not None
    own, theirs = loaded.model.bridge.vocabulary, other.model.bridge.vocabulary
    assert own.fingerprint == theirs.fingerprint


def test_the_file_of_pairs_may_have_moved(run, loaded, tmp_path) -> None:
    home = Path(loaded.settings.data.path)
    moved = shutil.copy(home, tmp_path / "moved.jsonl")
    home.rename(tmp_path / "away.jsonl")
    try:
        with pytest.raises(HoldfastError, match=r"data.*path.*give one that is there"):
            load_run(run)
        found = load_run(run, overrides=[f"data.path={moved}"], device="cpu")
    finally:
        (tmp_path / "away.jsonl").rename(home)
    assert torch.equal(
        found.model.output(torch.ones(1, 20)), loaded.model.output(torch.ones(1, 20))
    )


def test_other_texts_than_those_of_the_run_are_refused_in_one_line(run, loaded, call, tmp_path):
    pairs = read_pairs(loaded.settings.data.path)
    fresh = [TextPair(f"{one.input} quux{number}", one.target, one.meta)
             for number, one in enumerate(pairs)]  # fmt: skip
    write_pairs(tmp_path / "changed.jsonl", fresh)
    code, out, err = call("eval", run, "--set", f"data.path={tmp_path / 'changed.jsonl'}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "vocabulary was" in err and "--set data.path=FILE" in err


def test_words_put_in_place_of_others_are_refused_by_name(run, loaded, call, tmp_path):
    """As many pieces as before, so that the weights would fit."""
    pairs = read_pairs(loaded.settings.data.path)
    swapped = [TextPair(one.input.replace("man", "mop"), one.target, one.meta) for one in pairs]
    write_pairs(tmp_path / "changed.jsonl", swapped)
    for verb in (("eval",), ("chat", "--text", "A dog."), ("show",)):
        words = (verb[0], run, *verb[1:], "--set", f"data.path={tmp_path / 'changed.jsonl'}")
        code, out, err = call(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "its data has changed" in err and "vocabulary was" in err and "texts was" in err
        assert "pairs was" not in err and "teacher was" not in err


def test_data_that_changed_without_new_words_is_reported_and_used(run, loaded, call, tmp_path):
    pairs = read_pairs(loaded.settings.data.path)
    held = {loaded.sets.test.text(index).digest for index in range(2)}
    write_pairs(tmp_path / "less.jsonl", [one for one in pairs if one.digest not in held])
    code, _, err = call("eval", run, "--set", f"data.path={tmp_path / 'less.jsonl'}")
    left = len(loaded.sets.test) - 2
    assert code == 0
    assert f"holdfast: warning: test pairs was {left + 2}, is {left}\n" in err
    assert "warning: texts was" in err and err.count("\n") == 2


def test_a_run_goes_on_with_the_words_it_has_learned(run, loaded, tmp_path):
    """Its facts lie beside its record; one of an older version has none, and is not refused."""
    folder = tmp_path / "run"
    folder.mkdir()
    sets, bridge = loaded.sets, loaded.model.bridge
    assert changed_data(folder, sets, bridge, "") == []
    shutil.copy(run / "data.json", folder)
    keep_data_facts(folder, sets, bridge)
    assert (folder / "data.json").read_text() == (run / "data.json").read_text()
    other = load_pairs(dataclasses.replace(loaded.settings.data, source="grammar", count=300))
    words = make_model(loaded.settings.model, loaded.settings.bridge, other.train).bridge
    with pytest.raises(HoldfastError, match=r"training pairs was 1.*or begin a new run"):
        keep_data_facts(folder, other, words)
    assert (folder / "data.json").read_text() == (run / "data.json").read_text()
    alone = sets._replace(teacher=None)
    texts = [sets.test.text(index) for index in range(len(sets.test))]
    moved = alone._replace(
        test=Pairs(Tables([Embedded(*(2 * t for t in sets.test.tensors()))]), texts=texts)
    )
    keep_data_facts(folder, alone, None)
    assert [one.key for one in changed_data(folder, moved, None, "")] == ["embeddings"]


def test_the_text_bridge_may_be_left_out(run, call) -> None:
    code, out, err = call("chat", run, "--text", "A dog.", "--set", "bridge.on=false")
    assert code == 0 and "writes" not in out
    assert err == "holdfast: warning: bridge.on was true, is false\n"


def test_chat_names_the_nearest_training_target_and_writes(run, loaded, call) -> None:
    text = loaded.sets.train.text(3).input
    found = answered(call, "chat", run, "--text", text, "--nearest", "2")
    with torch.no_grad():
        out = loaded.model(loaded.sets.teacher.encode([text]))
    train = loaded.sets.train
    cosine_N = functional.cosine_similarity(out.y_BE, train.tensors()[1])
    assert found["nearest"][0]["text"] == train.text(int(cosine_N.argmax())).target
    assert found["nearest"][0]["cosine"] == pytest.approx(float(cosine_N.max()), abs=1e-5)
    assert len({one["text"] for one in found["nearest"]}) == 2
    assert found["written"] == loaded.model.bridge.write(out.out_BS)[0]


def test_chat_answers_every_line_of_standard_input(run, call, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("A man rides.\n\n  \nA dog sleeps."))
    code, out, err = call("chat", run, "--json", "--nearest", "1")
    assert (code, err) == (0, "")
    assert [json.loads(line)["text"] for line in out.splitlines()] == [
        "A man rides.",
        "A dog sleeps.",
    ]


def test_without_a_teacher_the_bridge_reads(loaded) -> None:
    alone = loaded._replace(sets=loaded.sets._replace(teacher=None))
    talk = Conversation(alone, nearest=1)
    first, second = talk.answer("A dog sleeps."), talk.answer("A young man is riding a bicycle.")
    assert first.nearest[0][1] != second.nearest[0][1]
    loaded_bridge, loaded.model.bridge = loaded.model.bridge, None
    try:
        with pytest.raises(HoldfastError, match=r"bridge\.on=true"):
            Conversation(alone)
    finally:
        loaded.model.bridge = loaded_bridge


@pytest.mark.slow
def test_bench_tells_speed_series_and_memory(call) -> None:
    small = [word for one in SMALL for word in ("--set", one)]
    words = ("bench", *small, "--batch", "3", "--steps", "4", "--device", "cpu")
    found = answered(call, *words)
    assert found["batch"] == 3 and found["flows"] == found["rows"] == 60
    for part in (found["forward"], found["train"]):
        series = part["milliseconds"]
        assert len(series) == 4 and min(series) > 0 and part["peak_gb"] > 0
        assert part["samples_per_second"] == pytest.approx(1000 * 3 * 4 / sum(series), rel=0.01)
    code, out, _ = call(*words, "--set", "core=false", "--precision", "bf16")
    assert code == 0 and "no core, bf16, cpu" in out and "\ntrain " in out


def test_show_counts_every_parameter_of_a_run(run, loaded, call) -> None:
    found = answered(call, "show", run)
    assert sum(found["parameters"].values()) == sum(
        one.numel() for one in loaded.model.parameters()
    )
    assert found["sizes"]["cells"] == 20 and found["sizes"]["rows"] == 32 * 20
    code, out, _ = call("show", run)
    assert code == 0 and "lattice 5 x 4 x 4" in out and "text bridge: knows" in out


def test_show_tells_what_a_preset_would_cost(call) -> None:
    code, out, err = call("show", "--preset", "max80")
    assert (code, err) == (0, "")
    assert "the 312 strongest of 6400 cells" in out and "mappers of rank 1024" in out
    sizes = answered(call, "show", "--preset", "exp50", "--set", "model.flows.spawn_most=0")[
        "sizes"
    ]
    # The table of the specification, section 17.
    assert sizes["train_tflop"] == pytest.approx(6.3, abs=0.05)
    assert sizes["macs_per_flow_step"] == pytest.approx(2.63e6, rel=0.01)


def test_data_is_made_described_checked_thinned_and_put_away(call, tmp_path) -> None:
    options = ("make", tmp_path, "--count", "50", "--task", "conditional")
    assert "would be written, 50 pairs" in call("data", *options, "--dry-run")[1]
    assert call("data", *options)[0] == 0
    path = tmp_path / "grammar_conditional_n50_s0.jsonl"
    assert call("data", "list", tmp_path)[1].startswith(path.name)
    assert "50 pairs" in call("data", "info", path)[1]
    code, out, _ = call("data", "validate", path)
    assert code == 0 and out.endswith("\nvalid\n")
    write_pairs(path, [*read_pairs(path), *read_pairs(path)])
    assert "50 of 100 pairs removed" in call("data", "dedup", path)[1]
    path.write_text(path.read_text() + "{}\n")
    code, out, _ = call("data", "validate", path)
    assert code == 1 and out.endswith("\nnot valid\n")
    assert "would be moved" in call("data", "archive", tmp_path, "--days", "0", "--dry-run")[1]
    assert call("data", "archive", tmp_path, "--days", "0")[0] == 0
    assert (tmp_path / "archive" / path.name).is_file()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "required: VERB"),
        (("eval",), "required: RUN"),
        (("eval", "no/such/run"), "does not exist"),
        (("eval", "RUN", "--split", "exam"), "invalid choice: 'exam'"),
        (("eval", "RUN", "--texts", "-1"), "'-1' is not a whole number of at least 0"),
        (("eval", "RUN", "--device", "abacus"), "no device 'abacus'"),
        (("eval", "RUN", "--device", "cuda:99"), "device cuda:99: there are"),
        (("eval", "RUN", "--set", "model.lattice.depth=6"), "model.lattice.depth is 4 there and 6"),
        (("eval", "RUN", "--set", "model.latice.depth=6"), "did you mean"),
        (("eval", "DEMO"), "is a run of demo"),
        (("eval", "EMPTY"), "it ended before its first step"),
        (("show",), "give either RUN or --preset NAME"),
        (("show", "--preset", "max8"), "did you mean 'max80'?"),
        (("bench", "--steps", "0"), "'0' is not a whole number of at least 1"),
        (("data",), "required: VERB"),
        (("data", "make", "TMP", "--source", "pairs"), "source pairs reads path, which is None"),
        (("data", "make", "TMP", "--count", "99999"), "the grammar makes 61440"),
        (("data", "info", "no.jsonl"), "no.jsonl: no set"),
        (("data", "archive", "TMP", "--days", "nan"), "'nan' is no number of days"),
    ],
)
def test_bad_input_is_one_line_and_two(words, reason, run, call, tmp_path) -> None:
    if "DEMO" in words:
        Run.create(tmp_path / "demo", {"script": "demo"})
    if "EMPTY" in words:
        Run.create(tmp_path / "empty", {"script": "energy_flow"})
    names = {"RUN": run, "DEMO": tmp_path / "demo", "EMPTY": tmp_path / "empty", "TMP": tmp_path}
    code, out, err = call(*(names.get(word, word) for word in words))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and reason in err


def test_the_weights_are_those_of_the_run_and_rest(loaded, run) -> None:
    settings = loaded.settings
    fresh = make_model(settings.model, settings.bridge, loaded.sets.train)
    assert not torch.equal(fresh.input(torch.ones(1, 16)), loaded.model.input(torch.ones(1, 16)))
    assert not loaded.model.training
    newest = load_run(run, device="cpu", best=False).checkpoint
    assert "0000000008" in newest.name


def test_the_command_is_listed_without_importing_torch() -> None:
    code = (
        "import sys\nfrom holdfast_models.energy_flow.commands import EnergyFlowCommand\n"
        "from holdfast.cli._parser import Parser\nParser.of(EnergyFlowCommand())\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
