"""Train a very small GPT-2 on integer-arithmetic strings."""

import random
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB = {ch: i for i, ch in enumerate("0123456789+-*=; ")}


@dataclass
class RunState:
    step: int = 0
    smoothed: torch.Tensor | None = None
    best: float = float("inf")
    printed: list = field(default_factory=list)

    def track(self, loss, decay=0.96):
        if self.smoothed is None:
            self.smoothed = loss
        else:
            self.smoothed = decay * self.smoothed + (1 - decay) * loss
        self.step += 1


def expression(rng):
    a, b = rng.randrange(30), rng.randrange(30)
    op = rng.choice("+-*")
    return f"{a}{op}{b}={eval(f'{a}{op}{b}')};"


def encode(rng, length=40):
    text = ""
    while len(text) < length:
        text += expression(rng)
    return torch.tensor([VOCAB[c] for c in text[:length]])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = random.Random(0)
    samples = [encode(rng) for _ in range(1000)]

    accelerator = Accelerator(cpu=True)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(VOCAB),
            n_positions=40,
            n_embd=64,
            n_layer=3,
            n_head=4,
            bos_token_id=15,
            eos_token_id=15,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    loader = DataLoader(samples, batch_size=10, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    state = RunState()
    model.train()
    for tokens in loader:
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        state.track(loss)
        if state.step % 20 == 0:
            current = state.smoothed.item()
            state.best = min(state.best, current)
            state.printed.append((state.step, round(current, 4)))
            accelerator.print(f"step {state.step} smoothed {current:.4f} best {state.best:.4f}")


if __name__ == "__main__":
    main()
