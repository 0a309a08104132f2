"""Plain words: no coined ones among the names, and no class name that means two things."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from .sources import nodes

ROOT = Path(__file__).parents[2]
HOLDS = ("src", "models/src", "tests", "models/tests")

# What readers of the code met and did not know, each with what is said in its place.
COINED = {
    "stretch": "burst",
    "told": "reported",
    "told_to": "skip_ordered",
    "leave_out": "skip",
    "wild": "extreme",
    "spoilt": "bad_buffers, bad_values",
    "landing": "pinned_row",
    "ledger": "what it holds: loader_batches, read_times",
    "spared": "torch_time_saved",
    "whole_norms": "sharded_norms",
    "early_norms": "norms_before_clip",
    "armed_skip": "pending_skip",
    "dice": "rng_state",
    "mine": "own",
    "hasty": "blocks_training",
    "troubles": "open_incidents",
    "going_back": "restore_older",
    "judging": "rollback_decision",
    "rescue_words": "action_words",
    "deeds": "actions_taken",
    "echoes": "consequences",
    "joints": "resume_points",
    "blow": "failure",
    "pulse": "ring_progress",
    "feel": "check_progress",
    "exam": "profile, rerun",
    "census": "value_sizes",
    "birth": "first_bad_op",
    "too_big": "out_of_memory",
    "tensors_pile_up": "tensor_leak",
    "graph_kept": "graph_leak",
    "host_growth": "object_leak",
    "worker_growth": "worker_leak",
}

# Class names of more than one room, and why that is no second meaning.
SHARED = {
    "DataSettings": "a section of settings: which data",
    "Evaluation": "numbers of the held-out data of a family",
    "Loaded": "a run of a family, loaded",
    "ModelSettings": "a section of settings: the size of the model",
    "Note": "something that happened, recorded and handed on to trackers",
    "Objective": "loss and measures of a run of a family",
    "Options": "thresholds of a detector",
    "Output": "what the model of a family gives back",
    "Progress": "how far something has come",
    "SwallowedException": "an event and the finding that it becomes",
    "Training": "what a room needs of the training in this process",
    "Verification": "how far an exported file is from the model",
}


@cache
def words_of(name: str) -> str:
    """``_StepPlan_of`` as ``_step_plan_of_``."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return f"_{snake.strip('_')}_"


def names_in(source: str) -> Iterator[tuple[str, int]]:
    """Names that a source gives or uses, with their lines; those of tests are sentences."""
    for node in nodes(source):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                if not name.startswith("test_"):
                    yield name, line
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name, line
            case _:
                pass


@pytest.mark.parametrize("folder", HOLDS)
def test_no_name_is_a_coined_word(folder: str) -> None:
    found: list[str] = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        place = path.relative_to(ROOT)
        names = {(path.stem, 0), *names_in(path.read_text())}
        for name, line in names:
            for coined, plain in COINED.items():
                if f"_{coined}_" in words_of(name):
                    found.append(f"{place}:{line}: {name}: say {plain}")
    assert found == []


def test_a_coined_word_is_seen() -> None:
    names = [name for name, _ in names_in("def f(stretch): self.LoaderExam = going_back_to")]
    seen = [n for n in names if any(f"_{coined}_" in words_of(n) for coined in COINED)]
    assert sorted(seen) == ["LoaderExam", "going_back_to", "stretch"]


def test_a_class_name_means_one_thing() -> None:
    rooms: dict[str, set[str]] = {}
    for folder in HOLDS[:2]:
        for path in sorted((ROOT / folder).rglob("*.py")):
            room = path.relative_to(ROOT / folder).parts[1]
            for node in nodes(path.read_text()):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    rooms.setdefault(node.name, set()).add(f"{folder}/{room}")
    several = {name for name, found in rooms.items() if len(found) > 1}
    assert several == set(SHARED)
