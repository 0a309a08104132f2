"""Training with noisy labels: after a warm-up, samples are weighted by how plausible they look."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Options:
    features: int = 20
    classes: int = 4
    samples: int = 960
    noise: float = 0.2
    batch_size: int = 48
    warmup_epochs: int = 2
    epochs: int = 6
    temperature: float = 2.0
    lr: float = 0.05


def make_data(opt):
    centers = 2.0 * torch.randn(opt.classes, opt.features)
    clean = torch.randint(opt.classes, (opt.samples,))
    x = centers[clean] + torch.randn(opt.samples, opt.features)
    flip = torch.rand(opt.samples) < opt.noise
    noisy = torch.where(flip, torch.randint(opt.classes, (opt.samples,)), clean)
    return TensorDataset(x, noisy, clean)


class Trainer:
    def __init__(self, opt):
        self.opt = opt
        self.model = nn.Sequential(
            nn.Linear(opt.features, 64), nn.ReLU(), nn.Linear(64, opt.classes)
        )
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=opt.lr, momentum=0.9, weight_decay=1e-4
        )
        self.epoch = 0

    def plain_loss(self, logits, labels):
        return F.cross_entropy(logits, labels)

    def weighted_loss(self, logits, labels):
        losses = F.cross_entropy(logits, labels, reduction="none")
        weights = torch.softmax(-losses.detach() / self.opt.temperature, dim=0)
        return weights * losses

    def compute_loss(self, logits, labels):
        if self.epoch < self.opt.warmup_epochs:
            return self.plain_loss(logits, labels)
        return self.weighted_loss(logits, labels)

    def train_epoch(self, loader):
        self.model.train()
        agree, seen = 0, 0
        for x, noisy, clean in loader:
            logits = self.model(x)
            loss = self.compute_loss(logits, noisy)
            self.optimizer.zero_grad()
            self.apply_gradients(loss)
            agree += (logits.argmax(1) == clean).sum().item()
            seen += len(x)
        return agree / seen

    def apply_gradients(self, loss):
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()

    def fit(self, loader):
        for self.epoch in range(self.opt.epochs):
            agree = self.train_epoch(loader)
            print(f"epoch {self.epoch}: agreement with clean labels {agree:.3f}")


def main():
    torch.manual_seed(21)
    opt = Options()
    loader = DataLoader(make_data(opt), batch_size=opt.batch_size, shuffle=True)
    Trainer(opt).fit(loader)


if __name__ == "__main__":
    main()
