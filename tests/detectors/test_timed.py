"""Lost time: what is claimed of recorded lines, when it is believed, and how bad it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.line_events import (
    called,
    compiled,
    fetches,
    loader,
    look,
    reads,
    slower,
    stalls,
    waits,
)
from tests.memory_events import CHAIN

from holdfast.detectors._line_examples import Cost
from holdfast.detectors.judge import Judge
from holdfast.types import Event, Finding, Severity

Reported = tuple[str, dict[str, Any]]
WARNING, INFO = Severity.WARNING, Severity.INFO


def findings(make_rows, *events: Reported, rows: int = 40, whole: bool = True) -> list[Finding]:
    """What the judge makes of events on steps 9, 10, ...; all at once, or row by row."""
    table = make_rows(rows)
    reported = [
        Event(time=float(table["time"][9 + i]), rank=0, step=9 + i, kind=kind, data=data)
        for i, (kind, data) in enumerate(json.loads(json.dumps(events)))
    ]
    judge = Judge()
    if whole:
        judge.feed(table, reported)
    else:
        for i in range(len(table)):
            judge.feed(table[i : i + 1], [e for e in reported if e.step == i])
    judge.close()
    assert judge.errors == []
    return judge.findings


def trained_by_a_framework() -> Reported:
    """Line 52 hands over to it; the model is called by line 30, of a function of the user's."""
    inside = (30, 0.0005, {"path": (52, 30), "mark": "model", "direct": False})
    return look("look", [(52, 0.004, {"hits": 1.0}), inside])


def made_in_loop(seconds: float = 0.004, rest: float = 0.0005) -> Reported:
    models = [called(55, rest, "model"), called(57, rest, "optimizer")]
    return look("look", [(52, seconds, {"hits": 500.0}), *models])


EVERY: dict[str, tuple[Reported, ...]] = {
    "TPT001": (waits(),),
    "TPT002": (reads(),),
    "TPT003": (compiled(),),
    "TPT004": (slower(),),
    "TPT005": (stalls(),),
}


@pytest.mark.parametrize(
    ("events", "code", "severity"),
    [
        ((waits(),), "TPT001", WARNING),
        ((waits(batch=100),), "TPT001", INFO),
        ((waits(times={"seconds": 0.6}),), "TPT001", INFO),  # over in less than a second
        ((waits(waiting=0.2),), "TPT001", INFO),
        ((waits(rare=True),), "TPT001", WARNING),
        ((waits(caches=True, passes=2),), "TPT001", WARNING),
        ((loader(),), "TPT001", WARNING),
        ((made_in_loop(), made_in_loop()), "TPT001", WARNING),
        ((made_in_loop(seconds=0.0021, rest=0.0016),) * 2, "TPT001", INFO),
        ((reads(),), "TPT002", WARNING),
        ((reads(direct=False, seconds=0.0009),), "TPT002", WARNING),  # they wait themselves
        ((compiled(),), "TPT003", WARNING),
        ((compiled(same=1, times=6),), "TPT003", WARNING),
        ((slower(), slower()), "TPT004", WARNING),
        ((stalls(),), "TPT005", WARNING),
        ((stalls(times={"typical": 0.02}),), "TPT005", INFO),
    ],
)
def test_how_bad_it_is(make_rows, events, code, severity):
    for whole in (True, False):
        (finding,) = findings(make_rows, *events, whole=whole)
        assert (finding.code, finding.severity) == (code, severity)
        assert finding.file == "src/train.py" and f"train.py:{finding.line} " in finding.message
        assert "as it was" not in finding.advice


@pytest.mark.parametrize(
    "events",
    [
        (made_in_loop(),),  # once is chance
        (slower(),),
        (made_in_loop(seconds=0.0001), made_in_loop(seconds=0.0001)),
        (trained_by_a_framework(), trained_by_a_framework()),  # its own work is no batch
        (waits(caches=True),),  # a first pass fills a cache
        (waits(times={"seconds": 0.0001}),),  # not worth a word yet
        (reads(count=8),),
        (reads(loop_seconds=0.0001, seconds=0.0),),
        (reads(direct=False),),  # a library reads in a line that trains
        (reads(count=24, loop_seconds=0.069),),  # 3 ms for each: the loop does something else
        (compiled(same=2, times=5),),
        (stalls(stalls=[]),),
        (loader(samples=0, lines=[]),),  # the workers may yet tell
    ],
)
def test_what_is_not_said(make_rows, events):
    assert findings(make_rows, *events, rows=20) == []


