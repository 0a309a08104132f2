from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from holdfast.checkpoint.file import load
from holdfast.checkpoint.record import decode_record, encode_record, verify
from holdfast.errors import CheckpointError, DamagedCheckpointError

FIELDS = {"format": 1, "step": 3, "rank": 0, "file": "a.safetensors", "sha256": "ab" * 32,
          "bytes": 17, "metrics": {"loss": 0.5}, "tensors": {"w": ["float32", [2]]}}  # fmt: skip


def test_a_record_is_read_as_it_was_written():
    fields = decode_record(encode_record(FIELDS))
    assert fields.pop("record") and fields == FIELDS
    assert encode_record({**FIELDS, "record": "x"}) == encode_record(FIELDS)


def test_a_record_can_be_read_by_a_person():
    text = encode_record(FIELDS).decode()
    assert '\n  "step": 3,\n' in text and '\n    "loss": 0.5\n  },\n' in text


def test_every_flipped_bit_of_a_record_is_found():
    data = encode_record(FIELDS)
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            with pytest.raises(ValueError):
                decode_record(bytes(changed))


def test_a_record_that_is_longer_or_shorter_is_found():
    data = encode_record(FIELDS)
    for changed in (b"", data[:-1], data[1:], data + b"\n", data + data, b"{}\n"):
        with pytest.raises(ValueError):
            decode_record(changed)


def test_a_record_without_its_fields_is_refused():
    with pytest.raises(ValueError, match="fields are missing"):
        decode_record(encode_record({"format": 1}))


@pytest.mark.parametrize("compress", [False, True])
def test_every_flipped_bit_of_the_data_is_found(put, flip, monkeypatch, compress):
    monkeypatch.setattr("holdfast.checkpoint.stream._WORTH_PACKING", 1)
    path = put(5, compress=compress).path
    size = path.stat().st_size
    noise = np.random.default_rng(0)
    for at in range(0, size, 3 if compress else 1):
        bit = int(noise.integers(8))
        flip(path, at, bit)
        with pytest.raises(DamagedCheckpointError):
            (load if at % 4 else verify)(path)
        flip(path, at, bit)
    load(path)


def test_a_flipped_bit_of_the_record_is_found_by_both(put, flip):
    path = put(5).path
    record = path.with_suffix(".json")
    noise = np.random.default_rng(0)
    for at in range(0, record.stat().st_size, 7):
        bit = int(noise.integers(8))
        flip(record, at, bit)
        for check in (verify, load):
            with pytest.raises(DamagedCheckpointError, match=r"damaged: .*; use another one"):
                check(path)
        flip(record, at, bit)
    verify(path)


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"x", lambda d: b""])
def test_data_of_another_length_is_found(put, change):
    path = put(5).path
    path.write_bytes(change(path.read_bytes()))
    for check in (verify, load):
        with pytest.raises(DamagedCheckpointError, match=r"bytes and should have"):
            check(path)


def test_missing_files(put):
    path = put(5).path
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(DamagedCheckpointError, match="the record is there, the data is not"):
        verify(path)
    path.write_bytes(data)
    path.with_suffix(".json").unlink()
    with pytest.raises(DamagedCheckpointError, match="the save was cut short"):
        verify(path)


def test_data_of_another_checkpoint_is_found(put):
    one, other = put(5).path, put(6, 2.0).path
    other.replace(one)
    with pytest.raises(DamagedCheckpointError, match="its content has changed"):
        load(one)


def test_either_file_names_the_checkpoint(put):
    path = put(5).path
    verify(path.with_suffix(".json"))
    assert load(path.with_suffix(".json"))[1]["step"] == 5


def test_both_files_may_be_renamed_together(put, tmp_path):
    path = put(5).path
    path.rename(tmp_path / "mine.safetensors")
    path.with_suffix(".json").rename(tmp_path / "mine.json")
    assert load(tmp_path / "mine.safetensors")[1]["step"] == 5


def test_a_record_cannot_point_out_of_its_folder(put, tmp_path):
    path = put(5).path
    elsewhere = tmp_path / "other.safetensors"
    fields = decode_record(path.with_suffix(".json").read_bytes())
    path.rename(elsewhere)
    path.with_suffix(".json").write_bytes(encode_record({**fields, "file": f"../{elsewhere.name}"}))
    with pytest.raises(DamagedCheckpointError, match="no file beside it"):
        load(path)


def test_a_later_format_is_reported(put):
    path = put(5).path
    record = path.with_suffix(".json")
    fields = decode_record(record.read_bytes())
    record.write_bytes(encode_record({**fields, "format": 2, "holdfast": "9.9"}))
    with pytest.raises(CheckpointError, match=r"format 2, this holdfast reads 1, .* wrote it: 9.9"):
        load(path)


def test_verifying_needs_no_torch(put):
    code = (
        "import sys; from holdfast.checkpoint.record import verify; "
        "from holdfast.checkpoint.store import CheckpointStore; "
        "import holdfast.checkpoint.compare; "
        "verify(sys.argv[1]); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, put(5).path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
