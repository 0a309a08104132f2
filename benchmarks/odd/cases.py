"""The catalogue: each JSON key with odd values, files damaged at random, command lines."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odd.base import (
    LAYERS,
    LINES,
    OBJECTS,
    STEPS,
    header,
    recorded,
    text,
    write_lines,
    write_object,
)

Path_ = tuple[str | int, ...]
_NEST: Any = None
for _ in range(40):
    _NEST = {"a": [_NEST], "b": {"c": _NEST is None}}
VALUES: tuple[Any, ...] = (
    None, {}, [], "", "x", -1, 1e308, float("nan"), True, _NEST, "long \x1b[31m" * 2000,
)  # fmt: skip
MORE: tuple[Any, ...] = ("NaN", 10**400, 0.5, [None], [[]], ["x", 1], {"x": {}}, "1e999", -(2**63))
"""Beyond the eleven: what is a number to one reader and none to another."""


@dataclass(frozen=True, slots=True)
class Case:
    """One change of the run folder."""

    name: str
    change: Callable[[Path], None]


def systematic(values: Sequence[Any] = VALUES) -> Iterator[Case]:
    """Each key of each file, of every kind of event, with each odd value."""
    for name, file in OBJECTS.items():
        for path in _paths(recorded()[name]):
            for value in values:
                yield Case(_named(file, path, value), _in_object(name, file, path, value))
    for name, file in LINES.items():
        for number, path in _lines(recorded()[name]):
            for value in values:
                kind = recorded()[name][number].get("kind") or recorded()[name][number].get("code")
                reported = _named(f"{file} {kind}", path, value)
                yield Case(reported, _in_line(name, file, number, path, value))
    for file in (STEPS, LAYERS):
        for key in ("holdfast", "table", "lane", "dtype", "offset", "id", "segment", "last",
                    "start", "stride", "span"):  # fmt: skip
            for value in values:
                yield Case(_named(file, (key,), value), _in_header(file, key, value))


def _lines(items: list[dict[str, Any]]) -> Iterator[tuple[int, Path_]]:
    """Each key once for every kind of line."""
    known: set[tuple[Any, ...]] = set()
    for number, item in enumerate(items):
        for path in _paths(item):
            # The first of a list stands for all.
            place = tuple(0 if isinstance(one, int) else one for one in path)
            if path[0] in ("data", "evidence", "message"):
                place = (item.get("kind") if path[0] == "data" else "finding", *place)
            if place not in known:
                known.add(place)
                yield number, path


def _paths(item: Any, above: Path_ = ()) -> Iterator[Path_]:
    if above:
        yield above
    if isinstance(item, dict):
        for key, value in item.items():
            yield from _paths(value, (*above, key))
    elif isinstance(item, list) and item:
        yield from _paths(item[0], (*above, 0))


def _changed(item: Any, path: Path_, value: Any) -> Any:
    item = copy.deepcopy(item)
    at = item
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return item


def _in_object(name: str, file: str, path: Path_, value: Any) -> Callable[[Path], None]:
    return lambda run: write_object(run / file, _changed(recorded()[name], path, value))


def _in_line(name: str, file: str, number: int, path: Path_, value: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        items = list(recorded()[name])
        items[number] = _changed(items[number], path, value)
        write_lines(run / file, items)

    return change


def _in_header(file: str, key: str, value: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        data = (run / file).read_bytes()
        head = text({**header(run / file), key: value})
        (run / file).write_bytes(head.ljust(4095) + b"\n" + data[4096:])

    return change


def _named(file: str, path: Path_, value: Any) -> str:
    return f"{file} {'.'.join(map(str, path))} = {json.dumps(value)[:24]}"


def damages(count: int, seed: int = 0) -> Iterator[Case]:
    """Files damaged at random; the same ones for the same seed."""
    chance = random.Random(seed)
    kinds = (_truncate, _flip, _delete, _empty, _zero, _insert, _shuffle, _duplicate, _folder,
             _large, _long_line, _many_lines)  # fmt: skip
    for number in range(count):
        # Large files take a second each to write.
        damage = kinds[number % len(kinds)]
        file = chance.choice([*LINES.values(), *OBJECTS.values(), STEPS, LAYERS])
        own = random.Random(chance.random())
        yield Case(f"{number} {damage.__name__[1:]} {file}", _damaged(damage, file, own))


def _damaged(damage: Callable[..., None], file: str, chance: random.Random) -> Any:
    return lambda run: damage(run / file, chance)


def _truncate(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))])


def _flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 8, 200))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _delete(path: Path, chance: random.Random) -> None:
    path.unlink()


def _empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def _zero(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    at = chance.randrange(len(data))
    path.write_bytes(data[:at] + bytes(len(data) - at))


def _insert(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    at = chance.randrange(len(data))
    path.write_bytes(data[:at] + chance.randbytes(chance.choice((1, 40, 5000))) + data[at:])


def _shuffle(path: Path, chance: random.Random) -> None:
    lines = path.read_bytes().split(b"\n")
    chance.shuffle(lines)
    path.write_bytes(b"\n".join(lines))


def _duplicate(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() * chance.choice((2, 5, 50)))


def _folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _large(path: Path, chance: random.Random) -> None:
    """64 MB of zeros behind what is there, up to 1 GB; sparse, so that it costs no disk."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + chance.choice((64 << 20, 256 << 20, 1 << 30)))


