"""Several ranks: each has its own lane in one run folder, and they skip together."""

from __future__ import annotations

import itertools
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from holdfast import load_checkpoint
from holdfast.report import replay, summarize

from .conftest import Bench, Outcome, Record, await_line

DISTRIBUTED = """
import hashlib, os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
torch.manual_seed(100 + rank)
for step in range(12):
    x = torch.randn(16, 4)
    if step == 5 and rank == 1:
        x[3, 2] = float("nan")
    loss = (model(x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:12]
print(f"rank {rank} of {os.environ['WORLD_SIZE']} finite {bool(flat.isfinite().all())} {digest}\\n",
      end="", flush=True)
dist.destroy_process_group()
"""

TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


def ranks_reported(text: str) -> list[list[str]]:
    return sorted(line.split() for line in text.splitlines() if line.startswith("rank "))


def skipped_together(record: Record, lanes: list[str]) -> None:
    assert record.lanes == lanes
    for lane, rank in zip(lanes, itertools.count()):
        rows = record.steps(lane)
        assert list(rows["step"]) == list(range(12))
        assert record.skipped(lane) == [5]
        start = record.events("start", lane)[0]
        assert (start.data["rank"], start.data["world"]) == (rank, 2)
        assert record.events("end", lane)
    # Only rank 1 saw a bad loss; both saw a bad gradient, because gradients are reduced.
    assert [int(record.steps(lane)["loss_bad"].sum()) for lane in lanes] == [0, 1]
    assert [int(record.steps(lane)["grad_bad"][5]) > 0 for lane in lanes] == [True, True]


def agree(reported: list[list[str]]) -> None:
    assert [words[:6] for words in reported] == [
        ["rank", "0", "of", "2", "finite", "True"],
        ["rank", "1", "of", "2", "finite", "True"],
    ]
    assert reported[0][6] == reported[1][6]


@pytest.mark.ranks(2)
def test_torchrun_with_holdfast_in_every_rank(bench: Bench):
    """``torchrun … -m holdfast run script.py``: a parent per rank, one run folder."""
    script = bench.write(DISTRIBUTED)
    seen = bench.end(bench.start([*TORCHRUN, "-m", "holdfast", "run", script]))
    assert seen.code == 0, seen.reported
    agree(ranks_reported(seen.text))
    runs = [path for path in (bench.folder / "runs").iterdir() if path.is_dir()]
    assert len(runs) == 1
    skipped_together(Record(runs[0]), ["r0", "r1"])
    assert Record(runs[0]).run.meta["status"] == "finished"
    # One summary for the whole run, and no half-told one.
    assert seen.reported.count("holdfast: finished after 12 steps") == 1
    report = bench.cli("report")
    assert report.code == 0 and "FINISHED  after 12 steps" in report.text


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_holdfast_around_torchrun(bench: Bench):
    """``holdfast run -m torch.distributed.run … script.py``: one parent for all ranks."""
    seen = bench.guarded(*TORCHRUN, bench.write(DISTRIBUTED), options=[])
    assert seen.code == 0, seen.reported
    agree(ranks_reported(seen.text))
    skipped_together(bench.record, ["r0", "r1"])
    report = bench.cli("report", str(bench.path))
    assert "FINISHED  after 12 steps" in report.text and "1 step skipped" in report.text


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_an_explicit_run_folder_is_shared_by_the_ranks(bench: Bench):
    script = bench.write(DISTRIBUTED)
    words = [*TORCHRUN, "-m", "holdfast", "run", "--quiet", "--run-dir", "out", script]
    seen = bench.end(bench.start(words))
    assert seen.code == 0, seen.reported
    assert seen.reported.count("holdfast") == 0
    skipped_together(Record(bench.folder / "out"), ["r0", "r1"])
    # A second launch must not write into the first one's folder.
    again = bench.end(bench.start(words))
    assert again.code != 0 and "already holds a run" in again.reported
    skipped_together(Record(bench.folder / "out"), ["r0", "r1"])


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_a_rank_that_fails_takes_the_launch_down_as_it_would_without_us(bench: Bench):
    script = bench.write(
        DISTRIBUTED.replace("    loss = (model", "    if step == 7: raise SystemExit(rank * 3)\n"
                            "    loss = (model")
    )  # fmt: skip
    plain, guarded = bench.both(*TORCHRUN, script)
    assert guarded.code == plain.code != 0
    assert [len(bench.record.steps(lane)) for lane in ("r0", "r1")] == [7, 7]


