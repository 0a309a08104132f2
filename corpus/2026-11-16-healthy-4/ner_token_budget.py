import itertools
import random
from dataclasses import dataclass, field

import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

torch.set_num_threads(1)
torch.manual_seed(6)
random.seed(6)


@dataclass
class Settings:
    vocab: int = 500
    tags: int = 7
    dim: int = 96
    micro_batch: int = 6
    tokens_per_update: int = 400
    updates: int = 96
    lr: float = 2e-3


@dataclass
class Progress:
    update: int = 0
    seen_tokens: int = 0
    losses: list = field(default_factory=list)


class Tagger(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed = nn.Embedding(s.vocab, s.dim, padding_idx=0)
        self.mix = nn.Conv1d(s.dim, s.dim, 3, padding=1)
        layer = nn.TransformerEncoderLayer(s.dim, 4, 2 * s.dim, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(s.dim, s.tags)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return self.out(self.encoder(x, src_key_padding_mask=ids == 0))


def sentences(n, s):
    for _ in range(n):
        length = min(96, max(5, int(random.lognormvariate(3.2, 0.6))))
        ids = torch.randint(1, s.vocab, (length,))
        yield ids, torch.where(ids.roll(1) % 5 == 0, ids % (s.tags - 1) + 1, 0)


def padded(rows, multiple=32):
    ids = pad_sequence([r[0] for r in rows], batch_first=True)
    tags = pad_sequence([r[1] for r in rows], batch_first=True, padding_value=-100)
    extra = -ids.shape[1] % multiple
    return F.pad(ids, (0, extra)), F.pad(tags, (0, extra), value=-100)


def micro_batches(data, size):
    while True:
        random.shuffle(data)
        for i in range(0, len(data) - size + 1, size):
            yield (*padded(data[i : i + size]), sum(len(ids) for ids, _ in data[i : i + size]))


def windows(stream, budget):
    group = []
    for item in stream:
        group.append(item)
        if (tokens := sum(n for *_, n in group)) >= budget:
            yield group, tokens
            group = []


@torch.no_grad()
def accuracy(model, data):
    model.eval()
    ids, tags = padded(data)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        guess = model(ids).argmax(-1)
    model.train()
    return ((guess == tags).sum() / (tags != -100).sum()).item()


def train(s):
    data = list(sentences(1500, s))
    held_out = list(sentences(40, s))
    model = Tagger(s)
    opt = torch.optim.AdamW(model.parameters(), lr=s.lr)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / 15))
    progress = Progress()
    feed = windows(micro_batches(data, s.micro_batch), s.tokens_per_update)
    for group, tokens in itertools.islice(feed, s.updates):
        summed = torch.zeros(())
        opt.zero_grad()
        for ids, tags, _ in group:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(ids)
            part = F.cross_entropy(logits.float().mT, tags, ignore_index=-100, reduction="sum")
            (part / tokens).backward()
            summed += part.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        warm.step()
        progress.update += 1
        progress.seen_tokens += tokens
        progress.losses.append(summed.item() / tokens)
        if progress.update % 24 == 0:
            mean, score = sum(progress.losses[-24:]) / 24, accuracy(model, held_out)
            print(
                f"{progress.update:3d} {progress.seen_tokens:6d} tokens {mean:.3f} acc {score:.3f}"
            )


if __name__ == "__main__":
    train(Settings())
