"""The record of a checkpoint, ``NAME.json``, and the proof that nothing has changed since.

The record says what the tensors beside it are (step, metrics, versions, names and shapes) and
what they must hash to. It is the commit of a checkpoint: written last, it names the file it
vouches for, so a step can be saved again while the older file stays valid until the very end.
The record hashes to its own last line, so that a changed bit in either file is found.

A checkpoint over ranks is a folder, ``step-0000001200``, with one data file per rank; its record
is the ``index.json`` in it, which vouches for every tensor of every file (see ``sharded``).

No torch here: a checkpoint can be verified on a machine that could not load it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from holdfast.errors import CheckpointError, DamagedCheckpointError
from holdfast.regular_files import open_regular, remedy
from holdfast.run import decode, encode

FORMAT = 1
DATA = ".safetensors"
RECORD = ".json"
SECOND = ".2"
"""What the new data file of a step is called while the older one still counts."""

INDEX = "index.json"
"""The record of a checkpoint over ranks, in its folder."""

LAST = "last"
"""Kind of a checkpoint that was written because the run ended early; it has no loader position,
unless its record says ``resume``."""

RUN = "run"
"""Key of the folder of the run, where the checkpoint lies elsewhere."""

NAME = re.compile(r"step-(?P<step>\d{10,})\.r(?P<rank>\d+)")
FOLDER_NAME = re.compile(rf"step-(?P<step>\d{{10,}})(?:{re.escape(SECOND)})?")
"""A checkpoint over ranks; the second name is that of the older one of two of a step."""

_CHUNK = 4 << 20
_BLANK = "0" * 64
# Bytes of a record: a model of 100,000 tensors has 10 MB.
LARGEST = 64 << 20
# A file beyond this must have one byte in so many on the disk: reading a hole of 1 TB takes hours.
_LARGE, _HOLLOW = 1 << 30, 100
_OWN_DIGEST = re.compile(rb'  "record": "([0-9a-f]{64})"\n\}\n')


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """A checkpoint that is on the disk: where, how large, how long it took, its record."""

    path: Path
    bytes: int
    seconds: float
    record: Mapping[str, Any]


def file_name(step: int, rank: int = 0) -> str:
    """The name of a checkpoint's data file; names sort by step."""
    return f"step-{step:010d}.r{rank}{DATA}"


def folder_name(step: int) -> str:
    """The name of a checkpoint over ranks."""
    return f"step-{step:010d}"


def is_single(path: Path) -> bool:
    """Whether a path means one checkpoint, and no folder with several of them."""
    return not path.is_dir() or FOLDER_NAME.fullmatch(path.name) is not None


def record_path(path: Path) -> Path:
    """The record that belongs to a data file, a folder or a record; it need not exist."""
    if FOLDER_NAME.fullmatch(path.name):
        return path / INDEX
    if path.suffix == RECORD:
        return path
    if path.suffix != DATA:
        raise CheckpointError(
            f"{path.name} is no checkpoint: its name ends neither in {DATA} nor in {RECORD}, in "
            f"{path.parent}; give one of these two files"
        )
    record = path.with_suffix(RECORD)
    first = path.with_name(path.stem.removesuffix(SECOND) + RECORD)
    return first if first.exists() and not record.exists() else record


def data_path(record: Path, fields: Mapping[str, Any]) -> Path:
    """The data file a record vouches for; the folder of a checkpoint over ranks."""
    if "files" in fields:
        return record.parent
    path = record.with_name(Path(str(fields["file"])).name)
    beside = record.with_suffix(DATA)
    # A save of the same step was killed before its last rename, or somebody renamed both
    # files of a checkpoint; the digest tells whether this is it.
    return beside if beside.exists() and not path.exists() else path


