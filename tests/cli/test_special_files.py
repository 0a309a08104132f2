"""A named pipe, a socket or a device in place of any file of a run is told, and never awaited."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from odd.base import RECORD, write_base
from odd.cases import fresh

from holdfast.checkpoint.record import decode_record, encode_record
from holdfast.cli import main
from holdfast.errors import SettingsError
from holdfast.regular_files import NotRegularError, open_regular
from holdfast.run import Run
from holdfast.run.durable import Appender, replace_file, write_text

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")

DATA = RECORD.replace(".json", ".safetensors")
FILES = (
    "run.json", "events.r0.jsonl", "findings.r0.jsonl", "batches.r0.jsonl", "quarantine.r0.jsonl",
    "steps.r0.000000.bin", "layers0.r0.000000.bin", "ring.r0.bin", "report.html", "compare.html",
    "settings.yaml", "traceback.r0.txt", "pictures/pictures.json", "track/json.json",
    "track/metrics.jsonl", "track/notes.jsonl", "track/about.json", RECORD, DATA,
    "checkpoints/step-0000000009/index.json",
)  # fmt: skip
READERS = (
    "runs ROOT", "report RUN", "report RUN --format html", "check RUN", "compare SOUND RUN",
    "checkpoint ls RUN", "checkpoint verify RUN", "checkpoint show RUN",
    "checkpoint prune RUN --dry-run", "runs prune ROOT --keep 0", "track RUN --to json",
)  # fmt: skip
OF_CHECKPOINTS = ("checkpoint diff RUN RUN", "checkpoint export RUN out.pt")


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_socket(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    os.chdir(before)


def put_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("special") / "base")


@pytest.fixture(autouse=True)
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever waits for a pipe is waked with an error."""

    def wake(*_: object) -> None:
        raise TimeoutError("it waits")

    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGALRM, wake)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("name", "put"),
    [*((name, put_pipe) for name in FILES)]
    + [(name, put) for name in ("run.json", RECORD, DATA) for put in (put_socket, put_device)],
)
def test_nothing_waits_for_what_is_no_file(name, put, base, tmp_path, capsys):
    runs = tmp_path / "runs"
    sound, odd = fresh(base, runs / "sound"), fresh(base, runs / "odd")
    path = odd / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True, parents=True)
    put(path)
    if name == DATA:
        (odd / RECORD).write_bytes(record_of_nothing())
    known = {"ROOT": runs, "RUN": odd, "SOUND": sound}
    for words in (*READERS, *(OF_CHECKPOINTS if "checkpoints" in name else ())):
        signal.setitimer(signal.ITIMER_REAL, 20)
        code = main([str(known.get(word, word)) for word in words.split()])
        reported = capsys.readouterr()
        assert code in (0, 1, 2) and "Traceback" not in reported.err, words
        if words == "runs ROOT":
            assert "sound" in reported.out


def record_of_nothing() -> bytes:
    """A genuine record of a data file without a byte, which is what a pipe has."""
    fields = {"format": 1, "step": 4, "rank": 0, "world": 1, "time": 1.7e9, "kind": "asked"}
    fields |= {"good": True, "metrics": {}, "file": Path(DATA).name, "bytes": 0, "sha256": "1" * 64}
    written = encode_record({**fields, "tensors": {}})
    assert decode_record(written)
    return written


def test_what_stands_there_and_what_to_do_is_reported(base, tmp_path, capsys):
    run = fresh(base, tmp_path / "run")
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    assert main(["report", str(run)]) == 2
    reported = capsys.readouterr().err
    assert (
        "cannot read run.json: a named pipe stands there" in reported
        and "remove run.json" in reported
    )
    os.mkfifo(tmp_path / "settings.yaml")
    with pytest.raises(SettingsError, match="a named pipe stands there"):
        from holdfast.config import load

        load(str(tmp_path / "settings.yaml"))


def test_nothing_waits_for_a_pipe_to_write_into(base, tmp_path):
    run = Run.open(fresh(base, tmp_path / "run"))
    signal.setitimer(signal.ITIMER_REAL, 20)
    for name in ("report.html", "traceback.r0.txt", "events.r1.jsonl"):
        os.mkfifo(run.path / name)
    with pytest.raises(OSError):
        Appender(run.path / "events.r1.jsonl")
    with pytest.raises(OSError):
        write_text(run.traceback_path("r0"), "text")
    replace_file(run.page_path, b"page")
    assert run.page_path.read_bytes() == b"page"


def test_a_temporary_name_that_is_taken_by_a_link_leads_nowhere(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / f"report.html.{os.getpid()}.tmp").symlink_to(tmp_path / "precious")
    replace_file(tmp_path / "report.html", b"page")
    assert (tmp_path / "precious").read_text() == "mine"


def test_without_the_flag_a_pipe_with_a_writer_is_refused_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.regular_files._FLAGS", 0)
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises(NotRegularError, match="a named pipe stands there"):
        open_regular(tmp_path / "pipe")
    os.close(writer)
