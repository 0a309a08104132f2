"""Texts that every installation has, generated texts, and the files of a user, as documents."""

from __future__ import annotations

import functools
import hashlib
import os
import pydoc_data.topics
import random
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import HoldfastError

MOST_BYTES = 2_000_000
"""Of a corpus that is not the user's: tokenised in seconds, and enough for a small model."""

_FEWEST = 10  # documents, so that a tenth of a single file can be held out
_TEXT = (".md", ".rst", ".txt")
_USER_TEXT = (*_TEXT, ".py", ".tex", ".html", ".json", ".csv")
_LISTS = {"SOURCES.txt", "entry_points.txt", "requires.txt", "top_level.txt"}
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


class Document(NamedTuple):
    """A text and the name it is known by."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Documents of one kind; ``found`` tells the user how many, and what was not taken."""

    name: str
    documents: tuple[Document, ...]
    found: str

    @functools.cached_property
    def hash(self) -> str:
        """Of all names and texts: another one as soon as a character differs."""
        digest = hashlib.sha256()
        for part in (part for document in self.documents for part in document):
            digest.update(hashlib.sha256(part.encode("utf-8", "surrogateescape")).digest())
        return digest.hexdigest()


def corpus(source: str | os.PathLike[str], *, most_bytes: int = MOST_BYTES) -> Corpus:
    """The corpus of a name in ``CORPORA``, or of a file or folder of the user.

    Named corpora take at most ``most_bytes``; which documents follows from their names alone.
    Files of a user are read whole; a name is a corpus, ``./name`` a path.
    """
    if most_bytes < 1000:
        raise HoldfastError(f"most_bytes is {most_bytes}; give a corpus 1000 or more")
    if str(source) in CORPORA:
        return CORPORA[str(source)](most_bytes)
    if not Path(source).exists():
        raise HoldfastError(
            f"{source}: neither a file or folder nor a corpus; the corpora are {', '.join(CORPORA)}"
        )
    return _of_user(Path(source))


def joined(corpora: Iterable[Corpus]) -> Corpus:
    """Several corpora as one."""
    parts = list(corpora)
    documents = (Document(f"{c.name}/{name}", text) for c in parts for name, text in c.documents)
    names, found = zip(*((c.name, c.found) for c in parts), strict=True)
    return Corpus("+".join(names), tuple(documents), "\n".join(found))


