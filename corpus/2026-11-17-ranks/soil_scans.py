"""Soil types from spectral scans, a 1-d CNN with batch normalisation."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
SOILS, POINTS, EPOCHS = 8, 96, 4


class Scans(Dataset):
    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        shapes = torch.randn(SOILS, POINTS, generator=torch.Generator().manual_seed(44)).cumsum(1) / 6
        self.soil = torch.randint(0, SOILS, (count,), generator=gen)
        gain = 0.6 + 0.8 * torch.rand(count, 1, generator=gen)
        self.scan = gain * shapes[self.soil] + 0.5 * torch.randn(count, POINTS, generator=gen)

    def __len__(self):
        return len(self.soil)

    def __getitem__(self, i):
        return self.scan[i].unsqueeze(0), self.soil[i]


def conv(inside, outside):
    return nn.Sequential(nn.Conv1d(inside, outside, 5, stride=2), nn.BatchNorm1d(outside), nn.ReLU())


class SoilNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(conv(1, 16), conv(16, 32), conv(32, 48))
        self.out = nn.Linear(48, SOILS)

    def forward(self, scan):
        return self.out(self.features(scan).mean(dim=2))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    train_set, valid_set = Scans(3200, 1), Scans(320, 2)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=20, sampler=sampler, drop_last=True)
    valid_loader = DataLoader(valid_set, batch_size=80)
    model = DDP(SoilNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3], 0.2)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        for scan, soil in loader:
            loss = nn.functional.cross_entropy(model(scan), soil)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            right = sum((model(scan).argmax(1) == soil).sum().item() for scan, soil in valid_loader)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f} accuracy {right / len(valid_set):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
