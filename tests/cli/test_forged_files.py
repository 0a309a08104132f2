"""Files of a run that are larger, deeper or more ambiguous than ours: told quickly, in words."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path

import pytest
from odd.base import EVENTS, FINDINGS, LAYERS, META, RECORD, STEPS, write_base

from holdfast.checkpoint.layout import read_header
from holdfast.checkpoint.record import decode_record, encode_record
from holdfast.cli import main
from holdfast.config import load
from holdfast.errors import SettingsError
from holdfast.run import jsonl

TERABYTE = 1 << 40
DATA = RECORD.replace(".json", ".safetensors")
READERS = ("runs ROOT", "report RUN", "check RUN", "checkpoint ls RUN", "checkpoint verify RUN")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_PLUGINS", "none")
    return write_base(tmp_path / "runs" / "odd")


def read_all(run: Path, *commands: str) -> None:
    for words in commands or READERS:
        known = {"ROOT": str(run.parent), "RUN": str(run)}
        assert main([known.get(word, word) for word in words.split()]) in (0, 1, 2), words


@pytest.mark.parametrize("end", [b"", b"x"])
@pytest.mark.parametrize("name", [STEPS, LAYERS, DATA, "ring.r0.bin", EVENTS, FINDINGS, META])
def test_a_hole_of_a_terabyte_is_not_read(run, name, end, capsys):
    try:
        with (run / name).open("ab") as file:
            file.truncate(TERABYTE)
            file.seek(0, 2)
            file.write(end)
    except OSError:
        pytest.skip("no such large files here")
    if name == DATA:
        record = {"format": 1, "step": 4, "rank": 0, "world": 1, "time": 1.7e9, "kind": "asked"}
        record |= {"good": True, "metrics": {}, "file": Path(DATA).name, "tensors": {}}
        size = (run / DATA).stat().st_size
        (run / RECORD).write_bytes(encode_record({**record, "bytes": size, "sha256": "1" * 64}))
    read_all(run, "report RUN")  # what is imported here is not counted below
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    read_all(run)
    assert time.process_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000
    reported = "".join(capsys.readouterr())
    assert name != DATA or "are on the disk" in reported


def test_rows_in_front_of_a_hole_are_read(run, capsys):
    read_all(run, "report RUN")
    sound = capsys.readouterr().out.splitlines()
    os.truncate(run / STEPS, 1 << 33)
    read_all(run, "report RUN")
    reported = capsys.readouterr().out.splitlines()
    assert [one for one in reported if one not in sound] == [
        one for one in reported if "8 GiB" in one
    ]


@pytest.mark.parametrize("deep", [101, 900, 100_000])
def test_what_is_nested_deeply_is_no_record_and_told_once(run, deep, capsys):
    finding = json.loads((run / FINDINGS).read_bytes().splitlines()[0])
    reported = json.dumps({**finding, "code": "NUM999", "evidence": {"x": 0}})
    with (run / FINDINGS).open("a") as file:
        file.write(reported.replace('"x": 0', f'"x": {"[" * deep}{"]" * deep}') + "\n")
    for form in ("json", "text", "md", "sarif"):
        read_all(run, f"report RUN --format {form}", "check RUN")
        text = capsys.readouterr().out
        assert "NUM999" not in text
        if form == "text":
            assert text.count("1 line unreadable") == 1


def test_what_is_nested_a_hundred_deep_is_a_record():
    lists = "[" * 99 + "]" * 99
    assert jsonl.decode(f'{{"x":{lists}}}'.encode())
    with pytest.raises(ValueError, match="more than 100 deep"):
        jsonl.decode(f'{{"x":[{lists}]}}'.encode())
    assert jsonl.decode(b'{"x":"' + b"[" * 500 + b'"}')
    assert jsonl.decode(b'{"x":[' + b"[]," * 500 + b"[]]}")


def test_two_equal_keys_are_refused_by_name(run, capsys):
    meta = (run / META).read_text()
    (run / META).write_text(meta.replace("{", '{"status": "finished", ', 1))
    assert main(["report", str(run)]) == 2
    assert "the key 'status' stands twice" in capsys.readouterr().err
    record = encode_record({"format": 1, "step": 4, "rank": 0, "file": "a.safetensors"})
    forged = record.replace(b'  "step": 4,\n', b'  "step": 4,\n  "step": 5,\n')
    with pytest.raises(ValueError, match="digest is wrong"):
        decode_record(forged)
    with pytest.raises(ValueError, match="the key 'step' stands twice"):
        decode_record(_signed(forged))
    line, rows = (run / STEPS).read_bytes().split(b"\n", 1)
    twice = line.rstrip().replace(b'"table":', b'"table":"other","table":', 1)
    (run / STEPS).write_bytes(twice.ljust(len(line)) + b"\n" + rows)
    (run / META).write_text(meta)
    assert main(["report", str(run)]) in (0, 1, 2)
    assert "the key 'table' stands twice" in "".join(capsys.readouterr())


def test_a_tensor_that_stands_twice_in_a_header_is_refused_by_name():
    entry = b'"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    text = b"{" + entry + b"," + entry + b"}"
    data = len(text).to_bytes(8, "little") + text + b"x"
    parts = iter((data[:8], text))
    with pytest.raises(ValueError, match="the key 'w' stands twice"):
        read_header(lambda count: next(parts), len(data))


def _signed(record: bytes) -> bytes:
    import hashlib

    begin = record.rindex(b'"record": "') + len(b'"record": "')
    blank = record[:begin] + b"0" * 64 + record[begin + 64 :]
    own = hashlib.sha256(blank).hexdigest().encode()
    return blank[:begin] + own + blank[begin + 64 :]


def test_settings_of_lists_in_lists_are_refused_before_they_are_parsed(tmp_path):
    (tmp_path / "deep.yaml").write_text("run: " + "[" * 100_000 + "]" * 100_000)
    began = time.process_time()
    with pytest.raises(SettingsError, match="more than 5,000 brackets"):
        load(str(tmp_path / "deep.yaml"))
    assert time.process_time() - began < 1
