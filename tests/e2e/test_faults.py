"""Every fault of the package and two collections of the corpus, under holdfast as a user's own.

All are run in the background from the beginning of the session; each test asks for its own.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import faults
from holdfast.detectors import by_code
from holdfast.report import replay, summarize
from holdfast.types import Event, Finding, Severity

from .conftest import Bench, Outcome, Record, Runner


def constant(path: Path, name: str) -> Any:
    """A constant of a script, read without running it."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{path.name} has no {name}")


def options_of(path: Path) -> tuple[str, ...]:
    """What ``holdfast run`` is given for a script of the catalogue."""
    try:
        return constant(path, "OPTIONS")
    except LookupError:
        return ()


CATALOGUE = {name: Path(faults.__file__).parent / f"{name}.py" for name in faults.ALL}
# Faults of memory and time are found by the clock of a real run; one is part of every test run.
OVER_TIME = {n for n, p in CATALOGUE.items() if constant(p, "CODE")[:3] in ("MEM", "TPT")}
# Those of several ranks start two processes; one of them is part of every test run.
OF_RANKS = {n for n, p in CATALOGUE.items() if constant(p, "CODE").startswith("RNK")}
LONG = OVER_TIME - {"graph_leak"} | OF_RANKS - {"same_data"}
CORPUS = Path(__file__).parents[2] / "corpus"
# Those with a header were written for this test; the others have a test of their own.
FAULTY = {
    path.stem: path
    for path in sorted((CORPUS / "2026-11-15-numbers").glob("*.py"))
    if "\n# poisoned-steps: " in path.read_text()
}
HEALTHY = {path.stem: path for path in sorted((CORPUS / "2026-11-15-ordinary").glob("*.py"))}


def sampled(group: str, names: list[str]) -> list[Any]:
    """Every sixth in each test run, all in ``make prove``."""
    return [
        pytest.param(name, id=f"{group}-{name}", marks=pytest.mark.slow if i % 6 else [])
        for i, name in enumerate(names)
    ]


# Where there was never a good state, or the script's own scaler skips already.
BEYOND_SAVING = ("nonfinite_parameter", "scaler_collapse")
# Ends with an error, with holdfast or without.
FATAL = ("out_of_memory", "crash", "uneven_batches", "rank_lost")


@dataclass
class Ran:
    """A script that was run under holdfast."""

    guarded: Outcome
    record: Record | None
    findings: tuple[Finding, ...]
    plain: Outcome | None = None

    def events(self, kind: str) -> list[Event]:
        lanes = [] if self.record is None else self.record.lanes
        return [e for lane in lanes if self.record for e in self.record.events(kind, lane)]

    @property
    def skipped(self) -> list[int]:
        lanes = [] if self.record is None else self.record.lanes
        return [s for lane in lanes if self.record for s in self.record.skipped(lane)]


def job(script: Path, *, plain: bool = False) -> Any:
    def run(folder: Path) -> Ran:
        folder.mkdir(parents=True)
        bench = Bench(folder)
        name = bench.link(script)
        guarded = bench.guarded(name, options=("--quiet", *options_of(script)))
        alone = bench.plain(name) if plain else None
        # A script that never trains leaves nothing to read.
        record = bench.record if bench.path.exists() else None
        findings = summarize(record.run).findings if record is not None else ()
        return Ran(guarded, record, findings, alone)

    return run


def start(corpus: Runner, case: str) -> None:
    """Run the script of a test ahead of it; called when the session begins."""
    group, _, name = case.partition("-")
    script = {"fault": CATALOGUE, "faulty": FAULTY, "healthy": HEALTHY}[group][name]
    corpus.submit(case, job(script, plain=group == "healthy"))


def header(path: Path, name: str) -> str:
    """A line of the script's header, such as ``# expect: NUM001``."""
    found = re.search(rf"^# {name}: (.*)$", path.read_text(), re.MULTILINE)
    assert found is not None, f"{path.name} has no {name}"
    return found[1].strip()


def final_loss(outcome: Outcome) -> float:
    found = re.findall(r"^final loss:? +(\S+)", outcome.text, re.MULTILINE)
    assert found, f"no final loss in {outcome.text[-500:]!r}"
    return float(found[-1])


