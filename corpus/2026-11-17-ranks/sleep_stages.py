"""Sleep stages from wrist movement; nights of the participants are dealt out to the processes."""
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
STAGES, MINUTES, BATCH = 4, 40, 16


def nights_of(person):
    gen = torch.Generator().manual_seed(person)
    count = 180 + 14 * (person % 5)
    stage = torch.randint(0, STAGES, (count,), generator=gen)
    t = torch.arange(MINUTES).float()
    speed = 0.2 + 0.3 * stage.float().unsqueeze(1)
    moves = torch.sin(speed * t + 6 * torch.rand(count, 1, generator=gen))
    return moves + 0.4 * torch.randn(count, MINUTES, generator=gen), stage


def dataset_for(rank, world, people=24):
    mine = [nights_of(person) for person in range(people) if person * world // people == rank]
    return TensorDataset(torch.cat([m for m, _ in mine]).unsqueeze(-1), torch.cat([s for _, s in mine]))


class StageNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.gru = nn.GRU(1, width, batch_first=True)
        self.out = nn.Linear(width, STAGES)

    def forward(self, moves):
        states, _ = self.gru(moves)
        return self.out(states.mean(dim=1))


def train_epoch(model, loader, optimizer):
    total = torch.zeros(2)
    for moves, stage in loader:
        loss = nn.functional.cross_entropy(model(moves), stage)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += torch.tensor([loss.item() * len(stage), len(stage)])
    return total


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    model = DDP(StageNet())
    loader = DataLoader(dataset_for(rank, world), BATCH, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        total = train_epoch(model, loader, optimizer)
        dist.barrier()
        if rank == 0:
            print(f"epoch {epoch} loss {(total[0] / total[1]).item():.4f}", flush=True)
            torch.save(model.module.state_dict(), "/dev/null")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
