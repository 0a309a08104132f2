"""Two scores for a wine from its tasting notes: quality, and its price class."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
WORDS, NOTE, STAGES = 300, 20, ("both", "both", "both", "quality", "both", "both")


def notes(count):
    gen = torch.Generator().manual_seed(21)
    ids = torch.randint(0, WORDS, (count, NOTE), generator=gen)
    value = torch.randn(WORDS, generator=gen)
    score = value[ids].mean(dim=1) * 4
    price = torch.bucketize(score, torch.tensor([-1.0, 0.0, 1.0]))
    return TensorDataset(ids, score, price)


class NoteModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, width)
        self.trunk = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.quality = nn.Linear(128, 1)
        self.price = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, ids, with_price):
        x = self.trunk(self.words(ids))
        return self.quality(x).squeeze(1), self.price(x) if with_price else None


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = notes(4800)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DDP(NoteModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch, stage in enumerate(STAGES):
        sampler.set_epoch(epoch)
        with_price = stage == "both"
        for ids, score, price in loader:
            quality, classes = model(ids, with_price)
            loss = nn.functional.mse_loss(quality, score)
            if classes is not None:
                loss = loss + 0.3 * nn.functional.cross_entropy(classes, price)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
