"""Intent classification of chat utterances with a small transformer."""

import random

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, INTENTS, PAD = 400, 6, 0


class UtteranceEncoder(nn.Module):
    def __init__(self, dim=96, heads=4, layers=1):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.positions = nn.Embedding(96, dim)
        self.attn = nn.ModuleList(
            [nn.MultiheadAttention(dim, heads, batch_first=True) for _ in range(layers)]
        )
        self.mlp = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU())
                for _ in range(layers)
            ]
        )
        self.back = nn.ModuleList([nn.Linear(2 * dim, dim) for _ in range(layers)])
        self.head = nn.Linear(dim, INTENTS)

    def forward(self, ids):
        mask = ids == PAD
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for attn, mlp, back in zip(self.attn, self.mlp, self.back):
            mixed, _ = attn(x, x, x, key_padding_mask=mask, need_weights=False)
            x = x + mixed
            x = x + back(mlp(x))
        keep = (~mask).unsqueeze(-1).float()
        return self.head((x * keep).sum(1) / keep.sum(1))


def make_utterances(count, rng):
    data = []
    for _ in range(count):
        intent = rng.randrange(INTENTS)
        length = rng.randint(8, 20)
        words = [
            1 + intent * 60 + rng.randrange(60) if rng.random() < 0.4 else 1 + rng.randrange(399)
            for _ in range(length)
        ]
        data.append((words, intent))
    return data


def pad_batch(items):
    longest = max(len(words) for words, _ in items)
    ids = torch.tensor([words + [PAD] * (longest - len(words)) for words, _ in items])
    return ids, torch.tensor([intent for _, intent in items])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(2)
    rng = random.Random(2)
    torch._dynamo.config.recompile_limit = 64
    data = make_utterances(900, rng)
    data.sort(key=lambda item: len(item[0]))
    batches = [data[i : i + 10] for i in range(0, len(data), 10)]

    encoder = UtteranceEncoder()
    model = torch.compile(encoder, backend="eager", dynamic=False)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
    for epoch in range(2):
        rng.shuffle(batches)
        losses = []
        for batch in batches:
            ids, intents = pad_batch(batch)
            logits = model(ids)
            loss = F.cross_entropy(logits, intents)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        half = len(losses) // 2
        print(
            f"epoch {epoch}: loss {sum(losses[:half]) / half:.3f} -> "
            f"{sum(losses[half:]) / (len(losses) - half):.3f}"
        )


if __name__ == "__main__":
    main()
