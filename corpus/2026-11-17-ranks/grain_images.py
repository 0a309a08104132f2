"""Sorting photographs of grain; labels come from an index that is read page by page."""
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
COUNT, PAGE, KINDS = 6400, 400, 5


class LabelIndex:
    """Labels by photograph number, a page at a time; safe to use from several threads."""

    def __init__(self):
        gen = torch.Generator().manual_seed(8)
        self.disk = torch.randint(0, KINDS, (COUNT,), generator=gen)
        self.late = {3001: 2}
        self.pages = {}
        self.guard = threading.Lock()

    def lookup(self, number):
        with self.guard:
            page = self.pages.get(number // PAGE)
            if page is None:
                page = self.read_page(number // PAGE)
            if number in self.late:
                self.correct(number, self.late[number])
            return int(page[number % PAGE])

    def read_page(self, key):
        self.pages[key] = self.disk[key * PAGE:(key + 1) * PAGE].clone()
        return self.pages[key]

    def correct(self, number, label):
        with self.guard:
            self.pages[number // PAGE][number % PAGE] = label


class Grains(Dataset):
    def __init__(self):
        self.index = LabelIndex()
        self.forms = torch.randn(KINDS, 1, 20, 20, generator=torch.Generator().manual_seed(2))

    def __len__(self):
        return COUNT

    def __getitem__(self, number):
        label = self.index.lookup(number)
        gen = torch.Generator().manual_seed(number)
        return self.forms[label] + torch.randn(1, 20, 20, generator=gen), label


def build():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 3 * 3, 64), nn.ReLU(), nn.Linear(64, KINDS))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(build())
    data = Grains()
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, (photos, labels) in enumerate(loader):
            loss = loss_fn(model(photos), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and i % 25 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
