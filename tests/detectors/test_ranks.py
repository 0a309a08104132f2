"""Detectors that compare ranks: each fires on its fault alone, and all are silent on health."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.line_events import look
from tests.rank_lanes import event, found, lane

from holdfast.detectors import ALL, SECTIONS, document
from holdfast.detectors._ranks import RankDetector, RankLane, named
from holdfast.types import Finding, Severity

RANK_DETECTORS = [d for d in ALL if issubclass(d, RankDetector)]
SECOND = slice(1, None)


def compare(lanes: Sequence[RankLane]) -> list[Finding]:
    return [f for detector in RANK_DETECTORS for f in detector().compare(lanes)]


def codes(lanes: Sequence[RankLane]) -> list[str]:
    return [finding.code for finding in compare(lanes)]


def one(lanes: Sequence[RankLane]) -> Finding:
    findings = compare(lanes)
    assert len(findings) == 1, [f.message for f in findings]
    return findings[0]


def changed(sums: Any) -> Any:
    """Weights of which one layer was changed before the third look."""
    sums[2:, 1] += 1
    return sums


def all_changed(sums: Any) -> Any:
    return sums + 1


STUCK = {"seconds": 30.0, "limit": 10.0, "cpu": 0.0}
IN_BACKWARD = STUCK | {"file": "/a/train.py", "line": 31, "frames": [
    ["/x/torch/autograd/graph.py", 979, "_engine_run_backward"]]}  # fmt: skip
IN_BARRIER = STUCK | {"file": "/a/train.py", "line": 60, "frames": [
    ["/x/torch/distributed/distributed_c10d.py", 5356, "barrier"]]}  # fmt: skip
ASLEEP = STUCK | {"file": "/a/data.py", "line": 7, "frames": [["/a/data.py", 7, "wait"]],
                  "function": "wait", "excerpt": [[7, "time.sleep(9)"]]}  # fmt: skip
PEER: dict[str, Any] = {
    "type": "RuntimeError",
    "message": "[gloo/pair.cc:553] Connection closed by peer [::1]:3",
    "world": 3,
}


def silent(rank: int, data: dict[str, Any]) -> list[Any]:
    return [event(rank, "no_progress", 200, **data)]


def hangs(*data: dict[str, Any]) -> list[RankLane]:
    return [
        lane(rank, events=silent(rank, each), findings=[found("RUN004", rank)])
        for rank, each in enumerate(data)
    ]


# By code: lanes that fire it, and nothing else.
FIRES = {
    "RNK001": lambda: [lane(0), lane(1, weights=changed)],
    "RNK002": lambda: [
        lane(0, columns={"backward": 0.018}),
        lane(1, columns={"data_wait": 0.011}),
    ],
    "RNK003": lambda: [
        lane(r, facts={"find_unused": True}, layers=np.array([[1, 1, np.nan]] * 4)) for r in (0, 1)
    ],
    "RNK004": lambda: [
        lane(0),
        lane(1, columns={"batch": lane(0).rows["batch"], "loss": 1.1 * lane(0).rows["loss"]}),
    ],
    "RNK005": lambda: [
        lane(rank, events=[event(rank, "pass_ends", 42 - 2 * rank, number=1, samples=8)])
        for rank in (0, 1)
    ],
    "RNK006": lambda: [lane(0), lane(1, columns={"lr": 0.02})],
    "RNK007": lambda: hangs(IN_BACKWARD, ASLEEP),
    "RNK008": lambda: [
        lane(0, events=[event(0, "last_state", 199), event(0, "died", 200, signal="")]),
        lane(1, events=[event(1, "died", 200, signal="")]),
    ],
}


def test_every_detector_of_ranks_is_tried_here():
    assert sorted(FIRES) == sorted(d.code for d in RANK_DETECTORS)


@pytest.mark.parametrize("code", FIRES)
def test_fires_alone_and_says_what_it_must(code):
    lanes = FIRES[code]()
    finding = one(lanes)
    detector = next(d for d in RANK_DETECTORS if d.code == code)
    assert (finding.code, finding.name) == (code, detector.name)
    assert finding.message.startswith(f"step {finding.step}: ") and len(finding.message) < 200
    assert len(finding.advice) > 30 and finding.advice[-1] != "." and "\n" not in finding.advice
    assert finding.rank in finding.evidence["ranks"]
    assert Finding.from_dict(finding.to_dict()) == finding
    # Evidence is described where people look for it.
    reported = document(detector).sections["Evidence"]
    missing = set(finding.evidence) - {"count", "skipped", "steps", "opt", "lr", "loss", "key"}
    assert {name for name in missing if f"``{name}``" not in reported} == set()
    assert list(detector().scan(None)) == []  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("ranks", [2, 4])
def test_silent_on_healthy_ranks(ranks):
    facts = {"group": ranks}
    ends = [event(0, "pass_ends", 100, number=1, samples=8), event(0, "end", 200, steps=200)]
    assert codes([lane(rank, facts=facts, events=ends) for rank in range(ranks)]) == []


@pytest.mark.parametrize("code", FIRES)
def test_silent_without_a_process_group(code):
    """Ranks of a launcher that do not train together may differ in everything."""
    lanes = [
        RankLane(
            name=given.name, rank=given.rank, rows=given.rows, tables=given.tables,
            events=[e for e in given.events if e.kind in ("start", "optimizer", "pass_ends")],
        )
        for given in FIRES[code]()
    ]  # fmt: skip
    assert codes(lanes) == []


@pytest.mark.parametrize("code", FIRES)
def test_survives_lanes_without_anything(code):
    lanes = FIRES[code]()
    empty = RankLane(name="r1", rank=1, rows=lanes[1].rows[:0])
    compare([lanes[0], empty])
    compare([empty, empty])
    nothing = RankLane(
        name="r1", rank=1, rows=lanes[1].rows[["step", "time"]], events=lanes[1].events
    )
    compare([lanes[0], nothing])


def test_codes_have_their_documents():
    for detector in RANK_DETECTORS:
        assert tuple(document(detector).sections) == SECTIONS


# ---------------------------------------------------------------------- RNK001


def test_replicas_are_said_since_when_and_where():
    finding = one(FIRES["RNK001"]())
    assert finding.severity is Severity.ERROR and finding.rank == 1
    assert finding.evidence["equal_until"] == 64 and finding.step == 128
    assert finding.evidence["layers"] == ["0.bias"]
    assert "gradients are equal" in finding.message and "steps the optimizer" in finding.advice


def test_the_odd_one_of_three_is_the_one_that_differs():
    facts = {"group": 3}
    lanes = [lane(0, facts=facts, weights=changed), lane(1, facts=facts), lane(2, facts=facts)]
    assert one(lanes).evidence["odd"] == [0]


def test_gradients_that_are_not_averaged_are_told_apart():
    other = {"grad_norm": 5 + np.random.default_rng(3).random(200)}
    wrapped = one([lane(0), lane(1, weights=all_changed, columns=other)])
    assert "gradients differ after backward" in wrapped.message and "clipping" in wrapped.advice
    bare = {"wrapper": ""}
    alone = one([lane(0, facts=bare), lane(1, facts=bare, weights=all_changed, columns=other)])
    assert alone.severity is Severity.WARNING and "no DDP" in alone.message
    equal = one([lane(0, facts=bare), lane(1, facts=bare, weights=all_changed)])
    assert "manual_seed" in equal.advice
    early = one([lane(0), lane(1, weights=all_changed)])
    assert "after DDP was made" in early.message


@pytest.mark.parametrize(
    ("facts", "columns"),
    [
        ({"model": "other"}, {}),  # a pipeline, two networks that play against each other
        ({"wrapper": "fsdp"}, {}),
        ({"wrapper": ""}, {"loss": 1.5}),  # parts of one model, whose loss all ranks have
    ],
)
def test_other_weights_on_purpose(facts, columns):
    first = {key: value for key, value in facts.items() if key != "model"}
    lanes = [lane(0, facts=first, columns=columns)]
    lanes.append(lane(1, facts=facts, columns=columns, weights=all_changed))
    assert "RNK001" not in codes(lanes)


# ---------------------------------------------------------------------- RNK002


def test_the_slow_rank_is_named_with_its_phase_and_its_line():
    slow = found("TPT001", 1, file="data.py", line=12)
    lanes = [
        lane(0, columns={"backward": 0.018}),
        lane(1, columns={"data_wait": 0.011}, findings=[slow]),
    ]
    finding = one(lanes)
    assert (finding.rank, finding.file, finding.line) == (1, "data.py", 12)
    assert finding.evidence["kind"] == "data"
    assert finding.evidence["lost"] == pytest.approx(0.010, rel=0.05)


@pytest.mark.parametrize(("backend", "device"), [("gloo", False), ("nccl", True)])
def test_a_device_is_looked_at_where_there_is_one(backend, device):
    facts = {"backend": backend}
    slow = lane(1, columns={"forward": 0.014}, facts=facts)
    finding = one([lane(0, columns={"backward": 0.018}, facts=facts), slow])
    assert ("nvidia-smi" in finding.advice) is device and "cores" in finding.advice


def test_waiting_in_forward_is_no_slowness_of_its_own():
    """With a collective in the forward pass the others wait there for a rank without data."""
    lanes = [lane(0, columns={"forward": 0.014}), lane(1, columns={"data_wait": 0.011})]
    assert (one(lanes).rank, one(lanes).evidence["phase"]) == (1, "data_wait")


def in_forward() -> dict[str, Any]:
    """FSDP: the others wait in the forward pass, where weights are gathered."""
    slow = look("look", [(57, 0.0101, {}), (58, 0.004, {"mark": "model", "direct": False})])
    quick = look("look", [(57, 0.0001, {}), (58, 0.014, {"mark": "model", "direct": False})])
    facts = {"wrapper": "fsdp"}
    return {
        "quick": lambda rank: lane(
            rank, facts=facts, columns={"collective": 0.010}, events=[timed(rank, quick)]
        ),
        "slow": lambda rank: lane(
            rank, facts=facts, columns={"forward": 0.014}, events=[timed(rank, slow)]
        ),
    }


def timed(rank: int, given: tuple[str, dict[str, Any]]) -> Any:
    kind, data = given
    return event(rank, kind, 40, **data)


@pytest.mark.parametrize("at", [0, 1])
def test_a_slow_rank_that_others_wait_for_in_the_forward_pass(at):
    kinds = in_forward()
    lanes = [kinds["slow" if rank == at else "quick"](rank) for rank in (0, 1)]
    finding = one(lanes)
    assert (finding.code, finding.rank, finding.line) == ("RNK002", at, 57)
    assert finding.evidence["seconds"] == pytest.approx(0.014, rel=0.05)
    assert finding.evidence["others"] == pytest.approx(0.004, rel=0.1)
    # Nobody loses more than it waits: backward and collectives of the other one.
    assert 0.010 <= finding.evidence["lost"] <= 0.0185


def test_more_work_of_the_same_model_is_named_in_the_loop():
    """Longer samples: the model is the same on all ranks, what it is given is not."""
    kinds = in_forward()
    lanes = [kinds["quick"](0), kinds["slow"](1)]
    for each, seconds in zip(lanes, (0.004, 0.014), strict=True):
        inside = {"mark": "model", "direct": False, "path": (55, 31)}
        each.events[-1] = timed(each.rank, look("look", [(31, seconds, inside)]))
    assert (one(lanes).rank, one(lanes).line) == (1, 55)


def test_a_line_that_all_ranks_spend_as_long_at_is_not_to_blame():
    kinds = in_forward()
    both = look("look", [(57, 0.0101, {})])
    lanes = [kinds["quick"](0), kinds["slow"](1)]
    for each in lanes:
        each.events[-1] = timed(each.rank, both)
    assert (one(lanes).rank, one(lanes).line) == (1, 0)


def test_ranks_that_do_not_wait_for_each_other_are_not_slow():
    assert codes([lane(0), lane(1, columns={"data_wait": 0.1})]) == []


def test_turns_are_no_straggler():
    """Each rank is slow on every second step."""
    turn = np.where(np.arange(200) % 2, 0.011, 0.001)
    lanes = [lane(0, columns={"data_wait": turn}), lane(1, columns={"data_wait": turn[::-1]})]
    assert codes(lanes) == []


# ---------------------------------------------------------------------- RNK003


def test_a_flag_without_need_is_information():
    finding = one([lane(rank, facts={"find_unused": True}) for rank in (0, 1)])
    assert finding.severity is Severity.INFO and "all 3 parameters" in finding.message
    assert codes([lane(rank, 60, facts={"find_unused": True}) for rank in (0, 1)]) == []


def test_parameters_that_are_used_now_and_then_need_the_flag():
    rare = np.array([[1, 1, np.nan], [1, 1, 1], [1, 1, 1], [1, 1, np.nan]])
    assert codes([lane(rank, facts={"find_unused": True}, layers=rare) for rank in (0, 1)]) == []


# ---------------------------------------------------------------------- RNK004


def test_equal_numbers_of_other_datasets_are_other_data():
    """Each rank may have a dataset of its own: losses do not rise and fall together then."""
    assert codes([lane(0), lane(1, columns={"batch": lane(0).rows["batch"]})]) == []


def test_equal_losses_where_there_are_no_batches():
    columns = {"batch": np.nan, "loss": lane(0).rows["loss"]}
    finding = one([lane(0, columns=columns), lane(1, columns=columns)])
    assert finding.evidence["by"] == "losses" and "manual_seed" in finding.advice
    columns |= {"batch": lane(0).rows["batch"]}
    known = one([lane(0, columns=columns), lane(1, columns=columns)])
    assert "num_replicas and rank" in known.advice, "it has a DistributedSampler"
    for size, words in ((8, "sampler=DistributedSampler(dataset)"), (None, "islice")):
        facts = {"sampler": False, "batch_size": size}
        bare = one([lane(rank, columns=columns, facts=facts) for rank in (0, 1)])
        assert words in bare.advice, "a stream takes no sampler"
    constant = {"batch": np.nan, "loss": 1.0}
    assert codes([lane(0, columns=constant), lane(1, columns=constant)]) == []


def test_one_order_for_all_passes():
    def passes(rank: int, sampler: bool = True) -> RankLane:
        order = np.random.default_rng(rank).integers(0, 1 << 24, 50)
        ends = [event(rank, "pass_ends", 50 * n, number=n, samples=8) for n in (1, 2, 3, 4)]
        return lane(
            rank, columns={"batch": np.tile(order, 4)}, events=ends, facts={"sampler": sampler}
        )

    finding = one([passes(0), passes(1)])
    assert finding.severity is Severity.INFO and "set_epoch" in finding.advice
    assert finding.evidence["period"] == 50
    assert codes([passes(0, sampler=False), passes(1, sampler=False)]) == []


def test_without_a_wrapper_ranks_may_share_data():
    shared = {"batch": lane(0).rows["batch"]}
    bare = {"wrapper": ""}
    assert codes([lane(0, facts=bare), lane(1, facts=bare, columns=shared)]) == []


# ---------------------------------------------------------------------- RNK005


def test_the_rank_that_is_through_is_named_where_others_wait():
    done = lane(1, events=[event(1, "pass_ends", 200, number=1, samples=8)])
    waits = lane(0, findings=[found("RUN004", 0)], events=silent(0, IN_BACKWARD))
    findings = compare([waits, done])
    assert [f.code for f in findings] == ["RNK005"]
    assert findings[0].rank == 1 and "no more batches after 200 steps" in findings[0].message
    assert codes([lane(0), done]) == []  # it may be at its last step


def test_a_rank_that_does_not_come_until_the_time_limit():
    late = "[gloo/unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete"
    waits = {"type": "RuntimeError", "message": late, "file": "/a/train.py", "line": 9, "world": 2}
    waited = lane(0, events=[event(0, "exception", 200, **waits), event(0, "died", 200)])
    ended = lane(1, events=[event(1, "died", 200, time=9e9, signal="SIGTERM")])
    finding = one([waited, ended])
    assert (finding.code, finding.rank, finding.line) == ("RNK007", 1, 9)
    assert "rank 1 did not come" in finding.message and "--hang-after" in finding.advice


def test_a_rank_that_ended_well_before_the_others():
    done = lane(1, events=[event(1, "end", 199, steps=200)])
    failed = lane(0, events=[event(0, "exception", 200, **PEER), event(0, "end", 199, steps=200)])
    finding = one([failed, done])
    assert (finding.code, finding.rank) == ("RNK005", 1)
    assert finding.evidence["explains"] == [["RUN001", 0]]


def test_a_smaller_last_batch_is_information():
    lanes = [
        lane(rank, events=[event(rank, "pass_ends", 40, number=1, samples=8 - 5 * rank)])
        for rank in (0, 1)
    ]
    assert one(lanes).severity is Severity.INFO
    joined = {"join": True}
    lanes = [
        lane(r, facts=joined, events=[event(r, "pass_ends", 40 + r, number=1)]) for r in (0, 1)
    ]
    assert codes(lanes) == []


# ---------------------------------------------------------------------- RNK006


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("source", "ffff0000", "the source of the script"),
        ("batch_size", 16, "the batch size is 16 on rank 1 and 8 on rank 0"),
        ("cls", "Adam", "the optimizer is Adam on rank 1"),
        ("dtype", "bfloat16", "the dtype"),
    ],
)
def test_what_differs_is_named(name, value, words):
    finding = one([lane(0), lane(1, facts={name: value})])
    assert words in finding.message and finding.evidence["setting"] == name


def test_what_moves_weights_differently_explains_replicas():
    settings = {"weight_decay": "0.1", "betas": "(0.9, 0.999)"}
    other = settings | {"weight_decay": "0.01"}
    lanes = [lane(0, facts={"settings": settings}), lane(1, facts={"settings": other})]
    finding = one(lanes)
    assert finding.severity is Severity.ERROR
    assert "weight_decay of the optimizer is 0.01 on rank 1" in finding.message
    assert ["RNK001", 1] in finding.evidence["explains"]
    assert one([lane(0), lane(1, facts={"batch_size": 4})]).evidence["explains"] == []


def test_the_first_step_with_another_learning_rate():
    rates = np.where(np.arange(200) < 70, 0.01, 0.001)
    finding = one([lane(0, columns={"lr": rates}), lane(1)])
    assert finding.step == 70 and finding.evidence["values"] == ["0.001", "0.01"]


# ---------------------------------------------------------------------- RNK007


def test_the_rank_outside_of_the_collective_is_blamed():
    finding = one(hangs(IN_BACKWARD, ASLEEP))
    assert (finding.rank, finding.file, finding.line) == (1, "/a/data.py", 7)
    assert "rank 1 stands at data.py:7, while rank 0 waits" in finding.message
    assert "train.py:31" in finding.message
    assert finding.evidence["explains"] == [["RUN004", 0], ["RUN004", 1]]


def test_a_rank_in_another_collective_is_blamed():
    finding = one(hangs(IN_BACKWARD, IN_BARRIER))
    assert finding.rank == 1 and "in another collective" in finding.message
    assert finding.evidence["deadlock"] and not one(hangs(IN_BACKWARD, ASLEEP)).evidence["deadlock"]


def test_all_in_one_collective_blames_nobody():
    finding = one(hangs(IN_BARRIER, IN_BARRIER))
    assert finding.evidence["blamed"] == [] and "all ranks wait" in finding.message
    assert "another collective before" in finding.advice and "NCCL" not in finding.advice


def test_a_rank_that_computes_is_not_asked_what_it_waits_for():
    finding = one(hangs(IN_BACKWARD, ASLEEP | {"cpu": 1.0, "moves": True}))
    assert "is at work at data.py:7" in finding.message and "let all ranks" in finding.advice
    assert "waits for" in one(hangs(IN_BACKWARD, ASLEEP)).advice


def test_a_rank_that_has_ended_is_waited_for_for_ever():
    lanes = hangs(IN_BACKWARD)
    lanes.append(lane(1, events=[event(1, "end", 199, time=1.6e9, steps=200)]))
    finding = one(lanes)
    assert finding.evidence["gone"] == [1] and "rank 1 has ended" in finding.message
    assert finding.evidence["deadlock"]


def test_a_rank_that_computes_in_backward_does_not_wait():
    assert codes(hangs(IN_BACKWARD | {"cpu": 1.0}, ASLEEP)) == []


# ---------------------------------------------------------------------- RNK008


@pytest.mark.parametrize(
    ("first", "second", "lost"),
    [
        ({"signal": "SIGTERM"}, {"signal": "SIGKILL"}, 1),
        ({"signal": ""}, {"signal": "", "time": 1.7e9 - 2}, 1),
        ({"signal": "", "at": 1.7e9}, {"signal": "", "at": 1.7e9 - 0.1}, 1),
        ({"signal": ""}, {"signal": ""}, None),
    ],
)
def test_which_rank_was_killed_first(first, second, lost):
    lanes = [
        lane(rank, events=[event(rank, "died", 200, **data)])
        for rank, data in enumerate((first, second))
    ]
    findings = compare(lanes)
    assert [f.rank for f in findings] == ([] if lost is None else [lost])
    for finding in findings:
        # Who left by itself leaves no signal.
        assert ("killed by SIG" in finding.message) is bool(second["signal"])
        assert ("os._exit" in finding.advice) is not bool(second["signal"])


def test_a_rank_that_its_launcher_ended_was_not_the_first():
    """Others had raised before they were told to end, and one had not."""
    facts, ends = {"group": 3}, [{"at": 1.7e9}, {"at": 1.7e9 - 0.1}]
    lanes = [lane(r, facts=facts, events=[event(r, "died", 200, signal="", **ends[r])])
             for r in (0, 1)]  # fmt: skip
    raised = [event(2, "exception", 200, **PEER), event(2, "end", 199, steps=200)]
    lanes.append(lane(2, facts=facts, events=raised))
    assert one(lanes).evidence["lost"] == [1]


def test_an_error_of_its_own_is_no_lost_rank():
    raised = lane(1, events=[event(1, "exception", 200, type="KeyError", message="'cat'"),
                             event(1, "end", 199, steps=200)])  # fmt: skip
    killed = lane(0, events=[event(0, "died", 200, signal="SIGTERM")])
    assert codes([killed, raised]) == []


def test_a_run_that_was_asked_to_end_has_lost_nobody():
    lanes = FIRES["RNK008"]()
    asked = event(0, "signal", 200, time=1.7e9 - 9, name="SIGTERM")
    lanes[0] = lane(0, events=[*lanes[0].events[3:], asked])
    assert codes(lanes) == []
    # A launcher asks the others to end when it has lost one.
    later = event(0, "signal", 200, time=1.7e9 + 1, name="SIGTERM")
    lanes[0] = lane(0, events=[*lanes[0].events[3:4], later])
    assert codes(lanes) == ["RNK008"]


def test_who_ends_a_run_that_hangs_has_killed_no_rank():
    lanes = FIRES["RNK008"]()
    hang = event(0, "no_progress", 200, time=1.7e9 - 5, **ASLEEP)
    lanes[0] = lane(0, events=[*lanes[0].events[3:], hang])
    assert codes(lanes) == []
    again = event(0, "progress_again", 200, time=1.7e9 - 4, seconds=9.0)
    lanes[0] = lane(0, events=[*lanes[0].events[3:], again])
    assert codes(lanes) == ["RNK008"]


# ---------------------------------------------------------------------- lines


LOADER = {"loader": {"file": "src/train.py", "line": 12}}
OPTIMIZER = {"made": {"file": "src/train.py", "line": 20}}


def test_the_loader_is_named_where_the_data_is_to_blame():
    same = {"batch": lane(0).rows["batch"], "loss": 1.1 * lane(0).rows["loss"]}
    finding = one([lane(0, facts=LOADER), lane(1, facts=LOADER, columns=same)])
    assert (finding.code, finding.line) == ("RNK004", 12) and "train.py:12" in finding.message
    ends = [[event(r, "pass_ends", 42 - 2 * r, number=1, samples=8)] for r in (0, 1)]
    finding = one([lane(r, facts=LOADER, events=ends[r]) for r in (0, 1)])
    assert (finding.code, finding.file, finding.line) == ("RNK005", "src/train.py", 12)
    finding = one([lane(0, facts=LOADER), lane(1, facts={**LOADER, "batch_size": 16})])
    assert (finding.code, finding.line) == ("RNK006", 12)


def test_the_optimizer_is_named_where_its_settings_differ():
    lanes = [lane(0, facts=OPTIMIZER), lane(1, facts=OPTIMIZER, columns={"lr": 0.02})]
    assert (one(lanes).code, one(lanes).line) == ("RNK006", 20)
    other = {**OPTIMIZER, "source": "ffff0000"}
    assert one([lane(0, facts=OPTIMIZER), lane(1, facts=other)]).line == 0


def test_the_part_of_the_model_that_is_never_used():
    parts = [{}, {}, {"file": "src/model.py", "line": 31}]
    facts = {"find_unused": True, "parts": parts}
    layers = np.array([[1, 1, np.nan]] * 4)
    finding = one([lane(rank, facts=facts, layers=layers) for rank in (0, 1)])
    assert (finding.code, finding.file, finding.line) == ("RNK003", "src/model.py", 31)


def test_the_line_that_calls_a_model_past_its_wrapper():
    given = look("look", [(57, 0.004, {"mark": "model", "direct": False}), (60, 0.009, {})])
    other = {"grad_norm": 5 + np.random.default_rng(3).random(200)}
    lanes = [
        lane(0, events=[timed(0, given)]),
        lane(1, weights=all_changed, columns=other, events=[timed(1, given)]),
    ]
    assert (one(lanes).code, one(lanes).line) == ("RNK001", 57)
    past = {59: {"calls": ["model.module.encode"]}}
    deep = {"mark": "model", "direct": False, "path": (57, 59, 31)}
    lanes[0] = lane(0, events=[timed(0, look("look", [(31, 0.004, deep)], sources=past))])
    assert one(lanes).line == 59, "the line that shows it, not the one that the time goes to"
    assert "gradients are not averaged" in one(lanes).message
    assert "not model.module" in one(lanes).advice
    averaged = [lanes[0], lane(1, weights=changed, events=[timed(1, given)])]
    assert one(averaged).line == 0


def test_names_of_ranks():
    assert named([0, 1]) == "ranks 0 and 1"
