from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
import safetensors.torch as safetensors
import torch
from torch import distributed

from holdfast.checkpoint.file import save
from holdfast.checkpoint.record import encode_record
from holdfast.checkpoint.sharded.places import PartPlace
from holdfast.checkpoint.sharded.saving import save as save_over_ranks
from holdfast.checkpoint.training_state import TrainingState
from holdfast.checkpoint.tree import flatten
from holdfast.cli import main


@pytest.fixture
def run(make_run):
    """A run with three checkpoints, step 100 the best of them."""
    run = make_run()
    (run.path / "checkpoints").mkdir()
    for step, loss in [(100, 0.25), (200, 0.5), (300, float("nan"))]:
        put(run.path / "checkpoints", step, loss=loss)
    return run


def put(folder, step, rank=0, loss=0.5, lr=0.1, width=3, **meta):
    weight = torch.full((2, width), float(step))
    tree = {"models": {"m": {"w": weight}}, "optimizers": [{"groups": [{"lr": lr}]}]}
    path = folder / f"step-{step:010d}.r{rank}.safetensors"
    meta = {"step": step, "rank": rank, "kind": "time", "metrics": {"loss": loss}, **meta}
    return save(path, *flatten(tree), meta).path


def spoil(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def store(run):
    return run.path / "checkpoints"


def test_ls(run, capsys):
    assert main(["checkpoint", "ls", str(run.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["STEP", "RANK", "AGE", "SIZE", "KIND", "METRICS"]
    assert [line.split()[0] for line in lines[1:]] == ["100", "200", "300"]
    assert lines[1].endswith("time  loss 0.25") and lines[3].endswith("loss NaN")
    assert len({line.index("time") for line in lines[1:]}) == 1


def test_ls_marks_what_is_damaged_and_what_was_not_well(run, capsys):
    (store(run) / "step-0000000100.r0.safetensors").write_bytes(b"")
    put(store(run), 400, good=False)
    assert main(["checkpoint", "ls", str(store(run))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "DAMAGED: it has 0 bytes and should have" in lines[1]
    assert "unhealthy" in lines[4] and "unhealthy" not in lines[3]


def test_ls_as_json(run, capsys):
    (store(run) / "step-0000000200.r0.json").write_text("{}")
    assert main(["checkpoint", "ls", "--json", str(run.path)]) == 1
    one, two, three = json.loads(capsys.readouterr().out)
    assert (one["step"], one["good"], one["damage"], one["kind"]) == (100, True, "", "time")
    assert one["metrics"] == {"loss": 0.25} and three["metrics"] == {"loss": "NaN"}
    assert two["damage"] and not two["good"] and two["bytes"] is None


def test_verify(run, capsys):
    assert main(["checkpoint", "verify", str(run.path)]) == 0
    assert capsys.readouterr().out.count("intact ") == 3
    spoil(store(run) / "step-0000000200.r0.safetensors")
    assert main(["checkpoint", "verify", str(run.path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["intact", "damaged", "intact"]
    assert "its content has changed" in lines[1]


def test_verify_one_file_and_as_json(run, capsys):
    path = store(run) / "step-0000000200.r0.json"
    assert main(["checkpoint", "verify", str(path)]) == 0
    assert "1 tensor" in capsys.readouterr().out
    spoil(path.with_suffix(".safetensors"))
    assert main(["checkpoint", "verify", "--json", str(path), str(store(run))]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert [bool(one["damage"]) for one in reported] == [True, False, True, False]


def test_show_of_a_folder_is_the_newest_good_one(run, capsys):
    spoil(store(run) / "step-0000000300.r0.safetensors")
    put(store(run), 200, epoch=4)
    assert main(["checkpoint", "show", str(run.path), "--tensors"]) == 0
    reported = capsys.readouterr().out
    assert "step-0000000200.r0.safetensors" in reported and "step     200, rank 0 of 1" in reported
    assert f"torch {torch.__version__}" in reported and "metrics  loss 0.5" in reported
    assert "epoch    4" in reported and "models.m.w  float32 [2, 3]" in reported
    assert main(["checkpoint", "show", str(run.path)]) == 0
    reported = capsys.readouterr().out
    assert "models.m.w" not in reported and "tensors  1 in models" in reported


def test_show_as_json_is_the_record(run, capsys):
    assert main(["checkpoint", "show", str(run.path), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["step"] == 300 and reported["tensors"] == {"models.m.w": ["float32", [2, 3]]}


def test_show_of_a_later_rank_alone(tmp_path, capsys):
    put(tmp_path, 100, rank=1)
    assert main(["checkpoint", "show", str(tmp_path)]) == 0
    assert "rank 1" in capsys.readouterr().out


def test_show_of_a_damaged_one(run, capsys):
    path = store(run) / "step-0000000200.r0.safetensors"
    path.write_bytes(b"")
    assert main(["checkpoint", "show", str(path)]) == 1
    assert "good     no: it has 0 bytes" in capsys.readouterr().out
    path.with_suffix(".json").write_text("{}")
    assert main(["checkpoint", "show", str(path)]) == 1
    assert "is damaged" in capsys.readouterr().err


def test_verify_goes_on_behind_a_damaged_record(run, capsys):
    one, other = (store(run) / f"step-0000000{n}00.r0.json" for n in (1, 2))
    one.write_text("{}")
    assert main(["checkpoint", "verify", str(one), str(other)]) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "damaged",
        "intact",
    ]


def test_diff(run, capsys):
    one, other = (str(store(run) / f"step-0000000{n}00.r0.safetensors") for n in (1, 2))
    assert main(["checkpoint", "diff", one, one]) == 0
    assert "bitwise equal: 1 tensor" in capsys.readouterr().out
    assert main(["checkpoint", "diff", one, other]) == 1
    reported = capsys.readouterr().out
    assert "models.m.w: 6 of 6 elements, by up to 100, 1 of its norm" in reported
    put(store(run), 200, lr=0.05, width=4)
    assert main(["checkpoint", "diff", one, other]) == 1
    reported = capsys.readouterr().out
    assert "models.m.w: float32 [2, 3] in step 100, float32 [2, 4] in step 200" in reported
    assert "optimizers.0.groups.0.lr: 0.1 → 0.05" in reported


def test_diff_as_json(run, capsys):
    one, other = (str(store(run) / f"step-0000000{n}00.r0.safetensors") for n in (1, 2))
    assert main(["checkpoint", "diff", "--json", one, other]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert reported["tensors"][0]["name"] == "models.m.w" and reported["equal"] == 0


def test_diff_of_a_damaged_one(run, capsys):
    path = store(run) / "step-0000000200.r0.safetensors"
    spoil(path)
    assert main(["checkpoint", "diff", str(run.path), str(path)]) == 1
    seen = capsys.readouterr()
    assert "is damaged" in seen.err and seen.err.count("\n") == 1 and not seen.out


def test_prune(run, capsys):
    spoil(put(store(run), 400))
    words = ["checkpoint", "prune", str(run.path), "--last", "1"]
    assert main([*words, "--dry-run"]) == 0
    reported = capsys.readouterr().out
    assert "would remove  step-0000000200.r0.safetensors" in reported and "damaged: its" in reported
    assert "would remove 2 checkpoints" in reported and "2 left: rank 0" in reported
    assert len(list(store(run).iterdir())) == 8
    assert main([*words, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [one["step"] for one in plain["kept"]] == [100, 300]
    assert sorted(one["step"] for one in plain["removed"]) == [200, 400]
    assert len(list(store(run).iterdir())) == 4


def test_prune_by_another_metric(run, capsys):
    put(store(run), 50, metrics={"val": 0.9})
    words = ["--last", "1", "--best", "1", "--metric", "val", "--mode", "max"]
    assert main(["checkpoint", "prune", str(run.path), *words]) == 0
    assert "removed 2 checkpoints" in capsys.readouterr().out
    assert len(list(store(run).iterdir())) == 4


def test_checkpoints_elsewhere_are_found_through_the_run(make_run, tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    put(elsewhere, 100)
    run = make_run(meta={"settings": {"checkpoint": {"dir": str(elsewhere)}}})
    assert main(["checkpoint", "ls", str(run.path)]) == 0
    assert "100" in capsys.readouterr().out


def elsewhere_of(make_run, folder):
    folder.mkdir()
    return make_run(meta={"settings": {"checkpoint": {"dir": str(folder)}}})


def test_a_forged_run_json_removes_nothing_in_a_folder_it_names(make_run, tmp_path, capsys):
    folder = tmp_path / "elsewhere"
    run = elsewhere_of(make_run, folder)
    for step in (100, 200, 300):
        put(folder, step, run=str(tmp_path / "another"))
    before = sorted(folder.iterdir())
    assert main(["checkpoint", "prune", str(run.path), "--last", "1", "--best", "0"]) == 2
    reported = capsys.readouterr().err
    assert str(folder) in reported and "says that it is of the run" in reported
    assert sorted(folder.iterdir()) == before
    assert main(["checkpoint", "prune", str(folder), "--last", "1", "--best", "0"]) == 0
    assert len(list(folder.iterdir())) == 2


def test_elsewhere_only_intact_checkpoints_of_the_run_go(make_run, tmp_path, capsys):
    folder = tmp_path / "elsewhere"
    run = elsewhere_of(make_run, folder)
    for step in (100, 200, 300):
        put(folder, step, run=str(run.path.resolve()))
    spoil(put(folder, 150, run=str(run.path.resolve())))
    put(folder, 250)
    assert main(["checkpoint", "prune", str(run.path), "--last", "1", "--best", "0"]) == 0
    reported = capsys.readouterr().out.splitlines()
    assert reported[0] == f"in {folder}, which is outside of {run.path}"
    assert sorted(int(path.name[5:15]) for path in folder.glob("*.json")) == [150, 250, 300]


def test_checkpoints_elsewhere_say_whose_they_are(tmp_path):
    from holdfast.checkpoint.saver import Saver
    from holdfast.checkpoint.store import CheckpointStore
    from holdfast.config import CheckpointSettings

    settings = CheckpointSettings(dir=str(tmp_path / "elsewhere"))
    saver = Saver(settings, lambda: tmp_path / "run", lambda *news: None)
    saver.save({"w": torch.ones(2)}, 3, "asked")
    saver.wait()
    entry = CheckpointStore(tmp_path / "elsewhere").latest()
    assert entry is not None and entry.record["run"] == str(tmp_path / "run")


def test_a_record_that_names_a_file_of_the_user_removes_nothing(run, tmp_path, capsys):
    folder = store(run)
    record = json.loads((folder / "step-0000000100.r0.json").read_text())
    for step, name in ((100, "mine.safetensors"), (50, "thesis.tex")):
        (folder / f"step-{step:010d}.r0.json").write_bytes(
            encode_record({**record, "step": step, "file": name})
        )
    (folder / "thesis.tex").touch()
    (folder / "step-0000000100.r0.safetensors").rename(folder / "mine.safetensors")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "index.json").touch()
    (folder / "step-0000000070").symlink_to(tmp_path / "data")
    (folder / "step-0000000080").mkdir()
    (folder / "step-0000000080" / "mine.txt").touch()
    assert main(["checkpoint", "prune", str(run.path), "--last", "1", "--best", "0"]) == 0
    for name in ("thesis.tex", "mine.safetensors", "step-0000000080/mine.txt"):
        assert (folder / name).exists()
    assert (tmp_path / "data" / "index.json").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "required: VERB"),
        (["lss", "x"], "invalid choice: 'lss'"),
        (["ls"], "required: PATH"),
        (["ls", "nowhere"], "nowhere does not exist"),
        (["verify", "model.pt"], "neither in .safetensors"),
        (["show", "nowhere.json"], "nowhere.json does not exist"),
        (["diff", "only-one"], "PATH"),
        (["prune", "nowhere"], "nowhere does not exist"),
        (["prune", ".", "--last", "0"], "'0' is not a whole number of at least 1"),
        (["prune", ".", "--best", "many"], "'many' is not a whole number of at least 0"),
        (["ls", ".", "--jsno"], "unknown option '--jsno'"),
        (["ls", "."], "there is no checkpoint in ."),
        (["show", "."], "there is no good checkpoint in ."),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.pt").touch()
    assert main(["checkpoint", *words]) == 2
    seen = capsys.readouterr()
    assert seen.out == "" and seen.err.count("\n") == 1 and says in seen.err


def test_help_of_a_verb(capsys):
    assert main(["checkpoint", "--help"]) == 0
    assert "holdfast checkpoint prune RUN" in capsys.readouterr().out
    assert main(["checkpoint", "prune", "--help"]) == 0
    reported = capsys.readouterr().out
    assert "usage: holdfast checkpoint prune" in reported and "(default: loss)" in reported


def test_torch_is_not_needed(run):
    """One process for all verbs: each is asked whether it has loaded what none of them may."""
    code = (
        "import sys; from holdfast.cli import main\n"
        "for verb in ('ls', 'verify', 'show', 'prune'):\n"
        "    assert main(['checkpoint', verb, sys.argv[1]]) == 0, verb\n"
        "    assert 'torch' not in sys.modules, verb\n"
    )
    done = subprocess.run([sys.executable, "-c", code, run.path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_diff_without_torch_is_one_line(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "holdfast.checkpoint.values", raising=False)
    assert main(["checkpoint", "diff", str(run.path), str(run.path)]) == 2
    assert "needs torch, which is not installed" in capsys.readouterr().err


def test_export_writes_what_torch_loads(tmp_path, capsys):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    tree = TrainingState({"Net": model}, [optimizer]).state()
    path = tmp_path / "step-0000000007.r0.safetensors"
    save(path, *flatten(tree), {"step": 7})
    out = tmp_path / "state.pt"
    assert main(["checkpoint", "export", str(path), str(out)]) == 0
    assert f'torch.load("{out}", weights_only=True)' in capsys.readouterr().out
    state = torch.load(out, weights_only=True)
    other = torch.nn.Linear(2, 1)
    other.load_state_dict(state["model"])
    assert torch.equal(other.weight, model.weight) and state["step"] == 7
    torch.optim.Adam(other.parameters()).load_state_dict(state["optimizer"])
    assert main(["checkpoint", "export", str(path), str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.fixture
def over_ranks(run):
    """The newest checkpoint of the run, in a folder, by two ranks."""
    rendezvous = distributed.HashStore()

    def rank_saves(rank):
        place = PartPlace((4, 3), (2 * rank, 0), (2, 3))
        tree = {"models": {"m": {"w": torch.full((2, 3), float(rank))}}, "dice": {"rank": rank}}
        save_over_ranks(
            tree, 500, rank=rank, world=2, store=rendezvous, folder=store(run),
            places={"models.m.w": place}, meta={"metrics": {"loss": 0.125}},
        )  # fmt: skip

    other = threading.Thread(target=rank_saves, args=(1,))
    other.start()
    rank_saves(0)
    other.join()
    return store(run) / "step-0000000500"


def test_a_checkpoint_over_ranks_is_listed_shown_and_verified(run, over_ranks, capsys):
    assert main(["checkpoint", "ls", str(run.path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["500", "all"]
    assert main(["checkpoint", "show", "--tensors", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert "500, saved by 2 ranks, a file each" in shown and "float32 [4, 3]" in shown
    assert "chunks" not in shown
    assert main(["checkpoint", "verify", str(over_ranks)]) == 0
    spoil(over_ranks / "r1.safetensors")
    assert main(["checkpoint", "verify", str(over_ranks / "index.json")]) == 1
    reported = capsys.readouterr().out
    assert "models.m.w has changed, in r1.safetensors, the data of rank 1" in reported


def test_a_checkpoint_over_ranks_is_exported(run, over_ranks, tmp_path, capsys):
    target = tmp_path / "model.safetensors"
    words = ["checkpoint", "export", str(over_ranks), str(target), "--part", "models.m"]
    assert main(words) == 0
    assert "1 tensor" in capsys.readouterr().out
    found = safetensors.load_file(target)
    assert found["w"].tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2
    assert main([*words[:3], str(tmp_path / "state.pt"), *words[4:]]) == 2
    assert "--part goes with a name that ends in .safetensors" in capsys.readouterr().err


def test_a_checkpoint_over_ranks_is_pruned_and_compared(run, over_ranks, capsys):
    assert main(["checkpoint", "diff", str(over_ranks), str(run.path)]) == 0
    assert main(["checkpoint", "prune", str(run.path), "--last", "1", "--best", "0"]) == 0
    assert [path.name for path in store(run).iterdir()] == [over_ranks.name]
