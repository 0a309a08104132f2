"""The catalogue: every fault and every healthy script there is, with what is true about it.

Modules of this folder and scripts in ``seen`` and ``seen_healthy`` were written together with the
detectors: the seen half. Scripts below ``wild`` were written by someone who had not seen them, and
are never changed after a failure: the unseen half. What is true about the scripts of a folder
stands in its ``answers.json``, a list of objects:

    script      file in this folder; everything else there is a helper of some script
    code        code of the fault, or ``category``, one of ``CATEGORIES``; neither: it is healthy
    also_codes  codes that would be as right
    line, also  the line a good reviewer points to, and those that are as right
    file        the file of these lines, when it is not the script
    also_other_file   pairs of file and line that are as right
    first_step  optimizer step (from 0) from which on the fault is there
    why         one sentence
"""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError

HERE = Path(__file__).parent
_ON_A_GPU = ("fragmentation",)  # shows nothing elsewhere
ANSWERS = "answers.json"
HALVES = ("seen", "unseen")

CATEGORIES = {
    "tensors_pile_up": "MEM001",
    "graph_kept": "MEM002",
    "state_not_detached": "MEM003",
    "eval_with_graph": "MEM004",
    "host_growth": "MEM005",
    "worker_growth": "MEM006",
    "input_bound": "TPT001",
    "host_sync": "TPT002",
    "recompile": "TPT003",
    "slow_down": "TPT004",
    "stall": "TPT005",
}
"""What writers who have not seen our codes call a fault."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One script of the catalogue, and what is true about it."""

    name: str
    """``nonfinite_loss`` for a module, ``memory/ticket_router`` for a script of a folder."""
    half: str
    path: Path
    codes: tuple[str, ...] = ()
    """The code of its fault, then those that are as right; empty when it is healthy."""
    places: tuple[tuple[str, int], ...] = ()
    """File name and line of the fault, all equally exact; empty when no line is given."""
    first_step: int = 0
    why: str = ""

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to find."""
        return not self.codes

    @property
    def group(self) -> str:
        """The folder; empty for a module."""
        return self.name.rpartition("/")[0]

    def plain(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "half": self.half,
            "healthy": self.healthy,
            "codes": list(self.codes),
            "places": [list(place) for place in self.places],
            "first_step": self.first_step,
            "script": str(self.path),
            "why": self.why,
        }


def catalogue(root: Path = HERE, more: Iterable[Path] = ()) -> tuple[Case, ...]:
    """All cases: modules, seen scripts, unseen scripts, then those of other collections.

    Args:
        root: the folder of the catalogue.
        more: other collections: folders with an ``answers.json``, or folders of such folders.
            They count as unseen.
    """
    modules = (p for p in root.glob("[a-z]*.py") if p.stem not in _ON_A_GPU)
    cases = sorted(map(_module, modules), key=lambda case: case.codes)
    for name in ("seen", "seen_healthy"):
        cases += _folder(root / name, "seen") if (root / name / ANSWERS).is_file() else []
    for collection in [root / "wild", *more]:
        cases += _collection(collection, wanted=collection != root / "wild")
    doubles = [name for name, count in _counts(case.name for case in cases).items() if count > 1]
    if doubles:
        raise UsageError(
            f"two scripts are called {doubles[0]}, in {root} and other collections; rename a folder"
        )
    return tuple(cases)


def choose(cases: Sequence[Case], half: str | None = None, only: str = "") -> tuple[Case, ...]:
    """The cases of a half that ``only`` names: names, folders, codes or their beginnings.

    >>> from pathlib import Path
    >>> two = [Case(name=n, half="seen", path=Path(n), codes=("NUM001",)) for n in ("a/x", "y")]
    >>> [case.name for case in choose(two, only="a")], [c.name for c in choose(two, only="num")]
    (['a/x'], ['a/x', 'y'])
    """
    chosen = [case for case in cases if half in (None, case.half)]
    words = [word.strip() for word in only.split(",") if word.strip()]
    for word in words:
        if not any(_called(case, word) for case in chosen):
            where = f" in the {half} half" if half else ""
            raise UsageError(f"nothing is called {word!r}{where}; {_nearest(chosen, word)}")
    return tuple(c for c in chosen if not words or any(_called(c, word) for word in words))


def find(cases: Sequence[Case], name: str) -> Case:
    """The case of this name; its last part is enough where only one has it."""
    named = [case for case in cases if case.name == name]
    named = named or [case for case in cases if case.name.rpartition("/")[2] == name]
    if len(named) == 1:
        return named[0]
    if named:
        names = ", ".join(case.name for case in named)
        raise UsageError(f"{name!r} may be any of {names}; give the whole name")
    raise UsageError(f"no fault is called {name!r}; {_nearest(cases, name)}")


def _called(case: Case, word: str) -> bool:
    names = {case.name, case.name.rpartition("/")[2], case.group}
    return (
        word in names
        or (word == "healthy" and case.healthy)
        or any(code.startswith(word.upper()) for code in case.codes)
    )


def _nearest(cases: Sequence[Case], word: str) -> str:
    near = difflib.get_close_matches(word, [case.name for case in cases], n=1)
    return f"did you mean {near[0]!r}?" if near else "see: holdfast faults list"


def _counts(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def _module(path: Path) -> Case:
    """A module of this folder, read without importing it: that would import torch."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    said = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("CODE", "FIRST_STEP", "LINE_OF")
    }
    places = [(path.name, line) for line in _lines_of(text, said.get("LINE_OF", ""))]
    return Case(
        name=path.stem,
        half="seen",
        path=path,
        codes=(said["CODE"],),
        places=tuple(places),
        first_step=said["FIRST_STEP"],
        why=(ast.get_docstring(tree) or "").partition("\n")[0],
    )


