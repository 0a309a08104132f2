"""Discrete autoencoder for sensor frames with an annealed Gumbel-softmax code."""

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch._dynamo.config.cache_size_limit = 256
torch._dynamo.config.accumulated_cache_size_limit = 1024


class CodeAutoencoder(nn.Module):
    def __init__(self, frame=128, codes=8, symbols=16, width=160, anneal=40):
        super().__init__()
        self.codes, self.symbols = codes, symbols
        self.encoder = nn.Sequential(
            nn.Linear(frame, width), nn.ReLU(), nn.Linear(width, codes * symbols)
        )
        self.codebook = nn.Linear(codes * symbols, width, bias=False)
        self.decoder = nn.Sequential(nn.ReLU(), nn.Linear(width, frame))
        self.anneal = anneal
        self.seen_batches = 0

    def forward(self, frames):
        if self.training and self.seen_batches < self.anneal:
            self.seen_batches += 1
        tau = 1.0 - 0.6 * self.seen_batches / self.anneal
        logits = self.encoder(frames).view(-1, self.codes, self.symbols)
        noise = -torch.empty_like(logits).exponential_().log()
        weights = torch.softmax((logits + noise) / tau, dim=-1)
        rebuilt = self.decoder(self.codebook(weights.flatten(1)))
        probs = torch.softmax(logits, dim=-1)
        usage = (probs * (probs + 1e-8).log()).sum(-1).mean()
        return rebuilt, usage


class FrameStream:
    def __init__(self, batch, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.basis = torch.randn(12, 128, generator=self.gen)
        self.batch = batch

    def __iter__(self):
        return self

    def __next__(self):
        coefficients = torch.randn(self.batch, 12, generator=self.gen).sign()
        noise = 0.1 * torch.randn(self.batch, 128, generator=self.gen)
        return coefficients @ self.basis / 3 + noise


def train(steps=150):
    torch.manual_seed(31)
    model = CodeAutoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    compiled = torch.compile(model, backend="eager")
    stream = FrameStream(batch=384, seed=31)
    smoothed = None
    for step in range(steps):
        frames = next(stream)
        rebuilt, usage = compiled(frames)
        loss = F.mse_loss(rebuilt, frames) + 1e-3 * usage
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        smoothed = value if smoothed is None else 0.9 * smoothed + 0.1 * value
        if step % 10 == 0:
            print(f"step {step} loss {smoothed:.4f}")


if __name__ == "__main__":
    train()
