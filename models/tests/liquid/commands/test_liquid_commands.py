"""``holdfast liquid``: every verb, its answers for programs, and one line for what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.cli import main
from holdfast_models.liquid import export
from holdfast_models.liquid.commands import generating
from holdfast_models.liquid.generation import Sampling, stream
from holdfast_models.liquid.loading import load_run

SMALL = """\
    --epochs 1 --batch-size 4 --sequence-length 8 --num-layers 2 --liquid-units 8
    --spiking-units 8 --hidden-dim 16 --embedding-dim 8 --num-spike-steps 3
    --liquid-backbone ltc_scan --quiet --set pictures=false --set model.attention.heads=2
    --set model.attention.steps=3 --set train.steps=2"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With texts of two kinds."""
    made = tmp_path_factory.mktemp("commands")
    for name, word in (("one", "naïve text\n"), ("two", "def f(x):\n    return x\n")):
        (made / name).mkdir()
        for number in range(4):
            (made / name / f"{number}.txt").write_text(f"{number} {word * 40}", encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def run_of(folder: Path) -> Callable[..., Path]:
    """``run_of("first", "--use-mamba")``: a run that the command trained, once."""

    def make(name: str, *words: str) -> Path:
        run = folder / name
        if not run.exists():
            data = ["--set", f"data.folder={folder / 'data'}", "--run-dir", str(run)]
            assert main(["liquid", "train", *SMALL.split(), *data, *words]) == 0
        return run

    return make


@pytest.fixture
def text_run(run_of: Any, folder: Path) -> Path:
    return run_of("text", "--data", str(folder / "one"), "--use-mamba", "--use-adaptive-gating",
                  "--num-gate-heads", "2", "--use-stdp")  # fmt: skip


@pytest.fixture
def flat_run(run_of: Any, folder: Path) -> Path:
    """Of one block: exporters take their time."""
    few = "--sequence-length 2 --num-layers 1 --num-spike-steps 1"
    none = "--set model.spikes.decode_method=none"
    return run_of("flat", "--data", str(folder / "one"), *few.split(), *none.split())


@pytest.fixture
def liquid(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """``liquid("show", ...)``: the exit code and what was printed, read where it is JSON."""

    def call(*words: object) -> Any:
        capsys.readouterr()
        code = main(["liquid", *map(str, words)])
        reported = capsys.readouterr()
        whole = "--json" in words and words[0] != "generate" and code != 2
        return code, json.loads(reported.out) if whole else reported.out, reported.err

    return call


def refused(found: Any, *parts: str) -> None:
    code, out, reported = found
    assert code == 2 and not out
    assert reported.count("\n") == 1 and all(part in reported for part in parts), reported


# ------------------------------------------------------------------ train, config


def test_train_trains_what_the_flags_say(text_run: Path) -> None:
    loaded = load_run(str(text_run))
    settings = loaded.settings
    assert (settings.model.hidden_dim, settings.data.sequence_length) == (16, 8)
    assert settings.model.mamba.gate and settings.plasticity.on and len(loaded.net.synapses) == 2
    assert settings.train.optimizer.lr == 1e-4, "of the reference"


def test_a_run_goes_on_with_its_own_settings(
    run_of: Any, folder: Path, liquid: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of("resumed", "--data", str(folder / "one"))
    code, _, _ = liquid("train", "--resume", run, "--set", "train.steps=3", "--quiet")
    assert code == 0 and load_run(str(run)).settings.model.hidden_dim == 16
    refused(liquid("train", "--resume", run, "--mamba-d-state", 8), "--mamba-d-state", "no effect")
    refused(liquid("train", "--resume", folder / "nowhere"), "nowhere")
    code, _, reported = liquid("train", "--resume", run, "--hidden-dim", 32, "--quiet")
    assert code == 2 and "model.hidden_dim" in reported


def test_settings_are_saved_and_read_again(
    folder: Path, run_of: Any, liquid: Any, tmp_path: Path
) -> None:
    file = tmp_path / "saved.yaml"
    run_of("saved", "--data", str(folder / "two"), "--save-config", str(file), "--save-interval",
           "2", "--beta", "0.5")  # fmt: skip
    code, reported, _ = liquid("config", "--config-path", file, "--json")
    assert code == 0 and reported["model"]["spikes"]["beta"] == 0.5
    assert reported["train"]["data"]["batch"] == 4, "not of the reference"
    steps = reported["train"]["holdfast"]["checkpoint"]["steps"]
    assert steps > 2 and steps % 2 == 0, "two epochs"
    refused(
        liquid("train", *SMALL.split(), "--save-config", tmp_path / "no" / "f.yaml"),
        "--save-config",
    )


def test_config_prints_what_flags_stand_for(liquid: Any, tmp_path: Path) -> None:
    code, short, _ = liquid("config", "--use-mamba", "--mamba-d-state", 8)
    assert code == 0 and "state: 8" in short and "learn_beta" not in short
    code, full, _ = liquid("config", "--use-mamba", "--mamba-d-state", 8, "--full")
    (tmp_path / "full.yaml").write_text(full)
    again = liquid("config", "--config-path", tmp_path / "full.yaml", "--full")
    assert again[1] == full and "learn_beta" in full
    assert "embedding_dim: 768" in liquid("config", "--preset", "phase1")[1]
    assert liquid("config", "--set", "model.hidden_dim=512")[1] == liquid("config")[1]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("--mamba-d-state 8", ("--mamba-d-state", "--use-mamba")),
        ("--vocab-size 900", ("--vocab-size", "--tokenizer bpe")),
        ("--tokenizer gpt2", ("gpt2", "bpe")),
        ("--gpu-ids 0,1", ("--gpu-ids", "torchrun")),
        ("--multi-gpu", ("--multi-gpu", "torchrun")),
        ("--hidden-dim many", ("--hidden-dim", "many")),
        ("--hidden-dims 12", ("--hidden-dims", "--hidden-dim")),
        ("--hidden-dim 30", ("hidden_dim", "heads")),
        ("--task music", ("--task", "music")),
        ("--use-meta-plasticity", ("plasticity.on",)),
        ("--epochs 0", ("train.epochs",)),
        ("--config-path nowhere.yaml", ("nowhere.yaml",)),
        ("--preset huge", ("huge", "phase1")),
        ("--mixed-precision --no-mixed-precision", ("--no-mixed-precision",)),
        ("--continual-learning --num-tasks 50", ("num_tasks", "epoch")),
    ],
)
def test_what_is_wrong_is_one_line(liquid: Any, words: str, parts: tuple[str, ...]) -> None:
    refused(liquid("train", *words.split()), *parts)


# ------------------------------------------------------------------ generate


def test_generate_streams_one_prompt(
    text_run: Path, liquid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[str] = []
    monkeypatch.setattr(
        generating, "print", lambda text="", **_: pieces.append(text), raising=False
    )
    how = ("--max-length", 12, "--seed", 4, "--temperature", 0.9, "--top-k", 50, "--top-p", 0.9,
           "--repetition-penalty", 1.1)  # fmt: skip
    assert liquid("generate", text_run, "--prompt", "naï", *how)[0] == 0
    loaded = load_run(str(text_run))
    assert loaded.tokenizer is not None
    drawn = Sampling(seed=4, temperature=0.9, top_k=50, top_p=0.9, penalty=1.1)
    expected = [piece for _, piece in stream(loaded.net, loaded.tokenizer, ["naï"], 12, drawn)]
    assert pieces == ["naï", *expected, ""] and len(expected) > 3


def test_generate_reads_and_writes_files_whatever_the_batch(
    text_run: Path, liquid: Any, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo is longer\n\n", encoding="utf-8")
    given = ("generate", "--model-path", text_run, "--prompt", "é", "--input-file",
             tmp_path / "in.txt", "--max-length", 6, "--tokenizer", "byte")  # fmt: skip
    reported: list[str] = []
    for size in (1, 3):
        out = tmp_path / f"{size}.jsonl"
        assert liquid(*given, "--batch-size", size, "--output-file", out)[:2] == (0, "")
        reported.append(out.read_text(encoding="utf-8"))
    code, printed, _ = liquid(*given, "--json")
    assert code == 0 and reported[0] == reported[1] == printed
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [row["prompt"] for row in rows] == ["é", "one", "two is longer", ""]
    assert all(0 < len(row["text"]) <= 6 for row in rows)
    code, plain, _ = liquid(*given)
    assert code == 0 and plain.startswith("é") and "two is longer" in plain


def test_generate_says_what_is_wrong(text_run: Path, liquid: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xfa")
    for words, part in (
        ((), "give one run"),
        ((text_run, "--model-path", text_run), "give one run"),
        ((text_run, "--temperature", -1), "temperature"),
        ((text_run, "--top-p", 2), "top_p"),
        ((text_run, "--max-length", 0), "--max-length"),
        ((text_run, "--tokenizer", "bpe"), "byte"),
        ((text_run, "--input-file", tmp_path / "no.txt"), "no.txt"),
        ((text_run, "--input-file", tmp_path / "empty.txt"), "has no line"),
        ((text_run, "--input-file", tmp_path / "bytes.txt"), "UTF-8"),
        ((text_run, "--output-file", tmp_path / "no" / "x.jsonl"), "--output-file"),
        ((text_run, "--device", "abacus"), "--device abacus"),
        ((tmp_path / "nowhere",), "nowhere"),
    ):
        refused(liquid("generate", *words), part)


# ------------------------------------------------------------------ eval, show, continual, export


def test_eval_measures_the_run_or_other_texts(text_run: Path, liquid: Any, folder: Path) -> None:
    code, found, _ = liquid("eval", text_run, "--json")
    (numbers,) = found["tasks"].values()
    assert code == 0 and {"loss", "accuracy", "bits_per_byte"} <= {*numbers}
    assert {"uniform", "unigram"} <= {*found["baselines"]}
    code, other, _ = liquid("eval", text_run, "--data", folder / "two", "--json")
    assert code == 0 and other["baselines"]["unigram"] != found["baselines"]["unigram"]
    assert "to beat" in liquid("eval", text_run)[1]
    refused(liquid("eval", folder / "nowhere"), "nowhere")


def test_show_tells_what_a_run_is(text_run: Path, liquid: Any) -> None:
    code, found, _ = liquid("show", text_run, "--json")
    assert code == 0 and found["task"] == "llm" and found["tokenizer"] == "byte"
    assert found["sizes"]["width"] == 16 and found["features"]["plasticity"] == "homeostatic"
    assert found["features"]["cross-attention heads"] == "off"
    loaded = load_run(str(text_run))
    total = sum(one.numel() for one in loaded.net.parameters())
    assert found["parameters"].pop("total") == total == sum(found["parameters"].values())
    for block in found["blocks"].values():
        taus = [block[f"tau {share} %"] for share in (5, 50, 95)]
        assert 0 < taus[0] <= taus[1] <= taus[2] and 0 < block["gate"] < 1
        assert 0 <= block["firing rate"] <= 1 and 0 <= block["silent units"] <= 1
    code, reported, _ = liquid("show", text_run)
    assert code == 0 and "blocks.path.mamba" in reported and "tau 50 %" in reported


def test_show_says_what_it_could_not_measure(run_of: Any, folder: Path, liquid: Any) -> None:
    gone = folder / "gone"
    gone.mkdir()
    (gone / "text.txt").write_text("text that goes away\n" * 40)
    (gone / "more.txt").write_text("more that goes away\n" * 40)
    run = run_of("gone_run", "--data", str(gone))
    for file in gone.iterdir():
        file.unlink()
    code, found, _ = liquid("show", run, "--json")
    assert code == 0 and "blocks" not in found and str(gone) in found["not measured"]


def test_continual_shows_and_compares_runs(run_of: Any, folder: Path, liquid: Any) -> None:
    words = ("--continual-learning", "--num-tasks", "2", "--epochs", "2", "--set",
             "train.steps=null", "--data", str(folder / "one"), "--set",
             "continual.tasks=permuted_vocabulary", "--set", "continual.importance_samples=2",
             "--batch-size", "16")  # fmt: skip
    runs = [run_of("kept", *words, "--use-replay"), run_of("naive", *words)]
    code, found, _ = liquid("continual", *runs, "--json")
    assert code == 0 and [*found] == [str(run) for run in runs]
    assert len(found[str(runs[0])]["after"]) == 2 and found[str(runs[0])]["forgetting"] is not None
    code, reported, _ = liquid("continual", *runs)
    assert code == 0 and reported.count("untrained") == 2
    assert reported.splitlines()[-2].startswith(str(runs[0])) and "backward transfer" in reported
    assert "untrained" in liquid("continual", runs[0])[1]
    refused(liquid("continual", run_of("text")), "continual.json")


@pytest.mark.slow
def test_export_writes_a_program_that_says_the_same(
    flat_run: Path, liquid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model.pt2"
    code, found, _ = liquid("export", flat_run, "--out", out, "--json")
    assert code == 0 and found["ok"] and found["worst"] < 1e-4
    tokens_BT = torch.randint(0, 256, (3, 2))
    with torch.no_grad():
        expected = load_run(str(flat_run)).net(tokens_BT).y_BTV
        torch.testing.assert_close(torch.export.load(out).module()(tokens_BT), expected)
    refused(liquid("export", flat_run, "--out", tmp_path / "model.h5"), ".pt2 or .onnx")
    wrong = export.Verification(str(out), worst=2.0, apart=float("nan"))
    monkeypatch.setattr(export, "export", lambda loaded, path: wrong)
    code, reported, _ = liquid("export", flat_run, "--out", out)
    assert code == 1 and "DOES NOT agree" in reported


@pytest.mark.slow
def test_export_writes_onnx(flat_run: Path, liquid: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    code, found, _ = liquid("export", flat_run, "--out", tmp_path / "model.onnx", "--json")
    assert code == 0 and found["ok"] and found["worst"] < 1e-3


# ------------------------------------------------------------------ the command itself


def test_nothing_heavy_is_imported_before_a_verb_runs() -> None:
    code = (
        "import sys\nfrom holdfast.cli import main\nassert main(['liquid', 'train', '--help']) == 0"
        "\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--cross-attn-heads" in done.stdout and "default: 768" in done.stdout
