"""Causes whose words fit and whose precondition does not hold: each beside the case where it does.

Found by a blind trace of scripts that newcomers write.
"""

# ruff: noqa: E501, a table of scripts

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.detectors._crashes import explain
from holdfast.diagnosis.crash import exception, shared_memory
from holdfast.records.crash import ShorterFile
from tests.crashing import crash


def reported(folder: Path, script: str) -> str:
    _, cause = crash(folder, script)
    return f"{cause.headline}: {cause.advice}"


# ---------------------------------------------------------------------- bus errors

TRUNCATED = """
import numpy as np
from pathlib import Path
file = Path(__file__).with_name("bank.bin")
np.zeros(1 << 20, dtype=np.float32).tofile(file)
class Data(Dataset):
    def __init__(self):
        self.mapped = np.memmap(file, dtype=np.float32, mode="r")
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.from_numpy(self.mapped[index * 16384:][:16384].copy())
data = Data()
kept = data.mapped
for at, x in enumerate(DataLoader(data, 4, num_workers=1)):
    if at == 1:
        {shrink}
"""


def test_a_mapped_file_that_became_shorter_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch's handler raises in whatever line runs when the worker dies, so in this test, too.
    monkeypatch.setattr("torch.utils.data._utils.signal_handling._SIGCHLD_handler_set", True)
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        found, cause = crash(tmp_path, TRUNCATED.format(shrink="os.truncate(file, 4096)").replace(
            "import numpy", "import os\nimport numpy"))  # fmt: skip
    finally:
        signal.signal(signal.SIGCHLD, before)
    room = found.data.shared_memory
    assert room is not None and room.free >= 0, found.data
    assert "(SIGBUS): bank.bin became shorter" in cause.headline, cause
    assert "4.0 KiB, 4.0 MiB are mapped" in cause.advice and "os.replace" in cause.advice
    assert "shm-size" not in cause.advice


def test_a_worker_that_dies_meanwhile_does_not_disturb_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def handler(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 12) is killed by signal: Bus error. ")

    def dies(_: object) -> str:
        os.kill(os.getpid(), signal.SIGCHLD)
        return "odd"

    monkeypatch.setattr(exception, "_message", dies)
    before = signal.signal(signal.SIGCHLD, handler)
    try:
        assert exception.facts(ValueError("odd")).message == "odd"
        assert signal.getsignal(signal.SIGCHLD) is handler
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_replaced_file_is_not_shorter(tmp_path: Path) -> None:
    import numpy as np

    file = tmp_path / "a.bin"
    np.zeros(4096, dtype=np.float32).tofile(file)
    mapped = np.memmap(file, dtype=np.float32, mode="r")

    def shorter_files() -> list[ShorterFile]:
        found = shared_memory.shorter_files(Path("/proc/self/maps").read_text())
        return [one for one in found if str(tmp_path) in one.file]

    assert shorter_files() == []
    other = tmp_path / "b.bin"
    other.write_bytes(b"short")
    os.replace(other, file)
    assert shorter_files() == []
    again = np.memmap(tmp_path / "c.bin", dtype=np.float32, mode="w+", shape=(4096,))
    os.truncate(tmp_path / "c.bin", 4096)
    (shorter,) = shorter_files()
    assert (Path(shorter.file).name, shorter.bytes, shorter.mapped) == (
        "c.bin", 4096, 16384)  # fmt: skip
    del mapped, again


BUS = "{before}\nraise RuntimeError('DataLoader worker (pid 12) is killed by signal: Bus error. ')"
BATCH = "x = torch.zeros(1 << 20)"


