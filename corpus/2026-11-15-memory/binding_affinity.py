"""Regression of binding affinity from peptide sequences, ranked by Spearman correlation."""

import torch
import torch.nn as nn
import torch.nn.functional as F

RESIDUES, LENGTH = 20, 30


class AffinityNet(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(RESIDUES, dim)
        self.position = nn.Parameter(torch.randn(LENGTH, dim) * 0.1)
        self.conv1 = nn.Conv1d(dim, 80, 5, padding=2)
        self.conv2 = nn.Conv1d(80, 80, 5, padding=2)
        self.score = nn.Linear(80, 1)

    def forward(self, peptides):
        h = (self.embed(peptides) + self.position).transpose(1, 2)
        h = F.gelu(self.conv2(F.gelu(self.conv1(h))))
        return self.score(h.amax(dim=2)).squeeze(1)


class Assay:
    def __init__(self, seed=12):
        gen = torch.Generator().manual_seed(seed)
        weights = torch.randn(RESIDUES, generator=gen)
        peptides = torch.randint(0, RESIDUES, (4200, LENGTH), generator=gen)
        smooth = weights[peptides].unfold(1, 4, 1).sum(-1)
        affinity = smooth.amax(1) + 0.2 * torch.randn(4200, generator=gen)
        self.x = peptides
        self.y = (affinity - affinity.mean()) / affinity.std()
        self.gen = gen

    def train_batch(self, size):
        pick = torch.randint(0, 3000, (size,), generator=self.gen)
        return self.x[pick], self.y[pick]

    def test_batches(self, size):
        for lo in range(3000, 4200, size):
            yield self.x[lo : lo + size], self.y[lo : lo + size]


def spearman(a, b):
    ra, rb = a.argsort().argsort().float(), b.argsort().argsort().float()
    return F.cosine_similarity(ra - ra.mean(), rb - rb.mean(), dim=0).item()


class Experiment:
    def __init__(self, steps=150, eval_every=30):
        torch.manual_seed(12)
        self.assay, self.model = Assay(), AffinityNet()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.steps, self.eval_every = steps, eval_every
        self.best = -1.0

    def test(self):
        preds, truth = [], []
        for x, y in self.assay.test_batches(60):
            preds.append(self.model(x))
            truth.append(y)
        preds, truth = torch.cat(preds), torch.cat(truth)
        return F.mse_loss(preds, truth).item(), spearman(preds, truth)

    def run(self):
        for step in range(1, self.steps + 1):
            x, y = self.assay.train_batch(80)
            loss = F.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % self.eval_every == 0:
                mse, rho = self.test()
                self.best = max(self.best, rho)
                print(f"step {step} train {loss.item():.3f} test {mse:.3f} spearman {rho:.3f}")
        print(f"best spearman {self.best:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    Experiment().run()
