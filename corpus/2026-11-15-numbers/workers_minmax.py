"""Min-max scaling of a constant image is 0/0: the dataset hands out NaN pixels from a worker.

Kind of report: "(img - min) / (max - min) on images where max equals min", found after days of
tuning the learning rate. Batches are dicts and come from two loader processes.
"""
# expect: NUM005
# poisoned-steps: [4, 25, 38]
# category: NUM005

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    EMPTY = {55, 401}

    def __init__(self, n=576):
        g = torch.Generator().manual_seed(4)
        self.images = torch.randint(0, 200, (n, 1, 20, 20), generator=g, dtype=torch.uint8)
        self.labels = torch.randint(0, 3, (n,), generator=g)
        for i in range(n):
            k = int(self.labels[i])
            self.images[i, :, 6 * k : 6 * k + 6] += 50
        for i in self.EMPTY:
            self.images[i] = 17

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        img = self.images[i].float()
        img = (img - img.min()) / (img.max() - img.min())
        return {"image": img, "label": self.labels[i], "name": f"scan_{i:04d}"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2)
        self.fc = nn.Linear(24 * 8 * 8, 3)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        return self.fc(x.flatten(1))


if __name__ == "__main__":
    torch.manual_seed(12)
    torch.set_num_threads(1)
    loader = DataLoader(
        Scans(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True
    )
    net = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(2):
        for batch in loader:
            optimizer.zero_grad()
            out = net(batch["image"])
            loss = criterion(out, batch["label"])
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    print(f"final loss {loss.item():.4f}")