def encode_record(fields: Mapping[str, Any]) -> bytes:
    """The record as a file: one line per field, its own digest last."""
    lines = [f"  {_text(key)}: {_lines(value)}" for key, value in fields.items() if key != "record"]
    text = "{\n" + "".join(f"{line},\n" for line in lines) + f'  "record": "{_BLANK}"\n}}\n'
    return text.replace(_BLANK, hashlib.sha256(text.encode()).hexdigest()).encode()


def decode_record(data: bytes) -> dict[str, Any]:
    """The fields of a record; a ``ValueError`` when a single bit of it has changed."""
    own = _OWN_DIGEST.search(data, max(0, len(data) - 128))
    if own is None or own.end() != len(data):
        raise ValueError("it does not end as a record does")
    blank = data[: own.start(1)] + _BLANK.encode() + data[own.end(1) :]
    if hashlib.sha256(blank).hexdigest().encode() != own[1]:
        raise ValueError("its digest is wrong")
    fields = decode(data, once=True)
    if not {"format", "step", "rank", "file", "sha256", "bytes", "tensors"} <= set(fields):
        raise ValueError("fields are missing")
    _check_fields(fields)
    return fields


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Refuse numbers and names that no record has: a file may come from anywhere."""
    files = fields.get("files", {})
    if not isinstance(files, dict) or not isinstance(fields["tensors"], dict):
        raise ValueError("its lists make no sense")
    for name in (fields["file"], *files):
        if not isinstance(name, str) or not name or Path(name).name != name or "\\" in name:
            raise ValueError(f"it names {name!r}, which is no file beside it")
        if not name.endswith((DATA, RECORD)):
            raise ValueError(f"it names {name!r}, which is no file of a checkpoint")
    for key in ("step", "rank", "bytes"):
        if type(fields[key]) is not int:
            raise ValueError(f"{key} is {fields[key]!r}, which is no whole number")


@contextlib.contextmanager
def or_damaged(path: Path) -> Iterator[None]:
    """What cannot be read although its digests are right was not written by holdfast."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise damaged(path, f"it makes no sense ({type(error).__name__}: {error})") from error
    except (ArithmeticError, MemoryError) as error:
        raise damaged(path, f"its sizes make no sense ({type(error).__name__})") from error


def read_record(path: Path) -> dict[str, Any]:
    """Read the record of a checkpoint, given by either of its files."""
    record = record_path(path)
    try:
        with open_regular(record) as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError as error:
        if path != record and path.exists():
            raise damaged(
                path, f"its record {record.name} is missing: the save was cut short"
            ) from error
        raise CheckpointError(
            f"there is no checkpoint {path}; see which there are: "
            f"holdfast checkpoint ls {path.parent}"
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"cannot read {record.name}: {error.strerror}, in {record.parent}; {remedy(error)}"
        ) from error
    try:
        if len(data) > LARGEST:
            raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
        fields = decode_record(data)
    except ValueError as error:
        raise damaged(record, str(error)) from error
    if fields["format"] != FORMAT:
        raise CheckpointError(
            f"{record.name} has format {fields['format']!r}, this holdfast reads {FORMAT}, in "
            f"{record.parent}; read it with the version that wrote it: {fields.get('holdfast')}"
        )
    return fields


def verify(path: str | Path) -> None:
    """Prove that both files are what was written; ``DamagedCheckpointError`` if not."""
    path = Path(path)
    fields = read_record(path)
    data = data_path(record_path(path), fields)
    check_size(data, fields)
    if "files" in fields:
        _verify_files(data, fields)
        return
    try:
        with open_regular(data) as file:
            found = digest(file)
    except OSError as error:
        raise unreadable(data, error) from error
    check_digest(data, fields, found)


def check_size(data: Path, fields: Mapping[str, Any]) -> None:
    """The part of the proof that costs nothing: the data is there and as long as it was."""
    for name, one in fields.get("files", {}).items():
        _check_file(data / name, int(one["rank"]), int(one["bytes"]))
    if "files" in fields:
        return
    try:
        size = _size(data)
    except FileNotFoundError as error:
        raise damaged(data, "the record is there, the data is not") from error
    except OSError as error:
        raise unreadable(data, error) from error
    if size != fields["bytes"]:
        raise damaged(data, f"it has {size:,} bytes and should have {fields['bytes']:,}")


