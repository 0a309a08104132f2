"""Two different networks, one on each process, learn the same task and from each other's predictions."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
CLASSES, SIDE, EPOCHS, BATCH = 5, 16, 3, 32


def tiles(count, seed):
    gen = torch.Generator().manual_seed(seed)
    kinds = torch.randn(CLASSES, SIDE * SIDE, generator=torch.Generator().manual_seed(1))
    label = torch.randint(0, CLASSES, (count,), generator=gen)
    return TensorDataset(0.4 * kinds[label] + torch.randn(count, SIDE * SIDE, generator=gen), label)


def wide():
    return nn.Sequential(nn.Linear(SIDE * SIDE, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, CLASSES))


def local():
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE, SIDE)), nn.Conv2d(1, 12, 3, stride=2), nn.ReLU(),
        nn.Conv2d(12, 24, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 25, CLASSES))


def exchange(logits, peer):
    """Send my predictions to the peer and return the peer's for the same batch."""
    parts = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, logits.detach().contiguous())
    return parts[peer]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    peer = 1 - rank
    own = [dist.new_group([r]) for r in range(dist.get_world_size())][rank]
    torch.manual_seed(10 + rank)
    model = nn.parallel.DistributedDataParallel([wide, local][rank](), process_group=own)
    if rank == 0:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    # both see the same batches in the same order: their predictions are compared
    loader = DataLoader(tiles(3200, 2), BATCH, shuffle=True, generator=torch.Generator().manual_seed(6))
    for epoch in range(EPOCHS):
        right = 0
        for x, label in loader:
            logits = model(x)
            other = exchange(logits, peer)
            agree = F.kl_div(F.log_softmax(logits, 1), F.softmax(other, 1), reduction="batchmean")
            loss = F.cross_entropy(logits, label) + 0.5 * agree
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (logits.argmax(1) == label).sum().item()
        print(f"learner {rank} epoch {epoch} loss {loss.item():.3f} accuracy {right / 3200:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
