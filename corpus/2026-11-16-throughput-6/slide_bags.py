"""Multiple instance learning: a slide is a bag of tissue regions, each with its own patches."""
import random
from types import SimpleNamespace

import torch
from torch import nn

torch.set_num_threads(1)


class RegionEncoder(nn.Module):
    def __init__(self, dim_in, dim):
        super().__init__()
        self.proj = nn.Sequential(nn.Linear(dim_in, dim), nn.GELU(), nn.LayerNorm(dim))
        self.score = nn.Sequential(nn.Linear(dim, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, patches):
        h = self.proj(patches)
        weight = torch.softmax(self.score(h), dim=0)
        return (weight * h).sum(0)


class SlideModel(nn.Module):
    def __init__(self, dim_in=48, dim=48, n_grades=3):
        super().__init__()
        self.region = RegionEncoder(dim_in, dim)
        self.gate_v = nn.Linear(dim, dim)
        self.gate_u = nn.Linear(dim, dim)
        self.attn = nn.Linear(dim, 1)
        self.head = nn.Linear(dim, n_grades)

    def forward(self, regions):
        h = torch.stack([self.region(r) for r in regions])
        a = self.attn(torch.tanh(self.gate_v(h)) * torch.sigmoid(self.gate_u(h)))
        pooled = (torch.softmax(a, 0) * h).sum(0)
        return self.head(pooled)


def make_slide(rng, prototypes, patches=24):
    grade = rng.randrange(3)
    regions = []
    for _ in range(rng.randint(2, 13)):
        x = torch.randn(patches, prototypes.shape[1])
        if rng.random() < 0.5:
            x[: patches // 4] += prototypes[grade]
        regions.append(x)
    regions[0][: patches // 3] += prototypes[grade]
    return regions, torch.tensor(grade)


def main(args):
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    prototypes = 1.5 * torch.randn(3, 48)
    slides = [make_slide(rng, prototypes) for _ in range(args.slides)]

    model = SlideModel()
    net = torch.compile(model, backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-3)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        rng.shuffle(slides)
        loss_sum, right = 0.0, 0
        for regions, grade in slides:
            logits = net(regions)
            loss = criterion(logits.unsqueeze(0), grade.unsqueeze(0))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            loss_sum += loss.item()
            right += int(logits.argmax() == grade)
        print(f"epoch {epoch + 1}: loss {loss_sum / len(slides):.3f}, accuracy {right / len(slides):.2%}")


if __name__ == "__main__":
    main(SimpleNamespace(slides=60, epochs=3, lr=1e-3, seed=7))