@pytest.mark.parametrize("code", EVERY)
def test_an_event_without_a_key_is_reported_and_one_of_earlier_versions_is_read(make_rows, code):
    ((kind, data),) = EVERY[code]
    for missing in data:
        rest = {key: value for key, value in data.items() if key != missing}
        judge = Judge()
        judge.feed(make_rows(40), [Event(time=0.0, rank=0, step=9, kind=kind, data=rest)])
        judge.close()
        reported = [error.data for error in judge.errors]
        if missing in _LATER[kind]:
            assert reported == []
            continue
        ((where, error),) = [(each["where"], each["error"]) for each in reported]
        assert where == f"reading an event {kind}"
        assert error == f"RecordError: {kind}: no key {missing!r}"
        assert judge.findings == []


# Keys that events of earlier versions lack, or that say something of some events only.
_LATER = {
    "line_times": {
        "source", "cores", "ranks", "baseline", "stalls", "feeds", "registering", "history",
    },
    "tensor_reads": {"source"},
    "recompile": {"excerpt", "trained"},
}  # fmt: skip


def test_kinds_of_earlier_versions_say_nothing(make_rows):
    old = ("input_bound", {"file": "a.py", "line": 3, "what": "dataset"})
    assert findings(make_rows, ("stall", {"what": "log"}), old) == []


def test_it_is_said_when_it_has_cost_enough(make_rows):
    # 0.6 of the time is lost: 0.15 seconds in a quarter of a second, of which 0.1 have passed.
    said = [
        findings(make_rows, waits(times={"seconds": 0.1}), whole=whole) for whole in (True, False)
    ]
    assert said[0] == said[1]
    ((finding,), _) = said
    assert finding.step == 9 + 15 and finding.evidence["lost"] == 0.15


def test_a_wait_becomes_a_warning_when_it_has_cost_a_second(make_rows):
    # 0.6 of the time is lost: a second of it after 1.67 seconds, of which 1.5 have passed.
    for whole in (True, False):
        (finding,) = findings(make_rows, waits(times={"seconds": 1.5}), rows=60, whole=whole)
        assert finding.severity is WARNING
        (finding,) = findings(make_rows, waits(times={"seconds": 1.5}), rows=20, whole=whole)
        assert finding.severity is INFO


def test_the_same_line_is_one_finding_and_another_is_another(make_rows):
    other = look(
        "stall", [(58, 0.02, {}), (52, 0.002, {})], [(52, 0.002, {})],
        sources={58: {"calls": ["gc.collect"]}}, stalls=[[10, 0.02, False], [15, 0.02, False]],
    )  # fmt: skip
    found = findings(make_rows, stalls(), stalls(), other)
    assert sorted((f.line, f.evidence["count"]) for f in found) == [(57, 1), (58, 1)]


def test_what_turns_out_to_be_worse_is_said_again(make_rows):
    mild = stalls(times={"typical": 0.02})
    for whole in (True, False):
        (finding,) = findings(make_rows, mild, stalls(), mild, stalls(), whole=whole)
        assert (finding.severity, finding.evidence["count"]) == (WARNING, 2)


def test_a_stall_at_a_line_that_has_grown_follows_from_it(make_rows):
    found = findings(make_rows, stalls(), slower(), slower())
    assert [f.code for f in found] == ["TPT004", "TPT005"]


# ---------------------------------------------------------------------- input


def test_the_slow_sample_is_in_the_advice(make_rows):
    slow = loader(slowest=("407", 0.02), samples=5, rare=True, may_fetch=True)
    (finding,) = findings(make_rows, slow)
    assert "407" in finding.advice and "few samples" in finding.message
    even = loader(slowest=("407", 0.005), samples=5, rare=True, may_fetch=True)
    assert findings(make_rows, even) == []