ACCELERATED = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
x = torch.randn(64, 4)
x[21, 0] = float("nan")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(x), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for (batch,) in loader:
    optimizer.zero_grad()
    accelerator.backward((model(batch) ** 2).mean())
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
weights = accelerator.unwrap_model(model).weight
print(f"rank {accelerator.process_index} finite {bool(weights.isfinite().all())} "
      f"{weights.sum().item()}\\n", end="", flush=True)
accelerator.end_training()
"""


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.parametrize("processes", [1, 2])
def test_accelerate(bench: Bench, processes: int):
    """With its own launcher, which on CPUs starts one process, and with torchrun for two."""
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch = launch if processes == 1 else TORCHRUN
    home = {"HF_HOME": str(bench.folder / "home")}
    seen = bench.guarded(*launch, bench.write(ACCELERATED), env=home)
    assert seen.code == 0, seen.reported
    reported = ranks_reported(seen.text)
    assert [words[:4] for words in reported] == [
        ["rank", str(rank), "finite", "True"] for rank in range(processes)
    ]
    assert len({words[4] for words in reported}) == 1
    record = bench.record
    assert record.lanes == [f"r{rank}" for rank in range(processes)]
    # Sample 21 is in the sixth batch, which is the third of rank 1 when there are two.
    for lane in record.lanes:
        assert len(record.steps(lane)) == 16 // processes
        assert record.skipped(lane) == [5 if processes == 1 else 2]
    # accelerate fetches one batch ahead: the batch to name is not the one fetched last.
    lane = record.lane(record.lanes[-1])
    assert "NUM005" in {finding.code for finding in lane.findings}
    assert [21 in batch["indices"] for batch in lane.batches] == [True]


TWICE = (
    DISTRIBUTED.replace("step == 5", "step in (5, 6)")
    .replace('x[3, 2] = float("nan")', "x[3] = 0")
    .replace("(model(x) ** 2).mean()", "(model(x) / x.sum(1, keepdim=True)).mean()  # HERE")
)


@pytest.mark.ranks(2)
def test_the_rank_that_has_the_bad_loss_names_the_line(bench: Bench):
    """It computes its loss again by itself, while the others wait for its gradients."""
    seen = bench.guarded(*TORCHRUN, bench.write(TWICE))
    assert seen.code == 0, seen.reported
    line = 1 + TWICE.splitlines().index(next(x for x in TWICE.splitlines() if "# HERE" in x))
    causes = [e for lane in bench.record.lanes for e in bench.record.events("cause", lane)]
    assert [(c.rank, c.data["how"], c.data["line"], c.data["op"]) for c in causes] == [
        (1, "replay", line, "div")
    ]
    agree(ranks_reported(seen.text))


BY_HAND = TWICE.replace("DistributedDataParallel(", "(").replace(
    "    optimizer.step()",
    "    for p in model.parameters(): dist.all_reduce(p.grad)\n    optimizer.step()",
).replace("    loss = ", "    dist.all_reduce(torch.ones(1))\n    loss = ")  # fmt: skip


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_collectives_of_the_script_are_not_repeated(bench: Bench):
    seen = bench.guarded(*TORCHRUN, bench.write(BY_HAND))
    assert seen.code == 0, seen.reported
    agree(ranks_reported(seen.text))
    assert [bench.record.skipped(lane) for lane in ("r0", "r1")] == [[5, 6], [5, 6]]


SPIKE = (Path(__file__).parent / "scripts" / "ranks_spike.py").read_text()


@pytest.mark.ranks(2)
def test_damaged_weights_are_rolled_back_by_all_ranks_after_the_same_step(bench: Bench):
    seen = bench.guarded(*TORCHRUN, bench.write(SPIKE))
    assert seen.code == 0, seen.reported
    (_, _, zero, loss), (_, _, one, other) = ranks_reported(seen.text)
    assert zero == one, "the replicas differ"
    assert float(loss) < 1 and float(other) < 1
    record = bench.record
    went = [record.events("rollback", lane) for lane in ("r0", "r1")]
    assert [len(events) for events in went] == [1, 1]
    (first,), (second,) = went
    assert (first.step, first.data["to"]) == (second.step, second.data["to"])
    assert first.data["to"] <= 150 and first.data["asked_by"] in (0, 1)
    assert first.data["loss"] == second.data["loss"]
    for lane in ("r0", "r1"):
        assert not record.events("holdfast_error", lane)
        assert not record.events("not_covered", lane)


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_a_run_that_is_stopped_is_stopped_on_all_ranks(bench: Bench):
    script = bench.write(SPIKE)
    seen = bench.guarded(*TORCHRUN, script, options=["--on", "OPT001=stop"])
    assert seen.code != 0
    stops = [bench.record.events("stop", lane) for lane in ("r0", "r1")]
    assert [len(events) for events in stops] == [1, 1]
    assert stops[0][0].step == stops[1][0].step < 200
    assert "asked for by rank" in stops[0][0].data["why"]


ONE_SIDED = SPIKE.replace("if step == 150:", "if False:").replace(
    "loss = nn.functional", "y = y * 40 if rank == 1 and 150 <= step < 158 else y\n        "
    "loss = nn.functional",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_odd_data_of_one_rank_makes_nobody_hang_and_no_replica_differ(bench: Bench):
    seen = bench.guarded(*TORCHRUN, bench.write(ONE_SIDED))
    assert seen.code == 0, seen.reported
    (_, _, zero, _), (_, _, one, _) = ranks_reported(seen.text)
    assert zero == one
    skipped = [bench.record.skipped(lane) for lane in ("r0", "r1")]
    assert skipped[0] == skipped[1]


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_an_explosion_on_one_rank_is_left_out_on_all(bench: Bench):
    """Norms are equal on all ranks, losses are not: the norm alone decides."""
    longer = DISTRIBUTED.replace("range(12)", "range(60)").replace("step == 5", "step == 40")
    script = bench.write(longer.replace('x[3, 2] = float("nan")', "x = x * 1000"))
    # It draws its own data: without being asked holdfast skips no finite step there.
    seen = bench.guarded(*TORCHRUN, script, options=["--on", "OPT002=skip"])
    assert seen.code == 0, seen.reported
    agree(ranks_reported(seen.text))
    lanes = [lane for lane in bench.record.lanes if len(bench.record.steps(lane)) == 60]
    assert len(lanes) == 2
    for lane in lanes:
        assert bench.record.skipped(lane) == [40]
        assert bench.record.events("rollback", lane) == []
        assert bench.record.events("holdfast_error", lane) == []
        assert int(bench.record.steps(lane)["outlier"][40]) & 1


HEALTHY = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(2048, 16))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
layers = torch.nn.Linear(16, 32), torch.nn.Linear(32, 1)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        loss = (model(x) ** 2).mean()  # HERE
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.ranks(2)
def test_healthy_ranks_give_no_finding(bench: Bench):
    """Replicas are compared, data is not the same, nobody waits for a straggler."""
    seen = bench.guarded(*TORCHRUN, bench.write(HEALTHY))
    assert seen.code == 0, seen.reported
    summary = summarize(bench.record.run)
    assert [f.message for f in summary.findings if f.code[:3] != "TPT"] == []
    assert sorted(rank.rank for rank in summary.ranks) == [0, 1]
    for lane in bench.record.lanes:
        assert len(bench.record.lane(lane).tables["weights0"]) == 4
        assert [e.data["number"] for e in bench.record.events("pass_ends", lane)] == [1, 2]
        (facts,) = [e.data for e in bench.record.events("parallel", lane)]
        assert (facts["wrapper"], facts["group"], facts["batch_size"]) == ("ddp", 2, 8)
        assert bench.record.events("holdfast_error", lane) == []


def line_with(process: subprocess.Popen[bytes], word: bytes) -> str:
    """The first line of the output that has the word in it."""
    assert process.stdout is not None
    seen = b""
    for line in process.stdout:
        seen += line
        if word in line:
            return line.decode()
    pytest.fail(f"ended with {process.wait()} before {word!r}: {seen!r}")


def at(script: str) -> int:
    """The line that is marked."""
    return 1 + next(i for i, row in enumerate(script.splitlines()) if "# HERE" in row)


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.parametrize("around", [True, False], ids=["one parent", "a parent per rank"])
def test_a_hang_blames_the_rank_that_is_not_in_the_collective(bench: Bench, around: bool):
    """A parent of rank 0 reads the lane of rank 1, whose stacks its own parent has taken."""
    script = HEALTHY.replace("# HERE", "\n        if dist.get_rank() == 1 and sampler.epoch: "
                             "__import__('time').sleep(600)  # HERE")  # fmt: skip
    name = bench.write(script)
    options = ["--hang-after", "6"]
    if around:
        process = bench.start_guarded(*TORCHRUN, name, options=options, stderr=subprocess.STDOUT)
    else:
        words = ["-m", "holdfast", "run", "--run-dir", str(bench.path), *options, name]
        process = bench.start([*TORCHRUN, *words], stderr=subprocess.STDOUT)
    reported = line_with(process, b"[RNK007]")
    process.terminate()
    bench.end(process)
    assert f"rank 1 stands at script.py:{at(script)}, while rank 0 waits" in reported
    finding = summarize(bench.record.run).findings[0]
    assert (finding.code, finding.rank, finding.line) == ("RNK007", 1, at(script))
    assert finding.file.endswith("script.py")


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.parametrize("around", [True, False], ids=["one parent", "a parent per rank"])
def test_a_rank_that_is_through_with_its_data_is_not_waited_for_for_ever(
    bench: Bench, around: bool
):
    """It waits in a barrier, the other in backward: the run is ended and says who was through."""
    script = HEALTHY.replace(
        "sampler=sampler)",
        "sampler=sampler)\n"
        "if dist.get_rank() == 1: loader = list(loader)[:20]\n"
        "loader = DataLoader([x[0][0] for x in loader], batch_size=1)",
    )
    script = script.replace("for (x,) in loader", "for x in loader").replace("range(2)", "range(1)")
    script = script.replace("dist.destroy", "dist.barrier()\ndist.destroy")
    name = bench.write(script)
    options = ["--hang-after", "6"]
    if around:
        seen = bench.guarded(*TORCHRUN, name, options=options)
    else:
        words = ["-m", "holdfast", "run", "--run-dir", str(bench.path), *options, name]
        seen = bench.end(bench.start([*TORCHRUN, *words]))
    assert seen.code != 0
    assert "holdfast: ended the run, which would wait for ever" in seen.reported
    first = summarize(bench.record.run).findings[0]
    assert (first.code, first.rank, first.step) == ("RNK005", 1, 20), first.message
    assert "rank 1 had no more batches after 20 steps" in first.message


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.parametrize("around", [True, False], ids=["one parent", "a parent per rank"])
@pytest.mark.parametrize(
    ("does", "code", "line"),
    [
        ("__import__('os').kill(__import__('os').getpid(), 9)", "RNK008", False),
        ("{}['cat']", "RUN001", True),
        ("raise SystemExit(0)", "RNK005", False),
    ],
    ids=["killed", "raises", "leaves"],
)
def test_the_rank_that_ended_first_is_named(
    bench: Bench, does: str, code: str, line: bool, around: bool
):
    script = HEALTHY.replace("# HERE", "\n        if dist.get_rank() == 1 and sampler.epoch: "
                             f"{does}  # HERE")  # fmt: skip
    name = bench.write(script)
    if around:
        seen = bench.guarded(*TORCHRUN, name, options=[])
    else:
        words = ["-m", "holdfast", "run", "--run-dir", str(bench.path), name]
        seen = bench.end(bench.start([*TORCHRUN, *words]))
    assert seen.code != 0
    summary = summarize(bench.record.run)
    first, *others = summary.findings
    assert (first.code, first.rank) == (code, 1), [f.message for f in summary.findings]
    assert first.line == (at(script) if line else 0)
    # What the other rank says is a consequence.
    assert [f.message for f in others if f.code == "RUN001"] == []
    assert summary.ranks[0].rank == 1
    again = replay(bench.record.run)
    assert [f.message for f in again.findings] == [f.message for f in summary.findings]


SHARDED = (
    DISTRIBUTED.replace(
        "from torch.nn.parallel import DistributedDataParallel",
        "from torch.distributed.fsdp import fully_shard",
    )
    .replace("model = DistributedDataParallel(", "model = fully_shard(")
    .replace("p.detach().flatten()", "p.full_tensor().detach().flatten()")
    .replace("range(12)", "[s for s in range(12) if os.environ.get('LEAVE_OUT') != str(s)]")
)
# The batch of a step is drawn from its own seed, so that a run without a step draws the others.
SHARDED = SHARDED.replace(
    "    x = torch.randn", "    torch.manual_seed(100 * step + rank)\n    x = torch.randn"
)


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_shards_skip_together(bench: Bench):
    """FSDP2: the NaN of rank 1 shows in the shards of both, and the step is as if it never was."""
    script = bench.write(SHARDED)
    seen = bench.guarded(*TORCHRUN, script, options=[])
    assert seen.code == 0, seen.reported
    reported = ranks_reported(seen.text)
    agree(reported)
    skipped_together(bench.record, ["r0", "r1"])
    for lane in bench.record.lanes:
        assert bench.record.events("holdfast_error", lane) == []
    norms = [bench.record.steps(lane)["grad_norm"] for lane in bench.record.lanes]
    assert (norms[0][:5] == norms[1][:5]).all()
    without = bench.plain(*TORCHRUN, script, env={"LEAVE_OUT": "5"})
    assert ranks_reported(without.text) == reported


SPAWNED = """
import os, time, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

