"""Collections of training scripts, faulty and healthy, with what is true about them.

A collection is a folder with scripts and an ``answers.json``, a list of objects:

    script      file in this folder; everything else there is a helper of some script
    code        code of the fault, or ``category``, one of ``CATEGORIES``; neither: it is healthy
    also_codes  codes that would be as right
    line, also  the line a good reviewer points to, and those that are as right
    file        the file of these lines, when it is not the script
    also_other_file   pairs of file and line that are as right
    first_step  optimizer step (from 0) from which on the fault is there
    why         one sentence

A line ``- Status: regression`` in its ``README.md`` says that somebody has looked into its results
and changed holdfast because of them. Every other collection is a first contact. ``- Ranks: 2`` says
that its scripts are started by torchrun, with as many processes.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError

CORPUS = Path(__file__).parents[2] / "corpus"
ANSWERS = "answers.json"
REGRESSION, FIRST_CONTACT = "regression", "first contact"
STATUSES = (FIRST_CONTACT, REGRESSION)

CATEGORIES = {
    "tensor_leak": "MEM001",
    "graph_leak": "MEM002",
    "state_not_detached": "MEM003",
    "eval_with_graph": "MEM004",
    "object_leak": "MEM005",
    "worker_leak": "MEM006",
    "input_bound": "TPT001",
    "host_sync": "TPT002",
    "recompile": "TPT003",
    "slow_down": "TPT004",
    "stall": "TPT005",
}
"""What writers who have not seen our codes call a fault."""

_REGRESSION_LINE = re.compile(rf"^- Status: {REGRESSION}\b", re.MULTILINE)
_RANKS_LINE = re.compile(r"^- Ranks: (\d+)$", re.MULTILINE)
_DATE = re.compile(r"^\d{4}-\d\d-\d\d-")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One script of a collection, and what is true about it."""

    collection: str
    status: str
    """One of ``STATUSES``, of the whole collection."""
    path: Path
    codes: tuple[str, ...] = ()
    """The code of its fault, then those that are as right; empty when it is healthy."""
    places: tuple[tuple[str, int], ...] = ()
    """File name and line of the fault, all equally exact; empty when no line is given."""
    first_step: int = 0
    why: str = ""
    ranks: int = 1
    """Processes that torchrun starts; 1: it is started by itself."""

    @property
    def name(self) -> str:
        """``2026-11-15-memory/ticket_router``."""
        return f"{self.collection}/{self.path.stem}"

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to find."""
        return not self.codes

    def plain(self) -> dict[str, Any]:
        """The case as plain data, for JSON."""
        return {
            "name": self.name,
            "status": self.status,
            "healthy": self.healthy,
            "codes": list(self.codes),
            "places": [list(place) for place in self.places],
            "first_step": self.first_step,
            "why": self.why,
        }


def choose_collections(words: Sequence[str], corpus: Path = CORPUS) -> list[Path]:
    """The folders that ``words`` name; all folders of the corpus when there is no word.

    Args:
        words: a name with or without its date (``memory-2``), the beginning of one
            (``2026-11-16``, ``mem``), or the path of a collection that lies elsewhere.
        corpus: the folder of the collections.
    """
    known = sorted(path.parent for path in corpus.glob(f"*/{ANSWERS}"))
    if not words:
        return known
    chosen: dict[Path, None] = {}
    for word in words:
        elsewhere = [Path(word)] if (Path(word) / ANSWERS).is_file() else []
        exact = [path for path in known if word in _names(path)]
        begins = [path for path in known if any(n.startswith(word) for n in _names(path))]
        found = elsewhere or exact or begins
        if not found:
            near = _nearest(word, [name for path in known for name in _names(path)])
            raise UsageError(f"no collection is called {word!r} in {corpus.name}/{near}")
        chosen |= dict.fromkeys(found)
    return list(chosen)


def read_collections(folders: Iterable[Path]) -> tuple[Case, ...]:
    """The cases of several collections, whose names must differ."""
    cases: dict[str, Case] = {}
    for folder in folders:
        for case in read_collection(folder):
            if case.name in cases:
                raise UsageError(f"two scripts are called {case.name}; rename one of the folders")
            cases[case.name] = case
    return tuple(cases.values())


def read_collection(folder: Path) -> list[Case]:
    """The cases of one collection, in the order of its answers."""
    path = folder / ANSWERS
    try:
        answers = json.loads(path.read_text(encoding="utf-8"))
        status, ranks = status_of(folder), ranks_of(folder)
        return [_case(folder.absolute(), answer, status, ranks) for answer in answers]
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"{path} cannot be read: {what}; see its form in {__file__}") from error


def status_of(folder: Path) -> str:
    """Whether a collection has been looked into (regression) or not (first contact)."""
    return REGRESSION if _REGRESSION_LINE.search(_about(folder)) else FIRST_CONTACT


def ranks_of(folder: Path) -> int:
    """How many processes its scripts are started in."""
    reported = _RANKS_LINE.search(_about(folder))
    return int(reported[1]) if reported else 1


def _about(folder: Path) -> str:
    path = folder / "README.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def choose(cases: Sequence[Case], only: str = "") -> tuple[Case, ...]:
    """The cases that ``only`` names: scripts, codes or their beginnings, ``healthy``; with commas.

    >>> from pathlib import Path
    >>> two = [Case(collection="c", status="regression", path=Path(n)) for n in ("x.py", "y.py")]
    >>> [case.name for case in choose(two, "y")], [case.name for case in choose(two, "healthy")]
    (['c/y'], ['c/x', 'c/y'])
    """
    words = [word.strip() for word in only.split(",") if word.strip()]
    for word in words:
        if not any(_called(case, word) for case in cases):
            near = _nearest(word, [case.name for case in cases])
            raise UsageError(f"no script is called {word!r} in the chosen collections{near}")
    return tuple(c for c in cases if not words or any(_called(c, word) for word in words))


def _names(folder: Path) -> tuple[str, str]:
    return folder.name, _DATE.sub("", folder.name)


def _called(case: Case, word: str) -> bool:
    return (
        word in (case.name, case.path.stem)
        or (word == "healthy" and case.healthy)
        or any(code.startswith(word.upper()) for code in case.codes)
    )


def _nearest(word: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _case(folder: Path, answer: Mapping[str, Any], status: str, ranks: int) -> Case:
    script = folder / str(answer["script"])
    if not script.is_file():
        raise UsageError(f"{folder / ANSWERS} names {script.name}, which is not there; restore it")
    return Case(
        collection=folder.name,
        status=status,
        path=script,
        codes=_codes(answer),
        places=_places(answer, script.name),
        first_step=int(answer.get("first_step") or 0),
        why=str(answer.get("why") or ""),
        ranks=ranks,
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
