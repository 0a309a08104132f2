"""The loss turns NaN on batches where a target proportion is exactly zero.

Topic regression with a hand-written KL divergence, ``q * log(q / p)``: correct on smoothed
proportions, but one document per epoch has an empty topic and 0 * log(0) is NaN. Inputs and
weights are finite when it happens. Users report this as "custom loss is nan on some batches".
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CODE = "NUM001"
FIRST_STEP = 12

BATCH = 32
EPOCHS = 3


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    words = torch.rand(40 * BATCH, 96, generator=generator)
    mixing = torch.randn(96, 16, generator=generator)
    topics = torch.softmax(words @ mixing / 4, dim=1)
    # a short document in which the last topic never occurs
    short = FIRST_STEP * BATCH + 5
    topics[short, 15] = 0.0
    topics[short] /= topics[short].sum()
    return TensorDataset(words, topics)


def kl_divergence(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    p = torch.softmax(logits, dim=1)
    return (target * torch.log(target / p)).sum(dim=1).mean()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_data(), batch_size=BATCH, shuffle=False)
    model = nn.Sequential(
        nn.Linear(96, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 16)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    step = 0
    loss = torch.tensor(0.0)
    for epoch in range(EPOCHS):
        for words, topics in loader:
            optimizer.zero_grad()
            loss = kl_divergence(model(words), topics)
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
