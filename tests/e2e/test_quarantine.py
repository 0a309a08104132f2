"""A poisoned file in a folder of an unmodified script: named on disk, and on request left out."""

from __future__ import annotations

import json

import pytest

from .conftest import Bench

SCRIPT = """
    import torch
    from torch.utils.data import DataLoader, Dataset, Subset

    torch.manual_seed(0)
    torch.set_num_threads(1)

    class Folder(Dataset):
        def __init__(self):
            self.samples = [(f"pictures/{i:02d}.png", i % 2) for i in range(24)]
        def __len__(self):
            return len(self.samples)
        def __getitem__(self, index):
            x = torch.full((4,), float(index) / 24)
            return (x * float("nan") if index == 17 else x), torch.tensor([float(index % 2)])

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Position 5 of the subset is sample 17 of the folder.
    loader = DataLoader(Subset(Folder(), range(12, 24)), 4, shuffle=True, num_workers=2)
    for epoch in range(3):
        seen = 0
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            seen += len(x)
        print(seen)
"""


@pytest.mark.parametrize("skip", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_poisoned_file_is_named_and_left_out_on_request(bench: Bench, skip: bool) -> None:
    script = bench.write(SCRIPT)
    options = ["--quiet", "--set", "guard.replay=false", "--set", f"quarantine.skip={skip}".lower()]
    done = bench.guarded(script, options=options)
    assert done.code == 0, done.reported
    assert done.lines == (["12", "11", "11"] if skip else ["12", "12", "12"])
    assert len(bench.record.skipped()) == (1 if skip else 3)
    (line,) = (bench.path / "quarantine.r0.jsonl").read_text().splitlines()
    sample = json.loads(line)
    assert sample["index"] == 5
    assert sample["sample"] == 17
    assert sample["file"] == "pictures/17.png"
    assert sample["dataset"] == "Folder"
    assert sample["worker"] in (0, 1)
    assert sample["step"] == bench.record.skipped()[0]
    (event,) = bench.record.events("quarantine")
    assert event.data["index"] == 5
    assert bool(bench.record.events("quarantine_kept_out")) is skip


UNREADABLE = """
    import struct
    import torch
    from pathlib import Path
    from torch.utils.data import DataLoader, Dataset

    class Files(Dataset):
        def __init__(self):
            self.files = [Path(f"{i}.bin") for i in range(24)]
        def __len__(self):
            return len(self.files)
        def __getitem__(self, index):
            return torch.tensor(struct.unpack("4f", self.files[index].read_bytes()))

    if __name__ == "__main__":
        for i in range(24):
            Path(f"{i}.bin").write_bytes(struct.pack("4f", *[float(i)] * 4) if i != 17 else b"cut")
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        how = {"num_workers": 2, "multiprocessing_context": "spawn"}
        loader = DataLoader(Files(), 4, shuffle=True, **how)
        for epoch in range(2):
            for x in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        print("done")
"""


@pytest.mark.slow
def test_a_spawned_worker_replaces_what_it_cannot_read(bench: Bench) -> None:
    done = bench.guarded(bench.write(UNREADABLE))
    assert done.code == 0 and done.lines == ["done"], done.reported
    replaced = [event.data["index"] for event in bench.record.events("unreadable")]
    assert replaced == [17] and "RUN003" in bench.record.codes()
