"""Find detectors by the words of a user: ``nan``, ``out of memory``, ``slow``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .base import Detector, document

_WORD = re.compile(r"[a-z0-9]+")
_CODE = re.compile(r"[a-z]{3}\d+")
_EMPTY = set(
    _WORD.findall(
        "a an and are at be been by did do does for from get gets go goes has have how i in is it "
        "its me my of on or s so t than that the then this to too was what when why with"
    )
)
_NOT = re.compile(r"\b(?:not|n't|never|cannot|can't|doesn't|don't|won't|isn't)\b")
# What users say, and the words of several documents. Words for one finding are its ``also_called``.
_ALSO = {
    "oom": ("memory", "big"),
    "ram": ("host", "memory"),
    "vram": ("device", "memory"),
    "cuda": ("device",),
    "gpu": ("device",),
    "lr": ("updates",),
    "inf": ("infinite", "infinity"),
    "overflow": ("infinite", "scale", "scaler"),
    "slow": ("slowdown", "longer", "stalls", "waits"),
    "slower": ("slowdown", "longer"),
    "wait": ("waits", "input"),
    "dataloader": ("dataloader", "loop", "input", "workers"),
    "sync": ("reads", "host", "waits"),
    "item": ("reads", "host"),
    "stuck": ("hangs",),
    "freeze": ("hangs",),
    "freezes": ("hangs",),
    "deadlock": ("hangs",),
    "error": ("exception",),
    "crash": ("exception",),
    "traceback": ("exception",),
    "killed": ("memory",),
    "compile": ("recompilation", "recompiling"),
    "amp": ("gradscaler", "fp16"),
    "retain": ("keeps", "graphs"),
}
# How much a word counts by where it stands; a name or a summary says what the finding is about.
_NAME, _SUMMARY, _DETECTS, _ELSEWHERE = 6.0, 6.0, 3.0, 1.0
_SYNONYM = 0.7
# Findings that fit much worse than the best are not listed, nor is anything that hardly fits.
_WORTH, _LEAST = 0.3, 1.5
_MOST = 8
# The shorter of two words with one stem has this share of the letters of the longer one.
_STEM = 0.6


def search(text: str, among: Sequence[type[Detector]]) -> list[type[Detector]]:
    """The detectors that fit these words, the best first; none where no word fits.

    A detector whose code or name this is, is the only one.
    """
    wanted = text.strip().lower()
    for detector in among:
        if wanted in (detector.code.lower(), detector.name.lower()):
            return [detector]
    if family := [d for d in among if len(wanted) > 2 and d.code.lower().startswith(wanted)]:
        return sorted(family, key=lambda detector: detector.code)
    words = _tokens(wanted)
    if any(map(_CODE.fullmatch, words)):
        return []  # a code that does not exist: what is near it is another matter
    scored = [(_score(words, detector), detector) for detector in among]
    best = max((score for score, _ in scored), default=0.0)
    fitting = [both for both in scored if both[0] >= max(_LEAST, _WORTH * best)]
    fitting.sort(key=lambda both: (-both[0], both[1].code))
    return [detector for _, detector in fitting[:_MOST]]


def is_about(text: str, detector: type[Detector]) -> bool:
    """Whether a finding is about these words, and does not only have them on its page."""
    said = _words(f"{detector.code} {_names(detector)} {document(detector).summary}")
    words = _tokens(text.strip().lower().replace("_", " "))
    wanted = [(word, *_ALSO.get(word, ())) for word in words]
    return all(any(_same(w, other) for w in each for other in said) for each in wanted)


def _names(detector: type[Detector]) -> str:
    return " ".join([detector.name.replace("_", " "), *detector.also_called])


def _score(words: Sequence[str], detector: type[Detector]) -> float:
    page = document(detector)
    places: list[tuple[float, set[str]]] = [
        (_NAME, _words(_names(detector))),
        (_SUMMARY, _words(page.summary)),
    ]
    for title, body in page.sections.items():
        places.append((_DETECTS if title == "What it detects" else _ELSEWHERE, _words(body)))
    each = [_fit(word, places) for word in words]
    # One word of three that fits is less than a third of the answer, and of two it is none.
    covered = sum(score > 0 for score in each) / max(1, len(each))
    return sum(each) * covered * covered if covered > 0.5 else 0.0


def _fit(word: str, places: Iterable[tuple[float, set[str]]]) -> float:
    total = 0.0
    for weight, said in places:
        if any(_same(word, other) for other in said):
            total += weight
        elif any(_same(also, other) for also in _ALSO.get(word, ()) for other in said):
            total += weight * _SYNONYM
    # A word in passing (a cause, an example) is on many pages.
    return total if total >= _DETECTS * _SYNONYM else 0.0


def _same(word: str, other: str) -> bool:
    """Whether two words have the same stem, roughly: leak and leaks, diverge and divergence."""
    if word == other:
        return True
    short, long = sorted((word, other), key=len)
    if len(short) < max(4, _STEM * len(long)):
        return False
    return long.startswith(short[: max(4, len(short) - 1)])


def _words(text: str) -> set[str]:
    return set(_tokens(text.lower()))


def _tokens(text: str) -> list[str]:
    """The words that say something; one that is denied is another word.

    >>> _tokens("my loss does not go down"), _tokens("a crash, not ctrl-c")
    (['loss', 'not-down'], ['crash', 'not-ctrl', 'c'])
    """
    found: list[str] = []
    denied = ""
    for part in re.findall(r"[a-z0-9]+(?:'t)?", text):
        if _NOT.fullmatch(part):
            denied = "not-"
        elif part not in _EMPTY:
            found.append(f"{denied}{part}")
            denied = ""
    return found
