"""Parameters that are spread over ranks: whole norms, one decision, an exact skip, snapshots.

The trainings of ``ranks.py`` run once on two ranks (four: slow); the tests look at what came out.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from holdfast.guard import sharded_norms
from holdfast.guard.sharded_norms import ShardedNorms, _all_take_part, _share
from holdfast.probes.device_baseline import JudgedStep, Terms, fresh_state
from holdfast.probes.gradients import NormMeter
from holdfast.probes.host_norms import GradientReading

from . import ranks
from .test_no_host_reads import NoScalars

# All of them wait for the first, which starts the ranks.
pytestmark = [pytest.mark.ranks(2), pytest.mark.timeout(400)]

BAD = 4
EXTREME = 40
# How the guard skips, by the settings that lead there.
FORMS = {
    "hidden gradients": {"optimizer": "adamw"},
    "fused": {"optimizer": "fused", "device_path": True},
    "snapshot": {"optimizer": "sgd", "device_path": True, "fused": False},
}


def _plain(about: dict[str, Any]) -> dict[str, Any]:
    return {"optimizer": about["optimizer"], "on": False}


JOBS: list[ranks.Job] = [
    (f"{form} {case}", ranks.train, about | more)
    for form, settings in FORMS.items()
    for case, about, more in (
        ("without the step", _plain(settings), {"omitted": BAD}),
        ("poisoned", settings, {"poison": BAD}),
        ("plain", _plain(settings), {}),
        ("guarded", settings, {"count": True}),
    )
]
JOBS += [
    ("ddp", ranks.train, {"ddp": True, "count": True}),
    ("unsharded norms", ranks.norms_of_whole_model, {}),
    ("norms on the host", ranks.layer_norms, {}),
    ("norms on a device", ranks.layer_norms, {"device_path": True}),
    ("clipped", ranks.train, {"poison": BAD, "clip": 0.1}),
    ("clipped on a device", ranks.train, {"poison": BAD, "clip": 0.1, "device_path": True}),
    ("clipped without the step", ranks.train, {"on": False, "omitted": BAD, "clip": 0.1}),
    ("accumulated", ranks.train, {"poison": BAD, "accumulate": 2}),
    ("accumulated without", ranks.train, {"on": False, "omitted": BAD, "accumulate": 2}),
    ("outlier", ranks.train, {"steps": 44, "extreme": EXTREME}),
    ("outlier on a device", ranks.train,
     {"steps": 44, "extreme": EXTREME, "optimizer": "fused", "device_path": True}),
    ("NaN loss", ranks.train, {"nan_loss": BAD}),
    ("beside others", ranks.beside_others, {"device_path": False}),
    ("beside others on a device", ranks.beside_others, {"device_path": True}),
    ("put back", ranks.put_back, {}),
    ("probes", ranks.probes_ask_nobody, {}),
    ("one guard breaks", ranks.train, {"poison": BAD, "fails_at": 2}),
    ("one guard breaks on a device", ranks.train,
     {"poison": BAD, "fails_at": 2, "optimizer": "fused", "device_path": True}),
    # The last: from here on the ranks have asked each other differently often.
    ("one guarded", ranks.train, {"poison": BAD, "only": 0, "patience": 0.5}),
]  # fmt: skip

Reported = dict[str, list[Any]]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    return ranks.run(tmp_path_factory.mktemp("ranks"), 2, JOBS)


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    own, theirs = (x["weights"] + x["state"] for x in (one, other))
    return len(own) == len(theirs) and all(map(torch.equal, own, theirs))


@pytest.mark.parametrize("form", FORMS)
def test_the_poison_of_one_rank_is_left_out_by_all(reported: Reported, form: str):
    for poisoned, without in zip(
        reported[f"{form} poisoned"], reported[f"{form} without the step"], strict=True
    ):
        assert poisoned["how"] == form
        assert poisoned["skipped"] == [BAD]
        assert poisoned["errors"] == poisoned["not_covered"] == []
        assert same_bits(poisoned, without)
    # Each rank says the same of the step, to the last bit, though its own part may be finite.
    assert (
        reported[f"{form} poisoned"][0]["norms"][:BAD]
        == reported[f"{form} poisoned"][1]["norms"][:BAD]
    )
    blamed = {one["rows"][BAD]["grad_layer"] for one in reported[f"{form} poisoned"]}
    assert len(blamed) == 1 and blamed.pop() >= 0


@pytest.mark.parametrize("form", FORMS)
def test_a_guarded_run_is_the_plain_one(reported: Reported, form: str):
    for guarded, plain in zip(reported[f"{form} guarded"], reported[f"{form} plain"], strict=True):
        assert guarded["skipped"] == [] and same_bits(guarded, plain)


@pytest.mark.parametrize("form", FORMS)
def test_one_collective_in_a_step_and_none_without_shards(reported: Reported, form: str):
    for rank in range(2):
        assert reported[f"{form} guarded"][rank]["collectives"] == [1] * 6
        assert reported["ddp"][rank]["collectives"] == [0] * 6


@pytest.mark.parametrize("where", ["norms on the host", "norms on a device"])
def test_norms_are_those_of_the_whole_gradients(reported: Reported, where: str):
    whole = np.array(reported["unsharded norms"][0])
    for found in reported[where]:
        assert np.allclose(np.array(found), whole, rtol=1e-6, atol=0)


@pytest.mark.parametrize("where", ["clipped", "clipped on a device"])
def test_clipping_by_the_script_leaves_the_evidence(reported: Reported, where: str):
    """Norms are taken before the script clips, and summed in the step."""
    for one, without in zip(reported[where], reported["clipped without the step"], strict=True):
        assert one["skipped"] == [BAD] and one["errors"] == []
        if where == "clipped":
            assert same_bits(one, without)
    assert reported[where][0]["norms"][0] == reported[where][1]["norms"][0] > 0.1


def test_accumulated_gradients(reported: Reported):
    for one, without in zip(reported["accumulated"], reported["accumulated without"], strict=True):
        assert one["skipped"] == [BAD] and same_bits(one, without)


@pytest.mark.parametrize("where", ["outlier", "outlier on a device"])
def test_an_outlier_of_one_rank_is_judged_alike(reported: Reported, where: str):
    for one in reported[where]:
        assert int(one["rows"][EXTREME]["outlier"]) & 1 and one["errors"] == []
    assert reported[where][0]["skipped"] == reported[where][1]["skipped"]
    limits = [[row["norm_limit"] for row in one["rows"]][EXTREME - 2 :] for one in reported[where]]
    assert limits[0] == limits[1] and not np.isnan(limits[0]).any()


def test_a_loss_that_only_one_rank_sees_decides_nothing(reported: Reported):
    """Its gradients are finite: a rank that skipped alone would hold another model."""
    for one, plain in zip(reported["NaN loss"], reported["hidden gradients plain"], strict=True):
        assert one["skipped"] == [] and same_bits(one, plain)
    assert [one["rows"][BAD]["loss_bad"] for one in reported["NaN loss"]] == [0, 1]


@pytest.mark.parametrize("where", ["beside others", "beside others on a device"])
def test_what_stands_on_several_ranks_is_counted_once(reported: Reported, where: str):
    """15 ones in shards, 4 twos as copies, 2 threes in an ordinary tensor."""
    for one in reported[where]:
        assert one["norms"][0] == pytest.approx(math.sqrt(15 + 16 + 18), rel=1e-6)
        assert one["skipped"] == [1] and one["same"] and one["errors"] == []
        assert one["rows"][1]["grad_layer"] == 2


def test_a_snapshot_is_of_the_parts_and_goes_back_into_them(reported: Reported):
    first, second = reported["put back"]
    assert first["shapes"] == [(4, 6), (4,), (1, 7), (1,)]
    assert second["shapes"] == [(3, 6), (3,), (0, 7), (0,)]
    for one in (first, second):
        assert one["moved"] and one["same"] and one["kept"] and one["anew"]
        assert one["finite"] == (True, False)
        assert "[2, 6] of [7, 6]" in one["refused"]
        assert one["while_gathered"]
        assert one["collectives"] == 0


def test_probes_ask_no_other_rank(reported: Reported):
    assert reported["probes"] == [0, 0]


@pytest.mark.parametrize("where", ["one guard breaks", "one guard breaks on a device"])
def test_without_the_guard_of_one_rank_nobody_skips(reported: Reported, where: str):
    """And nobody waits for it: its place in the sum is taken."""
    whole, broken = reported[where]
    assert len(whole["rows"]) == 6 and whole["skipped"] == broken["skipped"] == []
    assert "broken on purpose" in broken["errors"][0]["error"]
    assert any("another rank cannot skip" in why for why in whole["not_covered"])
    assert not any(bool(w.isfinite().all()) for w in whole["weights"])


def test_with_ranks_that_are_not_guarded_nobody_waits(reported: Reported):
    guarded, plain = reported["one guarded"]
    assert len(guarded["rows"]) == 6 and guarded["skipped"] == guarded["errors"] == []
    assert guarded["how"] == "detect only" and "guarded alike" in guarded["not_covered"][0]
    assert "rows" not in plain


# ---------------------------------------------------------------------- without other ranks


class _Store:
    def __init__(self, came: int) -> None:
        self.came = came
        self.said: dict[str, str] = {}

    def add(self, key: str, by: int) -> int:
        self.came += by
        return self.came

    def check(self, keys: list[str]) -> bool:
        return all(key in self.said for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self.said.setdefault(key, desired).encode()


@pytest.mark.parametrize("came, answer", [(1, True), (0, False)])
def test_a_rank_without_guard_makes_the_others_watch_only(
    monkeypatch: pytest.MonkeyPatch, came: int, answer: bool
):
    store = _Store(came)
    monkeypatch.setattr(sharded_norms, "_PATIENCE", 0.01)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    assert _all_take_part("it", 2) is answer
    store.came = 9  # too late: what was written down holds for everybody
    assert _all_take_part("it", 2) is answer


def test_flat_parameters_are_only_watched():
    flat = torch.nn.Parameter(torch.zeros(3))
    flat._fsdp_flattened = True  # type: ignore[attr-defined]
    found, why = ShardedNorms.of([flat], "it")
    assert found is None and "FSDP1" in why


def test_ordinary_parameters_share_nothing():
    assert ShardedNorms.of([torch.nn.Parameter(torch.zeros(3))], "it") == (None, "")
    assert _share(torch.zeros(3), 4) == 0.25


def test_sums_that_are_not_finite_name_their_parameter(monkeypatch: pytest.MonkeyPatch):
    whole = ShardedNorms([], [1.0, 0.5, 1.0], torch.device("cpu"))
    reading = GradientReading([3.0, math.inf], math.inf, [1])
    found, refused = whole.on_host(reading, [0, 1], refuses=True)
    norms = np.asarray(found.norms)
    assert refused and found.bad == [1] and norms[0] == 3.0 and norms[2] == 0.0


def test_a_sum_of_a_device_reads_nothing():
    """Operations of the sum, the flag and the judgement, with every read of a tensor forbidden."""
    norm_meter = NormMeter(torch.device("cpu"))
    whole = ShardedNorms([], [1.0, 0.5, 1.0], torch.device("cpu"))
    grads = [torch.full((4,), 2.0), torch.tensor([math.nan])]
    asked = JudgedStep(fresh_state(torch.device("cpu")), Terms(warmup=8))
    with NoScalars():
        measured = norm_meter.measure(grads, torch.tensor(7.0), loss_decides=False, extras=None)
        measured = whole.on_device(norm_meter, measured, [0, 2], refuses=False)
        norm_meter.judge(measured, asked)
        measured.hold()
    assert measured.flag == 1.0
    assert isinstance(measured.row, torch.Tensor)
    reading, loss, _ = measured.read(measured.row.numpy())
    assert list(np.asarray(reading.norms)[:2]) == [4.0, 0.0] and reading.bad == [2] and loss == 7.0
    assert not measured.refused(measured.row.numpy())
    refused = whole.on_device(norm_meter, None, [], refuses=True)
    refused.flag.fill_(1.0)
    refused.hold()
    assert refused.flag == 0.0 and refused.refused(refused.row.numpy())  # type: ignore[union-attr]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # "a prototype feature"
def test_a_sum_over_nccl_does_not_wait(tmp_path: Path):
    device = torch.device("cuda", 0)
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        whole, norm_meter = ShardedNorms([dist.group.WORLD], [1.0, 0.5], device), NormMeter(device)
        grads = [torch.ones(8, device=device), torch.full((4,), math.nan, device=device)]
        for turn in range(3):  # kernels and communicator are made in the first
            torch.cuda.set_sync_debug_mode("error" if turn else "default")
            measured = norm_meter.measure(grads, None, loss_decides=False, extras=None)
            measured = whole.on_device(norm_meter, measured, [0, 1], refuses=False)
            measured.hold()
            torch.cuda.set_sync_debug_mode("default")
            assert measured.flag.item() == 1.0
    finally:
        torch.cuda.set_sync_debug_mode("default")
        dist.destroy_process_group()


# ---------------------------------------------------------------------- more ranks


@pytest.mark.slow
def test_other_ways_to_spread_a_model(tmp_path: Path):
    """bf16 compute, a compiled model, tensor parallelism, two optimizers, a GradScaler."""
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "bf16": (ranks.train, {"how": ranks.mixed_precision}),
        "compiled": (ranks.train, {"compiled": True}),
        "tensor parallel": (ranks.tensor_parallel, {}),
        "tensor parallel on a device": (
            ranks.tensor_parallel,
            {"device_path": True, "fused": False},
        ),
        "two optimizers": (ranks.two_optimizers, {}),
        "two optimizers on a device": (
            ranks.two_optimizers,
            {"device_path": True, "fused": False},
        ),
    }
    jobs: list[ranks.Job] = []
    for way, (function, about) in ways.items():
        plain = {key: about[key] for key in ("how", "compiled") if key in about}
        jobs += [(f"{way}, without", function, plain | {"on": False, "omitted": BAD})]
        jobs += [(way, function, about | {"poison": BAD})]
    for fused in (False, True):
        jobs += [(f"scaled {fused} {on}", ranks.scaled, {"on": on, "fused": fused})
                 for on in (False, True)]  # fmt: skip
    reported = ranks.run(tmp_path, 2, jobs)
    for way in ways:
        for one, without in zip(reported[way], reported[f"{way}, without"], strict=True):
            assert set(one["skipped"]) == {BAD} and one["errors"] == [], way
            assert same_bits(one, without), way
    for fused in (False, True):
        both = (reported[f"scaled {fused} {on}"] for on in (True, False))
        for one, plain in zip(*both, strict=True):
            assert same_bits(one, plain) and one["errors"] == []


@pytest.mark.slow
@pytest.mark.ranks(4)
def test_four_ranks_in_two_dimensions(tmp_path: Path):
    """Replicas of shards (HSDP): four parts, each held twice, and one sum over all of them."""
    jobs: list[ranks.Job] = [
        ("without", ranks.train, {"on": False, "omitted": BAD, "mesh": (2, 2)}),
        ("poisoned", ranks.train, {"poison": BAD, "mesh": (2, 2), "count": True}),
        ("flat", ranks.train, {"poison": BAD}),
        ("whole", ranks.norms_of_whole_model, {"steps": 2}),
        ("both", ranks.both_kinds, {}),
    ]
    reported = ranks.run(tmp_path, 4, jobs)
    for one, without, flat in zip(
        reported["poisoned"], reported["without"], reported["flat"], strict=True
    ):
        assert one["skipped"] == flat["skipped"] == [BAD] and same_bits(one, without)
        assert one["collectives"] == [1] * 6
        assert one["norms"][:BAD] == reported["poisoned"][0]["norms"][:BAD]
        expected = [math.hypot(*norms) for norms in reported["whole"][0]]
        assert np.allclose(one["norms"][:2], expected, rtol=1e-6)
        assert np.allclose(flat["norms"][:2], expected, rtol=1e-6)
    for one in reported["both"]:
        # Parameters of meshes of two and of one dimension, each counted once.
        assert sorted(set(one["meshes"])) == [1, 2]
        assert one["norms"][0] == pytest.approx(one["expected"], rel=1e-6)
        assert one["skipped"] == [1] and one["errors"] == one["not_covered"] == []
