import itertools

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(21)


class GradientMonitor:
    """Cosine similarity between the gradients of neighbouring steps."""

    def __init__(self, model):
        self.model = model
        self.trace = []

    def after_backward(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.model.parameters()])
        self.trace.append(flat)

    @property
    def alignment(self):
        if len(self.trace) < 2:
            return 0.0
        return F.cosine_similarity(self.trace[-1], self.trace[-2], dim=0).item()


class Trainer:
    def __init__(self, model, batches, lr):
        self.model = model
        self.batches = batches
        self.optim = torch.optim.RMSprop(model.parameters(), lr=lr)
        self.monitor = GradientMonitor(model)
        self.step = 0

    def fit(self, steps):
        for x, y in itertools.islice(self.batches, steps):
            loss = F.huber_loss(self.model(x).squeeze(-1), y)
            self.optim.zero_grad()
            loss.backward()
            self.monitor.after_backward()
            self.optim.step()
            if self.step % 25 == 0:
                print(
                    f"[{self.step:03d}] huber={loss.item():.4f} align={self.monitor.alignment:+.3f}"
                )
            self.step += 1


def policies(batch_size=256, n_features=64):
    weight = torch.randn(n_features) / 8
    while True:
        x = torch.randn(batch_size, n_features)
        y = x @ weight + 0.3 * torch.relu(x[:, 0] * x[:, 1])
        yield x, y


model = nn.Sequential(
    nn.Linear(64, 512),
    nn.SiLU(),
    nn.Linear(512, 512),
    nn.SiLU(),
    nn.Linear(512, 64),
    nn.SiLU(),
    nn.Linear(64, 1),
)
Trainer(model, policies(), lr=3e-4).fit(230)