@pytest.mark.parametrize(
    ("event", "cure"), [(waits, "large enough for all"), (loader, "persistent")]
)
def test_a_cache_that_is_lost_has_its_own_cure(make_rows, event, cure):
    kind, data = event(passes=2)
    for line in data["lines"] if kind == "loader_times" else data["now"]["lines"]:
        line["cache"] = 0
    (finding,) = findings(make_rows, (kind, data))
    assert cure in finding.advice and "misses on every pass" in finding.message


def test_a_loader_without_a_line_that_stands_out(make_rows):
    even = [fetches(line, 0.0008) for line in range(1, 8)]
    asks = called(50, 0.0001, "fetch")
    long = {"waiting": 0.6, "last_block": 0.01, "seconds": 6.0}
    many = look("waits", [*even, asks], times=long)
    (finding,) = findings(make_rows, many)
    assert finding.severity is INFO and "no line of yours" in finding.advice
    assert findings(make_rows, look("waits", [*even, asks], times=long | {"seconds": 4.0})) == []
    short = look("waits", [*even, asks], times={"waiting": 0.6, "last_block": 0.002})
    assert findings(make_rows, short) == []


def test_more_workers_are_advised_only_with_evidence_that_they_help(make_rows):
    def said(made: float | None, cores: int, **more: Any) -> str:
        (finding,) = findings(make_rows, *[loader(made=made, cores=cores, **more)] * 2)
        return finding.advice

    assert "raise num_workers from 2 to 4" in said(0.016, 8)
    assert "raise num_workers from 2 to 3" in said(0.016, 4)
    assert "workers" not in said(0.016, 3)  # no core for a third beside the loop
    assert "workers" not in said(0.004, 8)  # they are idle for most of their time
    assert "workers" not in said(None, 8)
    assert "workers" not in said(None, 8, samples=0, lines=[])
    # The loop waits 3 ms for a batch that is made in 1: handing it over is what takes time.
    for more in ({}, {"samples": 0, "lines": []}):
        assert "num_workers=0" in said(0.001, 8, **more)


def test_workers_are_advised_where_a_batch_takes_longer_to_make_than_to_hand_over(make_rows):
    def said(line_seconds: float, cores: int, **more: Any) -> str:
        times = {"last_block": line_seconds / 0.6, "typical": line_seconds / 0.6}
        (finding,) = findings(make_rows, waits(line_seconds, cores=cores, times=times, **more))
        return finding.advice

    assert "num_workers=2" in said(0.0036, 8) and "num_workers=1" in said(0.0036, 2)
    assert "num_workers" not in said(0.0012, 8) and "num_workers" not in said(0.0036, 1)
    assert "num_workers" not in said(0.0036, 0)  # recorded before cores were
    # Of a line that takes microseconds a sample nothing can be prepared in advance.
    assert "BatchSampler" in said(0.0012, 8, batch=100)


def test_workers_that_nobody_has_seen(make_rows):
    unseen = loader(samples=0, lines=[])
    (finding,) = findings(make_rows, unseen, unseen)
    assert "--fetch-samples" in finding.advice and finding.line == 50
    assert findings(make_rows, *[loader(samples=0, lines=[], may_fetch=True)] * 2) == []


# ---------------------------------------------------------------------- reads, recompilations


def test_reads_that_belong_to_calls_of_the_model_are_none(make_rows):
    kind, data = reads()
    assert findings(make_rows, (kind, data | {"models": 64.0})) == []


@pytest.mark.parametrize(
    ("guard", "words"),
    [
        ("tensor 'x' size mismatch at index 0. expected 16, actual 17", "dynamic=True"),
        ("L['x'].size()[0] == 16", "dynamic=True"),
        ("k == 3", "torch.tensor(value)"),
        ("s.window_size == 3", "torch.tensor(value)"),
        ("len(parts) == 3", "number of items"),
        ("tensor 'v' requires_grad mismatch. expected requires_grad=0", "alike"),
        ("KeyError on d['extra2']", "same keys"),
        ("name == 'step2'", "a text is compiled in"),
        ("self.training == True", "switch"),
        ("___check_obj_id(L['act'], 139)", "same object"),
        ("something else", "keep what this guard asks for the same"),
    ],
)
def test_the_guard_says_what_to_do(make_rows, guard, words):
    (finding,) = findings(make_rows, compiled(guard=guard))
    assert words in finding.advice
    assert ("torch.tensor" in words) is ("torch.tensor" in finding.advice)