@pytest.mark.parametrize(
    ("size", "free", "before", "words"),
    [
        (8 << 30, 7 << 30, BATCH, "not for lack of shared memory|7.0 GiB of 8.0 GiB of /dev/shm"),
        (8 << 30, 7 << 30, "", "a bus error (SIGBUS): either shared memory ran out|shm-size"),
        (8 << 30, 9 << 20, BATCH, "too little shared memory (SIGBUS): 9.0 MiB of 8.0 GiB|shm-size"),
        (64 << 20, 64 << 20, BATCH, "too little shared memory (SIGBUS)|64.0 MiB"),
        (8 << 30, 6 << 30, "x = torch.empty(3 << 30, dtype=torch.uint8)",
         "too little shared memory (SIGBUS)|batches on their way need 9.0 GiB"),
    ],
)  # fmt: skip
def test_a_bus_error_is_reported_by_the_room_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, free: int, before: str, words: str
) -> None:
    left: Any = os.statvfs_result((4096, 4096, size >> 12, free >> 12, free >> 12, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: left)
    monkeypatch.setattr(shared_memory, "shorter_files", lambda _: [])
    said = reported(tmp_path, BUS.format(before=before))
    for word in words.split("|"):
        assert word in said, said


# ---------------------------------------------------------------------- words and what they need

# A script, words that are told of it and, after a bar of two, words that must not be.
CASES = {
    # divisions
    "loader without a batch": (
        "total, val = 0.0, DataLoader(torch.zeros(71), 128, drop_last=True)\ntotal / len(val)",
        "len(val) is 0|val gives no batch|71 samples, batch_size=128 and drop_last=True"
        "||total is 0|max("),
    "loader of nothing": (
        "loss, val = 0.0, DataLoader([], 8)\nloss /= len(val)",
        "len(val) is 0|no samples||drop_last|max("),
    "empty list": ("losses = []\nsum(losses) / len(losses)",
                   "len(losses) is 0: the list is empty||max("),
    "count in the middle": ("a, b = 0, 0\n(a + 1) / (b * 3) + a / 7", "b * 3 is 0 (b = 0)||a is 0"),
    "interval": (
        "val = [1, 2, 3]\nfor i in val:\n    if i % (len(val) // 10): pass",
        "len(val) // 10 is 0 (len(val) = 3)|max(1, len(val) // 10)"),
    # states
    "part of a larger model": ("""
        body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        saved = {f"backbone.{k}": v for k, v in body.state_dict().items()} | {"head.bias": torch.ones(2)}
        body.load_state_dict(saved)
        """, "7 keys of the state have the prefix 'backbone.'|body.load_state_dict({k.removeprefix("
        "'backbone.'): v for k, v in saved.items() if k.startswith('backbone.')})|leaves out head.bias"
        "||strict=False"),
    "model of a larger one": ("""
        net = nn.ModuleDict({"body": nn.Linear(3, 4), "head": nn.Linear(4, 2)})
        net.load_state_dict(nn.Linear(3, 4).state_dict())
        """, "2 keys of the model begin with 'body.'|model.body.load_state_dict|head.weight, head.bias"
        "||strict=False"),
    "another model": (
        "nn.Linear(3, 4).load_state_dict({'a': torch.ones(1), 'b': torch.ones(2)})",
        "2 missing and 2 unexpected keys|strict=False would fill none of 2"),
    "nearly the same model": ("""
        net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        net.load_state_dict({k: v for k, v in net.state_dict().items() if k != "1.bias"})
        """, "1 missing keys (1.bias)|strict=False fills 3 of 4 tensors"),
    "head of another size": ("""
        make = lambda n: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, n))
        make(2).load_state_dict(make(5).state_dict())
        """, "2.weight is [5, 4]|drop the keys of the head from the state and load with strict=False"),
    "every size is another": (
        "nn.Linear(3, 4).load_state_dict(nn.Linear(5, 6).state_dict())",
        "weight is [6, 5]|the settings it was saved with||strict=False"),
    "a large model behind a prefix": ("""
        body = nn.Sequential(*(nn.Linear(2, 2) for _ in range(90)))
        body.load_state_dict({f"module.{k}": v for k, v in body.state_dict().items()})
        """, "every key of the state has the prefix 'module.'|strip it: body.load_state_dict("),
    # keys
    "number after the last": (
        "table = {k: 0 for k in range(10, 890, 10)}\ntable[1000]",
        "no key 1000|88 numbers, 10 to 880|after the last|flushed||did you mean"),
    "number between": ("table = {1: 0, 2: 0, 4: 0}\ntable[3]", "3 numbers, 1 to 4|left out||after the last"),
    "number as text": ("table = {'100': 0}\ntable['1000']", "1 number, '100'||did you mean"),
    "number among words": ("table = {'step': 0, 1: 2}\ntable['stop']", "did you mean 'step'?"),
    "misspelt word": ("table = {'lr': 0, 'epochs': 2}\ntable['epoch']", "did you mean 'epochs'?"),
    # recursions
    "circle in the data": ("""
        from functools import lru_cache
        @lru_cache(maxsize=None)
        def depth(heads, i):
            return 0 if heads[i] == 0 else 1 + depth(heads, heads[i])
        depth((0, 0, 3, 4, 2), 3)
        """, "depth calls itself without end, its arguments repeat every 3 calls|i = |circle in the "
        "data|higher recursion limit does not help||__getattr__|self("),
    "same arguments": ("def f(): return f()\nf()", "f calls itself|same arguments||circle|__getattr__"),
    "through another": ("""
        def one(n): return two(n)
        def two(n): return one(n)
        one(3)
        """, "calls itself through|same arguments"),
    "deep data": ("""
        def size(n): return 0 if n == 0 else 1 + size(n - 1)
        size(5000)
        """, "size calls itself deeper than python allows|n = |a list of what is left||does not help"),
    "list that gets shorter": ("""
        def work(todo):
            todo.pop()
            return work(todo) if todo else 0
        work([0] * 5000)
        """, "work calls itself deeper||does not help|same arguments"),
    "getattr": ("""
        class Lazy:
            def __getattr__(self, name): return self.held[name]
        Lazy().x
        """, "__getattr__ calls itself|missing||circle"),
    "forward of itself": ("""
        class Net(nn.Module):
            def forward(self, x): return self(x)
        Net()(torch.zeros(1))
        """, "forward calls its own module"),
    "module that holds its parent": ("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.part = nn.Linear(1, 1)
                self.part.parent = self
        Net().train()
        """, "train of a module goes around|holds its parent"),
    # samples
    "padded and not cut": (
        "list(DataLoader([torch.zeros(48)] * 9 + [torch.zeros(52)], 10))",
        "9 x (48,), 1 x (52,)|9 of 10 samples have 48|pads to 48 and does not cut|up to 52||pad_sequence"),
    "cut and not padded": (
        "list(DataLoader([torch.zeros(2, 48)] * 9 + [torch.zeros(2, 31)], 10))",
        "cuts to 48 and does not pad|down to 31||pad_sequence"),
    "sizes that vary": (
        "list(DataLoader([torch.zeros(n) for n in (9, 7, 7, 8, 7)], 5))", "pad_sequence||does not cut"),
    "on both sides": (
        "list(DataLoader([torch.zeros(48)] * 9 + [torch.zeros(52), torch.zeros(7)], 11))",
        "pad_sequence||does not cut|does not pad"),
    "a grey image": (
        "list(DataLoader([torch.zeros(3, 8, 8)] * 9 + [torch.zeros(1, 8, 8)], 10))",
        "3 channels in 9 of 10|convert('RGB')||does not pad|pad_sequence"),
    "images of any size": (
        "list(DataLoader([torch.zeros(3, 8, 8)] * 9 + [torch.zeros(3, 9, 7)], 10))", "Resize||does not"),
    # random places
    "shorter than the crop": ("""
        class Words(Dataset):
            clips, frame = [torch.zeros(3000), torch.zeros(2414)], 2600
            def __init__(self): self.frame = 2600
            def __len__(self): return 2
            def __getitem__(self, i):
                wav = self.clips[i]
                g = torch.randint(0, len(wav) - self.frame, (1,)).item()
                return wav[g:g + self.frame]
        list(DataLoader(Words(), 2))
        """, "len(wav) is 2414 and less than self.frame, 2600|difference -186|shorter than 2600 (sample 1)"),
    "as long as the crop": (
        "x, n = torch.zeros(3, 8), 8\ntorch.randint(0, x.shape[-1] - n, (1,))",
        "x.shape[-1] is 8, as n|x.shape[-1] - n + 1"),
    "python's own": (
        "import random\nx, n = [0] * 5, 8\nrandom.randint(0, len(x) - n)", "len(x) is 5 and less than n, 8"),
    "another difference": ("""
        a, b, low, high = 3, 7, 5, 2
        torch.randint(low, high, (a - b + 6,))
        """, "||is less than|a is 3"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_cause_is_reported_where_its_precondition_holds(tmp_path: Path, case: str) -> None:
    script, words = CASES[case]
    said, _, unsaid = words.partition("||")
    text = reported(tmp_path, script)
    for word in said.split("|"):
        assert word in text, text
    for word in unsaid.split("|"):
        assert not word or word not in text, text
    assert len(text) < 560, text


# ---------------------------------------------------------------------- layers that have worked

NET = """
net = nn.Sequential(nn.Conv2d({channels}, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 7 * 7, 3))
opt = torch.optim.{optimizer}(net.parameters(), 1e-3)
for _ in range({steps}):
    opt.zero_grad()
    net(torch.rand(2, {channels}, 7, 7)).sum().backward()
    opt.step()
opt.zero_grad()
net.eval()
net(torch.rand({shape}))
"""


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize(
    ("steps", "shape", "words", "not_words"),
    [
        (
            30,
            "2, 3, 8, 8",
            "the layer is right, 30 steps gave it 196 features|evaluation set",
            "nn.Linear(256",
        ),
        (
            30,
            "2, 1, 7, 7",
            "the layer is right, 30 steps gave it 3 channels|grey images",
            "repeat(1, 3",
        ),
        (0, "2, 3, 8, 8", "nn.Linear(256, …)", "the layer is right"),
        (0, "2, 1, 7, 7", "grey images: x.repeat(1, 3, 1, 1)", "the layer is right"),
        (0, "2, 3, 14, 7", "nn.Linear(392", "the layer is right"),
        (30, "2, 3, 14, 7", "the layer is right", "nn.Linear(392"),
    ],
)
def test_a_layer_that_has_worked_is_right(
    tmp_path: Path, optimizer: str, steps: int, shape: str, words: str, not_words: str
) -> None:
    script = NET.format(channels=3, optimizer=optimizer, steps=steps, shape=shape)
    found, _ = crash(tmp_path, script)
    cause = explain(found.data.replace(steps=steps))
    for word in words.split("|"):
        assert word in f"{cause.headline} {cause.advice}", cause
    assert not_words not in cause.advice
    # In the first step a layer may be wrong, whatever was computed of it before.
    assert "the layer is right" not in explain(found.data.replace(steps=0)).advice
