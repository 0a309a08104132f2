"""Which knot is on the photo; a small CNN on two processes."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
KNOTS, SIZE, EPOCHS, BATCH = 7, 20, 4, 20


class KnotPhotos(Dataset):
    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        ropes = torch.randn(KNOTS, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(99))
        self.knot = torch.randint(0, KNOTS, (count,), generator=gen)
        self.photo = ropes[self.knot] + 1.8 * torch.randn(count, 3, SIZE, SIZE, generator=gen)

    def __len__(self):
        return len(self.knot)

    def __getitem__(self, i):
        return self.photo[i], self.knot[i]


class KnotNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3)
        self.conv2 = nn.Conv2d(16, 24, 3)
        self.fc1 = nn.Linear(24 * 3 * 3, 64)
        self.fc2 = nn.Linear(64, KNOTS)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.dropout(F.relu(self.fc1(x.flatten(1))), 0.2, self.training)
        return self.fc2(x)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    count = torch.zeros(2)
    for photo, knot in loader:
        count[0] += (model(photo).argmax(1) == knot).sum()
        count[1] += len(knot)
    dist.all_reduce(count)
    model.train()
    return (count[0] / count[1]).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    train_set, test_set = KnotPhotos(2800, 1), KnotPhotos(400, 2)
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, BATCH, sampler=sampler)
    test_loader = DataLoader(test_set, 100, sampler=DistributedSampler(test_set, shuffle=False))
    model = DDP(KnotNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(train_loader))
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for photo, knot in train_loader:
            loss = F.cross_entropy(model(photo), knot, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        score = evaluate(model.module, test_loader)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f} accuracy {score:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
