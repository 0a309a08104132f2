from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(2)


@dataclass
class LabelSession:
    """Bookkeeping of which reef photo quadrats the biologists have labelled."""

    n_quadrats: int
    labelled: list = field(default_factory=list)

    def unlabelled(self):
        return [i for i in range(self.n_quadrats) if i not in self.labelled]

    def add(self, indices):
        self.labelled.extend(indices)


class CoverNet(nn.Module):
    def __init__(self, n_in=96, n_classes=7):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_in, 256),
            nn.GELU(),
            nn.Dropout(0.2),
            nn.Linear(256, 256),
            nn.GELU(),
            nn.Linear(256, n_classes),
        )

    def forward(self, x):
        return self.net(x)


def quadrat_features(n=3000, n_in=96, n_classes=7):
    centers = torch.randn(n_classes, n_in) * 0.45
    labels = torch.randint(0, n_classes, (n,))
    return centers[labels] + torch.randn(n, n_in), labels


def most_uncertain(model, features, candidates, k):
    model.eval()
    with torch.no_grad():
        prob = model(features[candidates]).softmax(-1)
    model.train()
    entropy = -(prob * prob.clamp_min(1e-9).log()).sum(-1)
    return [candidates[j] for j in entropy.topk(k).indices.tolist()]


def main(rounds=220, per_round=6, look_at=256, batch=64):
    features, labels = quadrat_features()
    held_out, held_labels = features[2600:], labels[2600:]
    session = LabelSession(n_quadrats=2600)
    session.add(torch.randperm(2600)[:24].tolist())
    model = CoverNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)

    for r in range(rounds):
        pool = session.unlabelled()
        candidates = [pool[j] for j in torch.randperm(len(pool))[:look_at].tolist()]
        session.add(most_uncertain(model, features, candidates, per_round))

        pick = torch.randint(0, len(session.labelled), (batch,))
        rows = torch.tensor(session.labelled)[pick]
        loss = F.cross_entropy(model(features[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if r % 44 == 43:
            model.eval()
            acc = (model(held_out).argmax(-1) == held_labels).float().mean().item()
            model.train()
            print(
                f"round {r + 1} labels {len(session.labelled)} loss {loss.item():.3f} acc {acc:.3f}"
            )


main()
