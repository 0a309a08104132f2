"""Damage classes of ball bearings from vibration windows; one JSON file per machine run."""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
WINDOW = 256
CHANNELS = ("axial", "radial", "tangential")


def export_runs(folder, runs=40, length=6400):
    rng = np.random.default_rng(11)
    t = np.arange(length)
    for r in range(runs):
        damage = r % 4
        record = {"run": r, "damage": damage, "signals": {}}
        for c, name in enumerate(CHANNELS):
            wave = np.sin(t * (0.05 + 0.03 * damage) + c) + rng.normal(0, 0.8, length)
            if damage:
                wave[:: 40 + 15 * damage] += 2.5
            record["signals"][name] = [round(float(v), 5) for v in wave]
        (folder / f"run_{r:03d}.json").write_text(json.dumps(record))


class VibrationWindows(Dataset):
    def __init__(self, folder, windows_per_run=25):
        self.files = sorted(folder.glob("run_*.json"))
        self.windows_per_run = windows_per_run

    def __len__(self):
        return len(self.files) * self.windows_per_run

    def __getitem__(self, index):
        path = self.files[index // self.windows_per_run]
        start = (index % self.windows_per_run) * WINDOW
        with open(path) as handle:
            run = json.load(handle)
        window = np.array([run["signals"][c][start : start + WINDOW] for c in CHANNELS])
        window = (window - window.mean(1, keepdims=True)) / window.std(1, keepdims=True)
        return torch.tensor(window, dtype=torch.float32), run["damage"]


def build_model():
    return nn.Sequential(
        nn.Conv1d(3, 32, 9, stride=1),
        nn.ReLU(),
        nn.Conv1d(32, 32, 7, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(8),
        nn.Flatten(),
        nn.Linear(256, 4),
    )


def run_epoch(model, loader, optimizer, loss_fn):
    seen, correct, total = 0, 0, 0.0
    for windows, damage in loader:
        optimizer.zero_grad()
        logits = model(windows)
        loss = loss_fn(logits, damage)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(damage)
        correct += (logits.argmax(1) == damage).sum().item()
        seen += len(damage)
    return total / seen, correct / seen


def main():
    torch.manual_seed(5)
    folder = Path(tempfile.mkdtemp(prefix="bearings_"))
    export_runs(folder)
    loader = DataLoader(
        VibrationWindows(folder),
        batch_size=16,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
    )
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(2):
        loss, accuracy = run_epoch(model, loader, optimizer, nn.CrossEntropyLoss())
        print(f"epoch {epoch} loss {loss:.4f} accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