def _python(most_bytes: int) -> Corpus:
    """Source of the standard library, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = {name: file for name, file in _files(root, _SKIPPED) if name.endswith(".py")}
    return _selected("python", "source files of the standard library", files, most_bytes)


def _docs(most_bytes: int) -> Corpus:
    """Documentation and licences inside installed packages.

    Licences that differ in a line are all taken: a held-out one may resemble one trained on.
    """
    files: dict[str, Path] = {}
    for place in sys.path:
        if Path(place).name in {"site-packages", "dist-packages"}:
            for name, file in _files(Path(place), {"__pycache__"}):
                legal = "." not in file.name and file.name.startswith(("LICEN", "COPYING"))
                if legal or (name.endswith(_TEXT) and file.name not in _LISTS):
                    files.setdefault(name, file)
    return _selected("docs", "texts in installed packages", files, most_bytes)


def _sum(rng: random.Random) -> str:
    a, b, sign = rng.randrange(100), rng.randrange(100), rng.choice("+-*")
    return f"{a} {sign} {b} = {a + b if sign == '+' else a - b if sign == '-' else a * b}"


def _balanced(rng: random.Random) -> str:
    made, closing = "", ""
    for _ in range(rng.randrange(2, 40)):
        if closing and rng.random() < 0.5:
            made, closing = made + closing[-1], closing[:-1]
        else:
            kind = rng.choice(("()", "[]", "{}"))
            made, closing = made + kind[0], closing + kind[1]
    return made + closing[::-1]


def _made(name: str, line: Callable[[random.Random], str], most_bytes: int) -> Corpus:
    """Documents of generated lines; number n is the same however many are made."""
    size = min(2_000, most_bytes // _FEWEST)
    texts: dict[str, str] = {}
    for number in range(most_bytes // size):
        rng, text, new = random.Random(f"{name} {number}"), "", ""
        while len(text) + len(new) <= size:
            text, new = text + new, line(rng) + "\n"
        texts[f"{number:06d}"] = text
    return _selected(name, "made on the spot", texts, most_bytes)


CORPORA: Mapping[str, Callable[[int], Corpus]] = {
    "python": _python,
    "topics": lambda most: _selected("topics", "topics of help()", pydoc_data.topics.topics, most),
    "arithmetic": lambda most: _made("arithmetic", _sum, most),
    "docs": _docs,
    "brackets": lambda most: _made("brackets", _balanced, most),
}
"""In the order in which they become tasks."""


def _of_user(path: Path) -> Corpus:
    """The files of a user; few of them are cut into pieces, so that some can be held out."""
    every = dict(_files(path, {"__pycache__"})) if path.is_dir() else {path.name: path}
    files = {
        name: file for name, file in every.items() if file == path or name.endswith(_USER_TEXT)
    }
    documents = [Document(name, _text_of(file)) for name, file in sorted(files.items())]
    full = [document for document in documents if document.text.strip()]
    found = f"{path}: {len(full)} documents of {len(every)} files"
    if len(full) < len(documents):
        found += f"; {len(documents) - len(full)} empty"
    if len(files) < len(every):
        found += f"; {len(every) - len(files)} not {', '.join(_USER_TEXT)}"
    if not full:
        raise HoldfastError(f"{found}; give a file or folder with text in it")
    if len(full) < _FEWEST:
        full = [piece for one in full for piece in _pieces(one, -(-_FEWEST // len(full)))]
        found += f"; in {len(full)} pieces"
    return Corpus(str(path), tuple(full), found)


def _text_of(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except OSError as error:
        raise HoldfastError(f"{file}: {error.strerror}; give a text file") from None
    except UnicodeDecodeError as error:
        raise HoldfastError(
            f"{file}: not UTF-8 (byte {error.start}); convert it with iconv, or do not name it"
        ) from None


def _pieces(document: Document, count: int) -> Iterator[Document]:
    """A text in pieces of about equal length, cut at line ends where there are any."""
    text, first = document.text, 0
    for number in range(count):
        even, next_even = (len(text) * n // count for n in (number + 1, number + 2))
        last = text.find("\n", even, next_even) + 1 or even
        if first < last:
            yield Document(f"{document.name}#{number:02d}", text[first:last])
        first = max(first, last)


def _files(root: Path, skipped: set[str]) -> Iterator[tuple[str, Path]]:
    """Files below a folder with their names in it; none that is hidden."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in skipped and name[0] != "."]
        for path in (Path(folder, name) for name in names if name[0] != "."):
            yield path.relative_to(root).as_posix(), path


def _selected(name: str, what: str, sources: Mapping[str, Any], most_bytes: int) -> Corpus:
    """Texts, or files of an installation; what is wrong with them is counted, not an error."""
    taken: dict[str, str] = {}
    skipped: Counter[str] = Counter()
    left = most_bytes
    # Ordered by a hash, so that what is taken is spread over the whole alphabet.
    for key in sorted(sources, key=lambda key: hashlib.sha256(os.fsencode(key)).digest()):
        source: Path | str = sources[key]
        try:
            size = source.stat().st_size if isinstance(source, Path) else len(source.encode())
            text = "" if size > left else _text_of(source) if isinstance(source, Path) else source
        except (OSError, HoldfastError):
            skipped["not readable or not UTF-8"] += 1
            continue
        if not text.strip() or text in taken:
            why = "over the limit" if size > left else "empty or equal to another"
            skipped[why] += 1
        else:
            taken[text] = key
            left -= size
    found = f"{name}: {len(taken)} documents, {(most_bytes - left) / 1e6:.2f} MB, "
    found += f"of {len(sources)} {what}"
    found += "".join(f"; {count} {why}" for why, count in sorted(skipped.items()))
    if not taken:
        raise HoldfastError(f"{found}; raise most_bytes, or give a file of your own")
    documents = sorted(Document(key, text) for text, key in taken.items())
    return Corpus(name, tuple(documents), found)
