"""A collate function that pads sequences number by number."""
import torch
from torch import nn
from torch.utils.data import DataLoader


def pad(batch):
    longest = max(len(seq) for seq, _ in batch)
    x = torch.zeros(len(batch), longest)
    for row, (seq, _) in enumerate(batch):
        for column, value in enumerate(seq):
            x[row, column] = value
    return x, torch.tensor([label for _, label in batch])


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(2)
    data = [(torch.randn(40, generator=g).tolist(), k % 2) for k in range(960)]
    model = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(3):
        for x, y in DataLoader(data, batch_size=16, shuffle=True, collate_fn=pad):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


main()
