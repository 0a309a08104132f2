"""Embeds signatures so that forgeries end up far away: triplet loss with batch-hard mining."""

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(13)

WRITERS, PER_WRITER, STROKE = 40, 30, 96
margin = 0.4

styles = torch.randn(WRITERS, STROKE)
signatures = styles.repeat_interleave(PER_WRITER, 0) + 1.6 * torch.randn(
    WRITERS * PER_WRITER, STROKE
)
writers = torch.arange(WRITERS).repeat_interleave(PER_WRITER)

encoder = nn.Sequential(
    nn.Unflatten(1, (1, STROKE)),
    nn.Conv1d(1, 24, 7, padding=3),
    nn.ReLU(),
    nn.Conv1d(24, 32, 5, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 46, 64),
)
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=220)


def mine(distances, owners):
    """Pairs every anchor and positive with the nearest negative."""
    anchors, positives, negatives = [], [], []
    n = len(owners)
    for a in range(n):
        p = a + 1 if a % 4 != 3 else a - 3
        chosen = None
        for k in range(n):
            if owners[k] == owners[a]:
                continue
            if chosen is None or distances[a, k] < distances[a, chosen]:
                chosen = k
        anchors.append(a)
        positives.append(p)
        negatives.append(chosen)
    return anchors, positives, negatives


for iteration in range(220):
    picked = torch.randperm(WRITERS)[:10]
    rows = (
        picked[:, None] * PER_WRITER + torch.stack([torch.randperm(PER_WRITER)[:4] for _ in picked])
    ).flatten()
    embedding = F.normalize(encoder(signatures[rows]), dim=1)
    distances = torch.cdist(embedding.detach(), embedding.detach())
    a, p, n = mine(distances, writers[rows])
    loss = F.triplet_margin_loss(embedding[a], embedding[p], embedding[n], margin=margin)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if iteration % 20 == 0 or iteration == 219:
        print(f"iteration {iteration}: triplet loss {loss.item():.4f}")