def _size(data: Path) -> int:
    """How long a file is; ``DamagedCheckpointError`` for one that is next to nothing but a hole."""
    about = data.stat()
    stored = getattr(about, "st_blocks", about.st_size) * 512
    # A file system that packs leaves out zeros, too, but a state is not made of them.
    if about.st_size > _LARGE and stored * _HOLLOW < about.st_size:
        raise damaged(data, f"of its {about.st_size:,} bytes only {stored:,} are on the disk")
    return about.st_size


def _check_file(path: Path, rank: int, size: int) -> None:
    """Whether the data file of one rank is there, and as long as it was."""
    try:
        found = _size(path)
    except FileNotFoundError as error:
        raise damaged(path.parent, f"{path.name}, the data of rank {rank}, is missing") from error
    except OSError as error:
        raise unreadable(path, error) from error
    if found != size:
        why = f"it has {found:,} bytes and should have {size:,}"
        raise damaged(path.parent, f"{path.name}, the data of rank {rank}, is not whole: {why}")


def check_digest(data: Path, fields: Mapping[str, Any], found: str) -> None:
    """The proof itself."""
    if found != fields["sha256"]:
        raise damaged(data, f"its content has changed (sha256 {found[:12]}…)")


def digest(file: Any, size: int = -1) -> str:
    """The SHA-256 of an open file, from where it stands: to its end, or of ``size`` bytes."""
    hashing = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK if size < 0 else min(size, _CHUNK)))
    while size and (count := file.readinto(buffer if size < 0 else buffer[:size])):
        hashing.update(buffer[:count])
        size -= count if size > 0 else 0
    return hashing.hexdigest()


def changed(folder: Path, name: str, rank: int, what: str) -> DamagedCheckpointError:
    """The error for a place in the data of one rank that is not what was written."""
    return damaged(folder, f"{what} has changed, in {name}, the data of rank {rank}")


def _verify_files(folder: Path, fields: Mapping[str, Any]) -> None:
    """Read the data of every rank, place by place."""
    places: dict[str, list[tuple[int, int, str, str]]] = {name: [] for name in fields["files"]}
    for name, one in fields["files"].items():
        length, sha256 = one["head"]
        places[name].append((0, length, sha256, "the head"))
        places[name] += [
            (begin, end, sha, own) for own, (*_, begin, end, sha) in one["own"].items()
        ]
    for tensor, chunks in fields["chunks"].items():
        for _, _, name, begin, end, sha256 in chunks:
            places[name].append((begin, end, sha256, tensor))
    for name, found in places.items():
        rank = int(fields["files"][name]["rank"])
        try:
            with open_regular(folder / name) as file:
                for begin, end, sha256, what in sorted(found):
                    file.seek(begin)
                    if digest(file, end - begin) != sha256:
                        raise changed(folder, name, rank, what)
        except OSError as error:
            raise unreadable(folder / name, error) from error


def damaged(path: Path, why: str) -> DamagedCheckpointError:
    """The error for a checkpoint that must not be used."""
    error = DamagedCheckpointError(
        f"{path.name} is damaged: {why}, in {path.parent}; use another one: "
        f"holdfast checkpoint ls {path.parent}"
    )
    error.why = why
    return error


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """The error for a file the system does not let us read."""
    return CheckpointError(
        f"cannot read {path.name}: {error.strerror}, in {path.parent}; {remedy(error)}"
    )


def _lines(value: Any) -> str:
    """A value on one line; a dict with one line for each of its own fields."""
    if not isinstance(value, dict) or not value:
        return _text(value)
    fields = cast("dict[str, Any]", value)
    lines = [f"    {_text(str(key))}: {_text(item)}" for key, item in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n  }"


def _text(value: Any) -> str:
    return encode(value).decode()
