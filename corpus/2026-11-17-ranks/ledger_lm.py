"""Small language model on bookkeeping entries; entries are grouped by length so that little is padded."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
VOCAB, WIDTH, BATCH, EPOCHS = 96, 64, 8, 2


def entries(count, seed):
    gen = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(count):
        length = int(torch.randint(12, 110, (1,), generator=gen))
        start = torch.randint(1, VOCAB, (1,), generator=gen)
        stride = torch.randint(1, 7, (1,), generator=gen)
        out.append((start + stride * torch.arange(length)) % (VOCAB - 1) + 1)
    return out


def pad(batch):
    return nn.utils.rnn.pad_sequence(batch, batch_first=True)


class EntryModel(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.token = nn.Embedding(VOCAB, WIDTH, padding_idx=0)
        self.place = nn.Embedding(128, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        n = ids.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        x = self.token(ids) + self.place(torch.arange(n))
        return self.out(self.layers(x, mask=mask, is_causal=True))


def my_part(data, rank, world):
    data = sorted(data, key=len)
    share = len(data) // world
    return data[rank * share:(rank + 1) * share]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(EntryModel())
    part = my_part(entries(1600, 5), rank, world)
    batches = [pad(part[i:i + BATCH]) for i in range(0, len(part), BATCH)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20)
    step = 0
    for epoch in range(EPOCHS):
        order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(epoch))
        for k in order.tolist():
            ids = batches[k]
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warm.step()
            step += 1
            if rank == 0 and step % 40 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
