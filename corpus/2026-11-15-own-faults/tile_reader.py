"""Two workers read tiles from text files, and one kind of tile is stored without an index."""
import os
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset):
    def __init__(self, folder, count):
        self.folder, self.count = folder, count
        for i in range(count):
            with open(os.path.join(folder, f"{i}.txt"), "w") as f:
                f.write(" ".join(str((i * k) % 17) for k in range(64)))

    def __len__(self):
        return self.count

    def read(self, index):
        with open(os.path.join(self.folder, f"{index}.txt")) as f:
            values = [float(v) for v in f.read().split()]
        if index % 40 == 11:
            time.sleep(0.12)  # the store is slow for these
        return values

    def __getitem__(self, index):
        return torch.tensor(self.read(index)) / 17, index % 3


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(Tiles(folder, 960), batch_size=12, shuffle=True, num_workers=2)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(loss.item())


if __name__ == "__main__":
    main()
