"""Next-token model on a streamed, shuffled corpus."""

import itertools
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

VOCAB = 600


class CorpusShards(IterableDataset):
    """Documents are sampled from per-topic bigram habits; order is mixed with a buffer."""

    def __init__(self, length=400, buffer_size=64, seed=1):
        self.length, self.buffer_size, self.seed = length, buffer_size, seed

    def documents(self, rng):
        while True:
            stride = rng.choice((3, 7, 11))
            token, doc = rng.randrange(VOCAB), []
            for _ in range(self.length):
                doc.append(token)
                jump = stride if rng.random() < 0.9 else rng.randrange(VOCAB)
                token = (token + jump) % VOCAB
            yield {"tokens": doc, "topic": stride}

    def __iter__(self):
        info = get_worker_info()
        rng = random.Random(self.seed + (info.id if info else 0))
        buffer = []
        for doc in self.documents(rng):
            buffer.append(doc)
            if len(buffer) >= self.buffer_size:
                yield rng.choice(buffer)


def collate(docs, span=48):
    rows = []
    for doc in docs:
        start = random.randrange(len(doc["tokens"]) - span - 1)
        rows.append(doc["tokens"][start : start + span + 1])
    return torch.tensor(rows)


class GatedLM(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.mix = nn.Conv1d(dim, 2 * dim, 3)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        h = F.pad(self.embed(tokens).transpose(1, 2), (2, 0))
        return self.out(F.glu(self.mix(h), dim=1).transpose(1, 2))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(1)
    loader = DataLoader(CorpusShards(), batch_size=24, collate_fn=collate, num_workers=2)
    model = GatedLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    smooth = None
    for step, batch in enumerate(itertools.islice(loader, 110), start=1):
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
        if step % 22 == 0:
            print(f"step {step}: loss {smooth:.3f}")
