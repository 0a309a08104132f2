from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from holdfast.checkpoint import file as file_module
from holdfast.checkpoint import stream
from holdfast.checkpoint.file import load, save, verify
from holdfast.checkpoint.tree import flatten
from holdfast.errors import CheckpointError, DamagedCheckpointError


def stored(path, tree, step=7, **options):
    return save(path, *flatten(tree), {"step": step}, **options)


def bits(tensor):
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
    torch.uint32, torch.uint64, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(tmp_path, monkeypatch, dtype, compress):
    monkeypatch.setattr(stream, "_WORTH_PACKING", 1)
    values = torch.arange(24).remainder(5).to(dtype).reshape(2, 3, 4)
    tree = {
        "cube": values,
        "t": values.transpose(0, 2),
        "scalar": values[0, 0, 3],
        "none": values[:0],
    }
    path = tmp_path / "a.safetensors"
    stored(path, tree, compress=compress)
    back, _ = load(path)
    for name, tensor in tree.items():
        assert (back[name].dtype, back[name].shape) == (dtype, tensor.shape)
        assert bits(back[name]) == bits(tensor)


def test_odd_values_come_back_bit_for_bit(tmp_path):
    payloads = torch.tensor([0x7FC00001, 0x7F800000, -0x80000000, 1], dtype=torch.int32)
    stored(tmp_path / "a.safetensors", {"x": payloads.view(torch.float32)})
    assert bits(load(tmp_path / "a.safetensors")[0]["x"]) == bits(payloads)


def test_meta_data_and_metrics_are_in_the_record_and_come_back(tmp_path):
    path = tmp_path / "step-0000000007.r2.safetensors"
    meta = {"step": 7, "rank": 2, "world": 4, "kind": "best", "epoch": 3,
            "metrics": {"loss": 0.25, "val": float("nan")}}  # fmt: skip
    written = save(path, *flatten({"models": {"m": {"w": torch.ones(2, 3)}}}), meta)
    assert written.path == path and written.bytes == path.stat().st_size and written.seconds > 0
    record = json.loads(path.with_suffix(".json").read_text())
    assert record["tensors"] == {"models.m.w": ["float32", [2, 3]]}
    assert record["format"] == 1 and record["good"] is True and record["time"] > 1.7e9
    assert record["torch"] == torch.__version__ and record["file"] == path.name
    fields = load(path)[1]
    assert (fields["epoch"], fields["rank"], fields["metrics"]["val"]) == (3, 2, "NaN")
    assert fields == record


def test_the_digest_is_what_sha256sum_says(tmp_path):
    written = stored(tmp_path / "a.safetensors", {"w": torch.ones(5)})
    reported = subprocess.run(
        ["sha256sum", written.path], capture_output=True, text=True, check=True
    )
    assert reported.stdout.split()[0] == written.record["sha256"]


@pytest.mark.parametrize("compress", [False, True])
def test_the_safetensors_package_reads_the_file(tmp_path, compress):
    tree = {"a": torch.ones(1, dtype=torch.bool), "b": torch.arange(3.0, dtype=torch.float64),
            "c": torch.ones(2, dtype=torch.bfloat16), "z": torch.tensor([1j])}  # fmt: skip
    stored(tmp_path / "a.safetensors", tree, compress=compress)
    read = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert all(torch.equal(read[name], tree[name]) for name in "abc") and len(read) == 4


def test_tied_weights_are_written_once_and_tied_again(tmp_path):
    weight = torch.randn(500, 10)
    tree = {"embed": weight, "head": weight.detach(), "part": weight[:1]}
    written = stored(tmp_path / "a.safetensors", tree)
    assert written.bytes < 1.5 * weight.nbytes
    back, _ = load(written.path)
    assert back["embed"] is back["head"] and torch.equal(back["part"], weight[:1])


def test_a_parameter_and_a_conjugate_can_be_saved(tmp_path):
    z = torch.tensor([1 + 2j, 3j])
    stored(tmp_path / "a.safetensors", {"p": torch.nn.Parameter(torch.ones(2)), "z": z.conj()})
    back, _ = load(tmp_path / "a.safetensors")
    assert torch.equal(back["z"], z.conj().resolve_conj()) and not back["p"].requires_grad


def test_what_was_loaded_is_of_its_own_memory(tmp_path):
    written = stored(tmp_path / "a.safetensors", {"w": torch.ones(3)})
    back, _ = load(written.path)
    back["w"].zero_()
    verify(written.path)
    assert load(written.path)[0]["w"].tolist() == [1, 1, 1]


def test_the_device_can_be_chosen(tmp_path):
    written = stored(tmp_path / "a.safetensors", {"w": torch.ones(3)})
    assert load(written.path, device="meta")[0]["w"].is_meta


def test_nothing_is_ever_unpickled(tmp_path, monkeypatch):
    import pickle

    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    tree = {"a": np.arange(3), "n": np.float64(2), "b": b"x", "w": torch.ones(2)}
    assert load(stored(tmp_path / "a.safetensors", tree).path)[0]["n"] == 2


def test_compression_makes_it_smaller(tmp_path):
    tree = {"w": torch.randn(200_000) * 0.02, "m": torch.zeros(100_000), "small": torch.ones(3)}
    plain = stored(tmp_path / "a.safetensors", tree)
    packed = stored(tmp_path / "b.safetensors", tree, compress=True)
    assert packed.bytes < 0.62 * plain.bytes
    back, _ = load(packed.path)
    assert all(torch.equal(back[name], tree[name]) for name in tree)


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (torch.ones(2, 2).to_sparse(), "layout torch.sparse_coo on cpu .* at models.w;"),
        (torch.ones(2, device="meta"), "on meta cannot be saved"),
    ],
)
def test_a_tensor_that_is_no_row_of_numbers_is_named(tmp_path, tensor, says):
    with pytest.raises(CheckpointError, match=says):
        stored(tmp_path / "a.safetensors", {"models": {"w": tensor}})
    assert not list(tmp_path.iterdir())