def _lines_of(text: str, wanted: str) -> list[int]:
    rows = enumerate(text.splitlines(), 1)
    return [i for i, row in rows if wanted and wanted in row and not row.startswith("LINE_OF")]


def _collection(folder: Path, *, wanted: bool) -> Iterator[Case]:
    folders = [folder, *sorted(path for path in folder.glob("*") if path.is_dir())]
    known = [path for path in folders if (path / ANSWERS).is_file()]
    if wanted and not known:
        raise UsageError(f"no {ANSWERS} in {folder} nor in a folder of it; see: holdfast faults")
    for path in known:
        yield from _folder(path, "unseen")


def _folder(folder: Path, half: str) -> list[Case]:
    path = folder / ANSWERS
    try:
        answers = json.loads(path.read_text(encoding="utf-8"))
        return [_case(folder, answer, half) for answer in answers]
    except (OSError, ValueError, TypeError, KeyError) as error:
        told = f"{type(error).__name__}: {error}"
        raise UsageError(f"{path} cannot be read: {told}; see its form in {__name__}") from error


def _case(folder: Path, answer: Mapping[str, Any], half: str) -> Case:
    # It is run from another folder.
    script = folder.absolute() / str(answer["script"])
    if not script.is_file():
        raise UsageError(f"{folder / ANSWERS} names {script.name}, which is not there; restore it")
    return Case(
        name=f"{folder.name}/{script.stem}",
        half=half,
        path=script,
        codes=_codes(answer),
        places=_places(answer, script.name),
        first_step=int(answer.get("first_step") or 0),
        why=str(answer.get("why") or ""),
    )


def _codes(answer: Mapping[str, Any]) -> tuple[str, ...]:
    code = answer.get("code") or CATEGORIES.get(answer.get("category", ""), "")
    if not code and answer.get("category"):
        known = ", ".join(CATEGORIES)
        raise ValueError(f"{answer['script']} has category {answer['category']!r}, not {known}")
    return (str(code), *map(str, answer.get("also_codes", ()))) if code else ()


def _places(answer: Mapping[str, Any], script: str) -> tuple[tuple[str, int], ...]:
    if answer.get("line") is None:
        return ()
    file = str(answer.get("file") or script)
    places = [(file, int(line)) for line in (answer["line"], *answer.get("also", ()))]
    places += [(str(other), int(line)) for other, line in answer.get("also_other_file", ())]
    return tuple(dict.fromkeys(places))
