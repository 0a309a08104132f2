import torch
import torch.nn as nn
import torch.nn.functional as F

FIELDS, CARDINALITY, DENSE = 6, 500, 8


class RankingQuality:
    def __init__(self):
        self.scores = torch.empty(0)
        self.labels = torch.empty(0)

    def update(self, scores, labels):
        self.scores = torch.cat([self.scores, scores.detach()])
        self.labels = torch.cat([self.labels, labels])

    def compute(self):
        order = torch.argsort(self.scores, descending=True)
        hits = self.labels[order]
        tpr = hits.cumsum(0) / hits.sum().clamp(min=1)
        fpr = (1 - hits).cumsum(0) / (1 - hits).sum().clamp(min=1)
        return torch.trapezoid(tpr, fpr).item()


class WideAndDeep(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(CARDINALITY, dim) for _ in range(FIELDS)])
        self.wide = nn.Linear(DENSE, 1)
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * dim + DENSE, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, sparse, dense):
        parts = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        return (self.wide(dense) + self.deep(torch.cat([*parts, dense], 1))).squeeze(1)


def impressions(batch_size, steps):
    effect = torch.randn(FIELDS, CARDINALITY) * 0.7
    weight = torch.randn(DENSE)
    for _ in range(steps):
        sparse = torch.randint(0, CARDINALITY, (batch_size, FIELDS))
        dense = torch.randn(batch_size, DENSE)
        logit = dense @ weight - 1.0
        for i in range(FIELDS):
            logit = logit + effect[i, sparse[:, i]]
        yield sparse, dense, torch.bernoulli(logit.sigmoid())


def train(steps=200, batch_size=1024):
    model = WideAndDeep()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    quality = RankingQuality()
    best = 0.0
    for step, (sparse, dense, clicks) in enumerate(impressions(batch_size, steps)):
        scores = model(sparse, dense)
        loss = F.binary_cross_entropy_with_logits(scores, clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        quality.update(scores, clicks)
        auc = quality.compute()
        best = max(best, auc)
        if step % 25 == 0:
            print(f"step {step:4d} | logloss {loss.item():.4f} | auc {auc:.4f}")
    print(f"best running auc {best:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(14)
    train()