# ---------------------------------------------------------------------- slower steps


def kinds(make_rows, *events: Reported) -> list[str]:
    return [f.evidence["what"] for f in findings(make_rows, *events) if f.code == "TPT004"]


def test_a_line_that_only_the_clock_accuses_must_be_seen_twice(make_rows):
    once = slower()
    assert kinds(make_rows, once) == []
    assert kinds(make_rows, once, once) == ["work"]
    # Another process takes time and gives no more to do.
    idle = slower(0.0012, times={"busier": False})
    assert kinds(make_rows, idle, idle) == []


def test_all_lines_slower_is_no_slow_down(make_rows):
    before = [(line, 0.0005, {}) for line in (52, 53, 54, 57)]
    now = [(line, 0.0015, {}) for line in (52, 53, 54, 57)]
    assert kinds(make_rows, *[look("slow", now, before)] * 2) == []


def test_a_line_that_does_all_of_a_step_is_no_slow_down_with_it(make_rows):
    # Which of its parts takes most is chance, at the beginning and now.
    before = [called(57, 0.0011, "optimizer"), (57, 0.0010, {}), called(57, 0.0004, "model")]
    now = [(57, 0.0022, {}), called(57, 0.0021, "optimizer"), called(57, 0.0008, "model")]
    assert kinds(make_rows, *[look("slow", now, before)] * 2) == []
    grown = [called(57, 0.0010, "optimizer"), (57, 0.0061, {}), called(57, 0.0004, "model")]
    assert kinds(make_rows, *[look("slow", grown, before)] * 2) == ["work"]


@pytest.mark.parametrize(("retries", "what"), [(9, "retries"), (3, "work")])
def test_a_line_is_slow_because_the_allocator_runs_out(make_rows, retries, what):
    counted = {"counts": {"retries": 1}, "counted": {"retries": retries}}
    slow = slower(**counted)
    assert kinds(make_rows, slow, slow) == [what]
    assert {f.line for f in findings(make_rows, slow, slow)} == {57}


def test_what_is_registered_again_and_again(make_rows):
    before = [called(52, 0.0005, "model"), called(53, 0.0005, "backward")]
    now = [called(52, 0.002, "model"), called(53, 0.002, "backward")]

    def event(was: Mapping[str, float], there: Mapping[str, float]) -> Reported:
        return look("slow", now, before, counts=was, counted=there, registering=(20, 58))

    first = event({"registered": 12}, {"registered": 21, "registered_before": 12})
    again = event({"registered": 12}, {"registered": 30, "registered_before": 21})
    (finding,) = findings(make_rows, first, again)
    # The one in the loop itself.
    assert (finding.evidence["what"], finding.line) == ("hooks", 58)
    # A model that has grown has new parameters, and one that has not has nothing new.
    more = {"registered": 21, "parameters": 6}
    grown = event({"registered": 12, "parameters": 4}, more)
    assert "hooks" not in kinds(make_rows, grown, grown)
    assert "hooks" not in kinds(make_rows, event({"registered": 12}, {"registered": 12}))
    # Nor is what is registered once, some time after the beginning.
    once = event({"registered": 12}, {"registered": 21, "registered_before": 21})
    assert "hooks" not in kinds(make_rows, first, once, once)


@pytest.mark.parametrize(("now", "what"), [(32.0, "bigger_batches"), (17.0, "work")])
def test_what_is_meant_to_grow_is_information(make_rows, now, what):
    slow = slower(counts={"per_model": 16.0}, counted={"per_model": now})
    (finding,) = findings(make_rows, slow, slow)
    assert finding.evidence["what"] == what
    assert finding.severity is (WARNING if what == "work" else INFO)


