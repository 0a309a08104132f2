"""Linear adapter on frozen image features, classified by moving class prototypes."""

import torch
import torch.nn.functional as F
from torch import nn

cfg = dict(classes=12, feat_dim=512, embed_dim=128, batch=160, steps=130, momentum=0.9, tau=0.15)


def frozen_backbone_features(n, gen):
    """Stand-in for features that were extracted once with a pretrained network."""
    directions = torch.randn(cfg["classes"], cfg["feat_dim"], generator=gen)
    labels = torch.randint(0, cfg["classes"], (n,), generator=gen)
    noise = torch.randn(n, cfg["feat_dim"], generator=gen)
    nuisance = torch.randn(n, 8, generator=gen) @ torch.randn(8, cfg["feat_dim"], generator=gen)
    return 0.35 * directions[labels] + noise + 1.5 * nuisance, labels


class PrototypeHead:
    def __init__(self, classes, dim, momentum, tau):
        self.momentum, self.tau = momentum, tau
        self.prototypes = F.normalize(torch.randn(classes, dim), dim=1)

    def update(self, embeddings, labels):
        onehot = F.one_hot(labels, len(self.prototypes)).float()
        count = onehot.sum(0).clamp(min=1).unsqueeze(1)
        batch_mean = onehot.t() @ embeddings / count
        present = (onehot.sum(0) > 0).float().unsqueeze(1)
        keep = 1 - present * (1 - self.momentum)
        self.prototypes = keep * self.prototypes + (1 - keep) * batch_mean

    def logits(self, embeddings):
        return embeddings @ F.normalize(self.prototypes, dim=1).t() / self.tau


def accuracy(adapter, head, feats, labels):
    with torch.no_grad():
        return (head.logits(F.normalize(adapter(feats), dim=1)).argmax(1) == labels).float().mean()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(31)
    gen = torch.Generator().manual_seed(31)
    feats, labels = frozen_backbone_features(7000, gen)
    test_feats, test_labels = feats[6000:], labels[6000:]

    adapter = nn.Linear(cfg["feat_dim"], cfg["embed_dim"], bias=False)
    head = PrototypeHead(cfg["classes"], cfg["embed_dim"], cfg["momentum"], cfg["tau"])
    optimizer = torch.optim.SGD(adapter.parameters(), lr=0.2, momentum=0.8)

    order = torch.randperm(6000, generator=gen)
    for step in range(cfg["steps"]):
        lo = step * cfg["batch"] % (6000 - cfg["batch"])
        pick = order[lo : lo + cfg["batch"]]
        x, y = feats[pick], labels[pick]
        z = F.normalize(adapter(x), dim=1)
        head.update(z, y)
        loss = F.cross_entropy(head.logits(z), y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        if (step + 1) % 26 == 0:
            acc = accuracy(adapter, head, test_feats, test_labels).item()
            print(f"step {step + 1}: loss {loss.item():.3f} test acc {acc:.3f}")


if __name__ == "__main__":
    main()
