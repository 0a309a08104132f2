"""The loss stays finite but the gradient is NaN: a square root of exactly zero in backward.

A small audio classifier pools its frames to mean and standard deviation (statistics pooling).
The deviation is written ``var.sqrt()``; a clip of digital silence has variance 0, so forward is
fine and backward computes 0 * inf. Users report this as "loss looks normal, then every weight is
nan after one step", typically with sqrt, norm or pairwise distances.
"""

import torch
from torch import Tensor, nn

CODE = "NUM002"
FIRST_STEP = 21

STEPS = 80
BATCH = 24


class ClipClassifier(nn.Module):
    def __init__(self, bands: int = 20, width: int = 64, classes: int = 6) -> None:
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv1d(bands, width, kernel_size=5),
            nn.ReLU(),
            nn.Conv1d(width, width, kernel_size=3),
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, spectrogram: Tensor) -> Tensor:
        h = self.frames(spectrogram)
        mean = h.mean(dim=2)
        std = h.var(dim=2).sqrt()
        return self.head(torch.cat([mean, std], dim=1))


def make_clips() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 6, (STEPS * BATCH,), generator=generator)
    clips = torch.randn(STEPS * BATCH, 20, 60, generator=generator)
    clips = clips * (1 + labels[:, None, None] * 0.3)
    for batch in (FIRST_STEP, 49):
        clips[batch * BATCH + 2] = 0.0  # the microphone was muted
    return clips, labels


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    clips, labels = make_clips()
    model = ClipClassifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    last = float("nan")
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        loss = criterion(model(clips[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        if step % 10 == 0:
            print(f"step {step:3d}  loss {last:.4f}")
    print(f"final loss {last:.4f}")


if __name__ == "__main__":
    main()