def test_meta_data_json_cannot_hold(tmp_path):
    with pytest.raises(CheckpointError, match="the record cannot be written"):
        save(tmp_path / "a.safetensors", *flatten({}), {"step": 1, "metrics": {"x": torch.ones(1)}})
    assert not list(tmp_path.iterdir())


def test_too_much_outside_of_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(stream.layout, "LARGEST_HEADER", 1000)
    with pytest.raises(CheckpointError, match="give large numpy arrays as tensors"):
        stored(tmp_path / "a.safetensors", {"a": np.zeros(1000)})


def test_a_file_that_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match=r"ends neither in .safetensors nor in .json"):
        load(tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load(tmp_path / "a.safetensors")


def test_tensors_somebody_else_wrote(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"w": torch.ones(2)}, path)
    with pytest.raises(DamagedCheckpointError, match=r"its record a.json is missing"):
        load(path)


def test_a_dtype_this_torch_does_not_have(tmp_path, monkeypatch):
    path = stored(tmp_path / "a.safetensors", {"w": torch.tensor([1j])}).path
    monkeypatch.delattr(torch, "complex64")
    with pytest.raises(CheckpointError, match=r"of the dtype complex64, which torch .* not have"):
        load(path)


# One name, saved again.


def test_a_step_saved_again_replaces_the_older_one(tmp_path):
    path = tmp_path / "a.safetensors"
    for value in (1.0, 2.0, 3.0):
        written = stored(path, {"w": torch.full((4,), value)})
        assert written.path == path and written.record["file"] == path.name
        assert load(path)[0]["w"].tolist() == [value] * 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.safetensors"]


CRASHES = """
import os, sys, torch
from pathlib import Path
from holdfast.checkpoint.file import load, save
from holdfast.checkpoint.tree import flatten
from holdfast.checkpoint.store import CheckpointStore
import holdfast.checkpoint.store as shelves, time
import holdfast.checkpoint.stream as stream, holdfast.run.durable as durable
folder = Path(sys.argv[1])
def state(v):
    return flatten({"w": torch.full((1000,), v), "b": torch.full((3,), v)})
def crash_at(count):  # dies just before and just after every call that touches the disk
    calls = 0
    def counted(call):
        def inner(*args, **kwargs):
            nonlocal calls
            if calls == count: os._exit(9)
            done = call(*args, **kwargs)
            calls += 1
            if calls == count: os._exit(9)
            calls += 1
            return done
        return inner
    for name in ("replace", "fsync", "unlink", "open"):
        setattr(os, name, counted(getattr(os, name)))
    stream.put = counted(stream.put)
def try_all(again):
  seen, count = set(), 0
  while True:
    store = CheckpointStore(folder / f"{again}{count}")
    store.open_for_writing()
    save(store.path(5), *state(1.0), {"step": 5})
    target = store.path(5 if again else 6)
    child = os.fork()
    if child == 0:
        crash_at(count)
        save(target, *state(2.0), {"step": 5 if again else 6})
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    entry = store.latest()
    value = load(entry.path)[0]["w"]
    assert len(set(value.tolist())) == 1, value
    seen.add(value[0].item())
    assert code in (0, 9), code
    if code == 0:
        assert value[0] == 2
        return count, sorted(seen)
    # the next life: clean up, save the same again
    shelves._STARTED = time.time() + 60
    store.open_for_writing()
    assert load(store.latest().path)[0]["w"][0] == value[0]
    save(target, *state(3.0), {"step": 7})
    store.open_for_writing()
    assert load(target)[0]["w"][0] == 3
    left = sorted(p.name for p in store.folder.iterdir())
    assert len(left) == (2 if again else 4), left
    count += 1
print(try_all(True), try_all(False))
"""


def test_death_at_any_call_leaves_the_older_or_the_newer_one(tmp_path):
    done = subprocess.run([sys.executable, "-c", CRASHES, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    again, following = re.findall(r"\((\d+), \[1.0, 2.0\]\)", done.stdout)
    assert int(again) > 20 and int(following) > 15


# Disks.


@contextmanager
def small_disk(size):
    """No file may grow beyond ``size``: the write is cut short, then fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("compress", [False, True])
def test_a_full_disk_is_one_error_and_the_older_checkpoint_stays(tmp_path, compress):
    path = tmp_path / "a.safetensors"
    stored(path, {"w": torch.ones(3)})
    with small_disk(100_000), pytest.raises(CheckpointError, match=r"cannot write a.safetensors: "):
        stored(path, {"w": torch.randn(100_000)}, compress=compress)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.safetensors"]
    assert load(path)[0]["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("call", range(8))
def test_a_disk_that_fails_at_any_call(tmp_path, monkeypatch, call):
    path = tmp_path / "a.safetensors"
    stored(path, {"w": torch.ones(3)})
    calls = 0

    def failing(real):
        def inner(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > call:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*args, **kwargs)

        return inner

    with monkeypatch.context() as patch:
        patch.setattr(file_module.os, "fsync", failing(os.fsync))
        patch.setattr(file_module.os, "replace", failing(os.replace))
        try:
            stored(path, {"w": torch.full((3,), 2.0)})
        except CheckpointError as error:
            assert "Input/output error" in str(error)
    value = load(path)[0]["w"].tolist()
    assert value == ([1, 1, 1] if call < 5 else [2, 2, 2])


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"checkpoint.dir=DIR"):
        stored(Path(tmp_path, "no", "a.safetensors"), {"w": torch.ones(1)})
