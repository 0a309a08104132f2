"""Hash-embedding sentiment model on a stream of forum posts, one pass over the data."""

import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)

GOOD = ["great", "solid", "lovely", "works", "thanks"]
BAD = ["awful", "broken", "refund", "worst", "noisy"]
NEUTRAL = ["phone", "case", "order", "box", "week", "store", "cable", "model", "price", "color"]


class ForumPosts(IterableDataset):
    def __init__(self, n_posts, seed=9):
        self.n_posts, self.seed = n_posts, seed

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        for post_id in range(self.n_posts):
            label = int(rng.integers(0, 2))
            words = [NEUTRAL[j] for j in rng.integers(0, len(NEUTRAL), 8)]
            words += [(GOOD if label else BAD)[j] for j in rng.integers(0, 5, 2)]
            yield f"post-{post_id:07d}", [zlib.crc32(w.encode()) % 2048 for w in words], label


def collate(items):
    keys, ids, labels = zip(*items)
    return list(keys), torch.tensor(ids), torch.tensor(labels).float()


class SentimentNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(2048, 96, mode="mean")
        self.net = nn.Sequential(
            nn.Linear(96, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 1)
        )

    def forward(self, ids):
        return self.net(self.bag(ids)).squeeze(-1)


def main(n_posts=64 * 210):
    torch.manual_seed(9)
    model = SentimentNet()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    known, repeats = [], 0
    loader = DataLoader(ForumPosts(n_posts), batch_size=64, collate_fn=collate)
    for step, (keys, ids, labels) in enumerate(loader):
        for key in keys:
            if key in known:
                repeats += 1
            else:
                known.append(key)
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f} posts {len(known)} repeats {repeats}")


if __name__ == "__main__":
    main()
