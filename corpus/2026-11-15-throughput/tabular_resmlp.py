"""House prices with a deep residual MLP and a callback that follows the gradients."""

import math

import torch
from torch import nn

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.norm(x)))) * 0.2


class PriceModel(nn.Module):
    def __init__(self, features=24, width=48, depth=30):
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.blocks(self.stem(x))).squeeze(-1)


class Callback:
    def after_backward(self, loop):
        pass

    def after_step(self, loop):
        pass


class GradientWatch(Callback):
    """Keeps the loop from stepping on bad gradients and remembers the extremes."""

    def __init__(self):
        self.extremes = {}
        self.peak = 0.0
        self.skipped = 0

    def after_backward(self, loop):
        loop.usable = True
        for name, p in loop.model.named_parameters():
            if not torch.isfinite(p.grad).all().item():
                loop.usable = False
                self.skipped += 1
            self.peak = max(self.peak, p.grad.abs().max().item())
            ratio = p.grad.norm().item() / (p.detach().norm().item() + 1e-8)
            low, high = self.extremes.get(name, (math.inf, 0.0))
            self.extremes[name] = (min(low, ratio), max(high, ratio))


class Printer(Callback):
    def after_step(self, loop):
        if loop.step % 60 == 0:
            print(f"step {loop.step:4d} loss {loop.loss.item():.4f}")


class Loop:
    def __init__(self, model, callbacks, lr=1e-3):
        self.model = model
        self.callbacks = callbacks
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.step, self.usable, self.loss = 0, True, None

    def emit(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self)

    def run(self, features, prices, steps, batch):
        while self.step < steps:
            rows = torch.randint(0, len(features), (batch,))
            self.loss = nn.functional.mse_loss(self.model(features[rows]), prices[rows])
            self.optimizer.zero_grad()
            self.loss.backward()
            self.emit("after_backward")
            if self.usable:
                self.optimizer.step()
            self.emit("after_step")
            self.step += 1


if __name__ == "__main__":
    torch.manual_seed(9)
    features = torch.randn(4096, 24)
    prices = features[:, 0] * features[:, 1] + torch.sin(2 * features[:, 2]) + 0.5 * features[:, 3]
    watch = GradientWatch()
    Loop(PriceModel(), [watch, Printer()]).run(features, prices, steps=280, batch=64)
    widest = max(watch.extremes, key=lambda n: watch.extremes[n][1])
    print("largest gradient ratio:", widest, "peak:", watch.peak)
