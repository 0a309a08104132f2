import argparse
import random

import torch
import torch.nn.functional as F
from pair_sampler import PairSampler
from torch import nn


def synthetic_corpus(vocab, topics, sentences, rng):
    per_topic = vocab // topics
    corpus = []
    for _ in range(sentences):
        topic = rng.randrange(topics)
        start = topic * per_topic
        length = rng.randint(8, 16)
        corpus.append([start + int(per_topic * rng.random() ** 2) for _ in range(length)])
    return corpus


class SkipGram(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.inner = nn.Embedding(vocab, dim)
        self.outer = nn.Embedding(vocab, dim)
        nn.init.uniform_(self.inner.weight, -0.5 / dim, 0.5 / dim)
        nn.init.uniform_(self.outer.weight, -0.5 / dim, 0.5 / dim)

    def forward(self, centers, contexts, noise):
        v = self.inner(centers)
        positive = (v * self.outer(contexts)).sum(-1)
        negative = torch.einsum("bd,bkd->bk", v, self.outer(noise))
        return -(F.logsigmoid(positive) + F.logsigmoid(-negative).sum(-1)).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=1500)
    parser.add_argument("--dim", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=384)
    parser.add_argument("--steps", type=int, default=170)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    rng = random.Random(1)
    sampler = PairSampler(synthetic_corpus(args.vocab, 12, 3000, rng), seed=1)
    model = SkipGram(args.vocab, args.dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    step, smoothed = 0, None
    while step < args.steps:
        batch = sampler.next_batch(args.batch_size)
        centers, contexts, noise = (torch.tensor(part) for part in batch)
        loss = model(centers, contexts, noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        smoothed = loss.item() if smoothed is None else 0.9 * smoothed + 0.1 * loss.item()
        step += 1
        if step % 40 == 0:
            print(f"{step:5d} nce loss {smoothed:.4f}")


if __name__ == "__main__":
    main()