def _long_line(path: Path, chance: random.Random) -> None:
    """One string of 40 MB in a JSON text that is whole."""
    with path.open("ab") as file:
        file.write(b'{"time":1.0,"rank":0,"step":1,"kind":"' + b"x" * (40 << 20) + b'"}\n')


def _many_lines(path: Path, chance: random.Random) -> None:
    data = path.read_bytes().split(b"\n")
    path.write_bytes((chance.choice(data) + b"\n") * 20_000)


_WORDS = (
    "", " ", "-", "--", "---", "-h", "--help", "--format", "--format=", "--format=json", "json",
    "md", "github", "sarif", "text", "html", "--output", "out", "/", "/dev/null", "..", ".",
    "runs", "runs/base", "base", "last", "no", "NUM", "NUM001", "nan loss", "--select", "--ignore",
    "--limit", "--limit=0", "--limit=1e9", "--all", "--keep", "--older-than", "1e308h", "-1", "NaN",
    "\x1b[31m", "\u202e", "\udcff", "a" * 5000, "--config", "deep.yaml", "tag.yaml", "bomb.yaml",
    "odd.yaml", "binary.yaml", "--root", "prune", "--dry-run", "list", "show", "diff", "verify",
    "--to", "--once", "--yaml", "%s", "{}", "$(id)", "*", "💥",
)  # fmt: skip
_COMMANDS = ("report", "check", "runs", "compare", "explain", "checkpoint", "track", "open",
             "completion", "faults", "predict", "", "help", "--version")  # fmt: skip
_CONFIGS = {
    "deep.yaml": "[" * 5000,
    "tag.yaml": "!!python/object/apply:os.system ['touch RAN']\n",
    "bomb.yaml": "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]\n" for i in range(12)
    ),
    "odd.yaml": "run: 5\nguard: {skip: {}}\n? [a]\n: b\n",
    "binary.yaml": "\x00\ufffe",
}


def command_lines(count: int, seed: int = 0) -> Iterator[tuple[str, ...]]:
    """Wrong options, missing values, odd names, forged settings; the same ones for a seed."""
    chance = random.Random(seed)
    for number in range(count):
        command = _COMMANDS[number % len(_COMMANDS)]
        words = [command, *chance.choices(_WORDS, k=chance.randrange(5))]
        if number % 9 == 8:
            words = ["run", "--config", chance.choice(list(_CONFIGS)), "no.py", *words[1:3]]
        yield tuple(word.replace("\x00", "") for word in words)


def write_configs(folder: Path) -> None:
    """The forged settings that command lines name."""
    for name, content in _CONFIGS.items():
        (folder / name).write_bytes(content.encode())


def fresh(base: Path, run: Path) -> Path:
    """A copy of the run folder, in the place of the last one."""
    if run.exists():
        shutil.rmtree(run)
    shutil.copytree(base, run)
    return run