@pytest.mark.parametrize(
    ("mark", "before", "now", "what"),
    [
        ("backward", {}, {}, []),
        ("optimizer", {"parameters": 4}, {"parameters": 8}, ["more_parameters"]),
        ("model", {}, {}, []),
    ],
)
def test_a_library_is_slower_for_a_reason_or_by_itself(make_rows, mark, before, now, what):
    rest = called(52, 0.0015, "")
    lines = [called(53, 0.0035, mark), rest], [called(53, 0.0005, mark), rest]
    assert kinds(make_rows, *[look("slow", *lines, counts=before, counted=now)] * 2) == what


def test_a_longer_backward_pass_reaches_back_only_where_something_holds_old_graphs(make_rows):
    """A rollout that is longer every time makes it slower, too."""
    rest = called(52, 0.0015, "")
    longer = look(
        "slow", [called(53, 0.0035, "backward"), rest], [called(53, 0.0005, "backward"), rest]
    )
    chain = (CHAIN.kind, CHAIN.to_dict())
    assert kinds(make_rows, longer, longer) == []
    assert kinds(make_rows, chain, longer, longer) == ["graph"]


def test_another_process_that_takes_the_processor_slows_no_line_down(make_rows):
    assert kinds(make_rows, *[slower(counted={"delayed": 0.001})] * 2) == ["work"]
    assert kinds(make_rows, *[slower(counted={"delayed": 0.002})] * 2) == []
    both = {"delayed": 0.002}
    assert kinds(make_rows, *[slower(counts=both, counted=both)] * 2) == ["work"]


def test_a_line_that_waits_is_not_told_to_do_less(make_rows):
    waits = slower(0.02, times={"busier": False})
    (finding,) = findings(make_rows, waits, waits)
    assert finding.evidence["what"] == "wait" and "waits for" in finding.advice


@pytest.mark.parametrize("history", ["losses", ""])
def test_the_history_that_is_processed_is_named_or_not_claimed(make_rows, history):
    (finding,) = findings(make_rows, *[slower(history={57: history} if history else {})] * 2)
    assert ("all of losses" in finding.advice) is bool(history)
    assert "history" not in finding.advice


# ---------------------------------------------------------------------- stalls


def stall_on(*lines: Cost, epochs: bool = False, **more: Any) -> Reported:
    steps = [[step, 0.02, epochs] for step in range(10, 60, 5)]
    ordinary = [(52, 0.002, {}), called(53, 0.001, "model"), called(54, 0.001, "optimizer")]
    return look("stall", [*lines, *ordinary], ordinary, stalls=steps, **more)


def test_what_is_done_by_name(make_rows):
    work = (30, 0.02, {"path": (57, 30), "function": "saveBest"})
    (finding,) = findings(make_rows, stall_on(work))
    assert finding.evidence["what"] == "checkpoint" and finding.line == 30


@pytest.mark.parametrize(
    ("source", "function", "what"),
    [
        ({"calls": ["f.write"]}, "main", "log"),
        ({"calls": ["open"], "code": 'with open(path, "a") as out:'}, "main", "log"),
        ({"calls": ["wandb.log"]}, "main", "log"),
        ({"calls": ["plt.hist"]}, "main", "plot"),
        ({"calls": ["gc.collect"]}, "main", "gc"),
        ({"calls": ["copy.deepcopy", "model.state_dict"]}, "main", "checkpoint"),
        # Names of a kind, and nothing else of it.
        ({"calls": ["memory.write"]}, "main", "work"),
        ({"calls": ["open"], "code": 'with open(path, "rb") as data:'}, "main", "work"),
        ({"calls": ["p.log"]}, "main", "work"),
        ({"calls": ["zeros.scatter"]}, "main", "work"),
        ({"calls": ["collector.collect"]}, "main", "work"),
        ({"calls": ["target.load_state_dict", "online.state_dict"]}, "main", "work"),
        ({"calls": ["copy.deepcopy"]}, "main", "work"),
        ({}, "value_backup", "work"),
        ({}, "draw_samples", "work"),
        ({}, "log_likelihood", "work"),
        ({}, "mine_valid_negatives", "work"),
    ],
)
def test_a_name_alone_does_not_say_what_is_done(make_rows, source, function, what):
    work = (30, 0.02, {"path": (57, 30), "function": function})
    (finding,) = findings(make_rows, stall_on(work, sources={30: source}))
    assert finding.evidence["what"] == what
    assert ("other work" in finding.message) is (what == "work")


