"""The first batch takes a second, because the dataset is decoded when it is first asked."""
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Decoded(Dataset):
    def __init__(self):
        self.rows = None

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if self.rows is None:
            time.sleep(1.0)
            self.rows = torch.randn(4000, 24)
        return self.rows[index], self.rows[index, :1].sum()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for x, y in DataLoader(Decoded(), batch_size=16):
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(sum(losses) / len(losses))


main()