def train(rank):
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    if rank == 0:
        open("port", "w").write(str(store.port))
    while not os.path.exists("port") or not open("port").read():
        time.sleep(0.01)
    own = store if rank == 0 else dist.TCPStore("127.0.0.1", int(open("port").read()))
    dist.init_process_group("gloo", store=own, rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        loss = (model(torch.randn(8, 4)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.003)
    time.sleep(1.5 * rank)  # the store ends with rank 0

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_a_store_that_ends_with_the_first_rank_makes_no_noise(bench: Bench):
    """Our connection to it would be the only one that is left, and torch would complain of it."""
    seen = bench.guarded(bench.write(SPAWNED), options=["--quiet"])
    assert seen.code == 0 and "TCPStore" not in seen.reported


ENDED = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
if sys.argv[1] == "fsdp":
    fully_shard(model)
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(512, 4), torch.randn(512, 1))
sampler, step = DistributedSampler(data), 0
for epoch in range(1000):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 16, sampler=sampler):
        if step > 40 and rank == 1 and sys.argv[2] == "stuck":
            time.sleep(600)
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        step += 1
        time.sleep(0.01)
        if step == 40 and rank == 0:
            print("begun", flush=True)
"""


def ended_by_sigterm(bench: Bench, *how: str) -> tuple[Outcome, float]:
    process = bench.start_guarded(*TORCHRUN, bench.write(ENDED), *how)
    await_line(process, b"begun")
    if how[1] == "stuck":
        time.sleep(2.0)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    return bench.end(process), time.monotonic() - began


@pytest.mark.ranks(2)
@pytest.mark.parametrize("how", ["fsdp", pytest.param("ddp", marks=pytest.mark.slow)])
def test_sigterm_is_answered_by_all_ranks_after_the_same_step(bench: Bench, how: str):
    """A preempted job: every rank gets the signal, between any two instructions."""
    seen, seconds = ended_by_sigterm(bench, how, "")
    assert seen.code != 0 and seconds < 15, seen.reported
    saved = [bench.record.events("last_state", lane)[0] for lane in ("r0", "r1")]
    assert saved[0].step == saved[1].step >= 39
    paths = [Path(event.data["file"]) for event in saved]
    assert all(event.data["source"] == "live" for event in saved)
    if how == "fsdp":
        assert paths[0] == paths[1]
        assert sorted(f.name for f in paths[0].iterdir()) == [
            "index.json", "r0.safetensors", "r1.safetensors"]  # fmt: skip
    else:
        weights = [load_checkpoint(path)["model"] for path in paths]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert "saved   " in bench.cli("report", str(bench.path)).text
    assert not summarize(bench.record.run).findings


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_sigterm_ends_ranks_of_which_one_stands_still(bench: Bench):
    """The others wait for it in a collective, where no handler of Python runs."""
    seen, seconds = ended_by_sigterm(bench, "ddp", "stuck")
    assert seen.code != 0 and seconds < 20, seen.reported
    for lane in ("r0", "r1"):
        saved = bench.record.events("last_state", lane)
        assert len(saved) == 1 and saved[0].data["why"] == "SIGTERM"