def test_what_training_goes_on_with_is_no_fault(make_rows):
    work = (30, 0.02, {"path": (57, 30), "function": "mine_valid_negatives"})
    (finding,) = findings(make_rows, stall_on(work, feeds=[57]))
    assert (finding.evidence["what"], finding.severity) == ("training", INFO)
    assert "goes on with" in finding.message


def test_an_evaluation_by_name_that_calls_models_is_one(make_rows):
    work = (30, 0.011, {"path": (57, 30), "function": "validate"})
    inside = (31, 0.009, {"path": (57, 31), "mark": "model", "direct": False})
    (finding,) = findings(make_rows, stall_on(work, inside))
    assert finding.evidence["what"] == "evaluation"


def test_two_lines_of_one_stall_are_one_finding(make_rows):
    saves = [stall_on((line, 0.02, {"path": (57, line), "function": "save"})) for line in (30, 31)]
    (finding,) = findings(make_rows, *saves)
    assert finding.line == 30


def test_work_of_no_known_kind_must_be_seen_twice(make_rows):
    work = stall_on((57, 0.02, {}))
    assert findings(make_rows, work) == []
    (finding,) = findings(make_rows, work, work)
    assert finding.evidence["what"] == "work" and finding.evidence["every"] == 5


def test_a_validation_is_made_of_what_training_is_made_of(make_rows):
    (finding,) = findings(make_rows, stall_on(called(58, 0.02, "model")))
    assert (finding.evidence["what"], finding.line) == ("evaluation", 58)
    # Another part of the training, and what everybody does between epochs.
    trains = stall_on(called(58, 0.02, "model"), called(59, 0.001, "backward"))
    assert findings(make_rows, trains) == []
    assert findings(make_rows, stall_on(called(65, 0.02, "model"), epochs=True)) == []


def test_a_function_that_a_framework_calls_now_and_then(make_rows):
    inside = (30, 0.02, {"path": (52, 30), "mark": "model", "direct": False})
    (finding,) = findings(make_rows, stall_on(inside))
    assert (finding.evidence["what"], finding.line) == ("evaluation", 30)


def test_a_timed_step_that_is_shorter_than_the_stalls_explains_none_of_them(make_rows):
    # A policy that acts on some steps costs a millisecond; another process took the twenty that
    # the stalls are long.
    assert findings(make_rows, stall_on(called(58, 0.001, "model"))) == []


def test_what_is_done_as_often_on_other_steps_is_no_stall(make_rows):
    each = {"hits": 40.0}
    steady = look(
        "stall", [(57, 0.02, each)], [(57, 0.002, each)], stalls=[[10, 0.02, False]] * 3
    )  # fmt: skip
    assert findings(make_rows, steady, steady) == []


def test_a_longer_episode_is_no_stall(make_rows):
    # More turns of what every step does, one of them slow because of another process.
    longer = look(
        "stall", [(57, 0.02, {"hits": 43.0})], [(57, 0.0006, {"hits": 17.0})],
        stalls=[[10, 0.02, False]] * 3,
    )  # fmt: skip
    assert findings(make_rows, longer, longer) == []


def test_a_logarithm_is_no_log(make_rows):
    source = {57: {"calls": ["saved.append", "m.log_prob", "torch.log"]}}
    (finding,) = findings(make_rows, *[stall_on((57, 0.02, {}), sources=source)] * 2)
    assert finding.evidence["what"] == "work"


def test_nothing_depends_on_how_rows_arrive(make_rows):
    events = [waits(), slower(), stalls(), slower(), reads(), compiled()]
    whole, single = (findings(make_rows, *events, whole=whole) for whole in (True, False))
    assert whole == single and len(whole) == 5
    assert len({f.code for f in whole}) == 5 and np.all([f.severity for f in whole])