def seen_at(finding: Finding, step: int) -> None:
    """The fault is first seen where it first is; a scaler that falls is seen on its way.

    Whether weights are damaged is known some steps later.
    """
    if finding.code == "NUM006":
        assert finding.evidence["streak_start"] <= finding.step <= step
    elif finding.code[:3] in ("TPT", "RNK"):  # when it is seen depends on how busy the machine is
        assert step <= finding.step
    elif finding.action == "rollback" or finding.code.startswith("MEM"):
        assert step <= finding.step <= step + by_code(finding.code).within
    else:
        assert finding.step == step


def judged_again(ran: Ran) -> None:
    """What ``holdfast check`` says of the recording is what was said while it ran."""
    assert ran.record is not None
    again = replay(ran.record.run)
    assert not again.errors
    said = [(f.code, f.severity, f.step, f.file, f.line, f.message) for f in ran.findings]
    assert [(f.code, f.severity, f.step, f.file, f.line, f.message) for f in again.findings] == said


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=f"fault-{name}", marks=[pytest.mark.slow] * (name in LONG))
        for name in CATALOGUE
    ],
)
def test_a_fault_of_the_catalogue(corpus: Runner, name: str):
    ran: Ran = corpus.result(f"fault-{name}")
    assert ran.guarded.code == (name in FATAL), ran.guarded.reported
    assert ran.findings, "nothing was found"
    judged_again(ran)
    first = ran.findings[0]
    assert first.code == constant(CATALOGUE[name], "CODE")
    seen_at(first, constant(CATALOGUE[name], "FIRST_STEP"))
    assert ran.events("holdfast_error") == []
    if name not in BEYOND_SAVING + FATAL and name not in OVER_TIME:
        assert math.isfinite(final_loss(ran.guarded))


@pytest.mark.parametrize("name", sampled("faulty", list(FAULTY)))
def test_a_faulty_script(corpus: Runner, name: str):
    """``expect`` is the code that comes first; ``none-saved`` where no step can be saved."""
    ran: Ran = corpus.result(f"faulty-{name}")
    path = FAULTY[name]
    assert ran.guarded.code == 0, ran.guarded.reported
    poisoned = ast.literal_eval(header(path, "poisoned-steps"))
    assert ran.findings, "nothing was found"
    first = ran.findings[0]
    assert first.code == header(path, "category")
    seen_at(first, poisoned[0])
    # Where a step cannot be skipped, the losses of weights that it has ruined are their finding's.
    assert max(finding.last_step for finding in ran.findings) >= poisoned[-1]
    assert ran.events("holdfast_error") == []
    if header(path, "expect") == "none-saved":
        return
    assert first.code == header(path, "expect")
    if ran.events("not_covered"):
        assert ran.skipped == []
        return
    assert math.isfinite(final_loss(ran.guarded))
    # A buffer may go bad while loss and gradients are fine: then there is nothing to leave out.
    assert ran.skipped == ([] if first.code == "NUM004" else poisoned)


def loud(ran: Ran) -> list[Finding]:
    return [finding for finding in ran.findings if finding.severity > Severity.INFO]


@pytest.mark.parametrize("name", sampled("healthy", list(HEALTHY)))
def test_a_healthy_script(corpus: Runner, name: str):
    """No finding, no skipped step, and not one byte that plain python would not have written."""
    ran: Ran = corpus.result(f"healthy-{name}")
    assert ran.plain is not None
    assert (ran.guarded.code, ran.guarded.out) == (ran.plain.code, ran.plain.out)
    assert ran.guarded.err == ran.plain.err
    # Whether time is lost is judged on a machine that has it: by all of them, in ``make prove``.
    assert [f.message for f in loud(ran) if f.code[:3] != "TPT"] == []
    assert ran.skipped == []
    assert ran.events("holdfast_error") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, id=f"healthy-{name}") for name in HEALTHY])
def test_a_healthy_script_loses_no_time(corpus: Runner, name: str):
    ran: Ran = corpus.result(f"healthy-{name}")
    assert [f.message for f in loud(ran) if f.code[:3] == "TPT"] == []
