"""Keyword spotting on tiny spectrograms."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MELS = 10
N_CLASSES = 4


class ClipDataset(Dataset):
    """Clips of varying length, one of N_CLASSES tones plus noise."""

    def __init__(self, n=160, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, N_CLASSES, (n,), generator=g).tolist()
        self.clips = []
        for label in self.labels:
            frames = int(torch.randint(8, 20, (1,), generator=g))
            clip = 0.2 * torch.rand(frames, MELS, generator=g)
            clip[:, 2 * label : 2 * label + 2] += 0.8
            self.clips.append(clip * 80.0 - 80.0)  # dB scale
        # microphone muted for this one
        self.clips[77] = torch.full((12, MELS), -80.0)

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, idx):
        return self.clips[idx], self.labels[idx]


def pad_clips(items):
    clips, labels = zip(*items)
    longest = max(c.size(0) for c in clips)
    out = torch.full((len(clips), longest, MELS), -80.0)
    for row, clip in zip(out, clips):
        row[: clip.size(0)] = clip
    return out, torch.tensor(labels)


class KeywordNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(MELS, 24, kernel_size=3, padding=1)
        self.norm = nn.BatchNorm1d(24)
        self.out = nn.Linear(24, N_CLASSES)

    def forward(self, spec):
        low = spec.amin(dim=(1, 2), keepdim=True)
        high = spec.amax(dim=(1, 2), keepdim=True)
        spec = (spec - low) / (high - low)
        h = torch.relu(self.norm(self.conv(spec.transpose(1, 2))))
        return self.out(h.mean(dim=2))


class Trainer:
    def __init__(self, model, loader, lr=3e-3, max_norm=1.0):
        self.model = model
        self.loader = loader
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.max_norm = max_norm
        self.global_step = 0

    def training_step(self, batch):
        spec, target = batch
        logits = self.model(spec)
        loss = self.criterion(logits, target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        return loss.item(), (logits.argmax(1) == target).float().mean().item()

    def fit(self, epochs):
        for epoch in range(epochs):
            for batch in self.loader:
                loss, acc = self.training_step(batch)
                if self.global_step % 5 == 0:
                    print(f"epoch {epoch} step {self.global_step} loss {loss:.3f} acc {acc:.2f}")
                self.global_step += 1


def main():
    torch.manual_seed(42)
    loader = DataLoader(
        ClipDataset(),
        batch_size=10,
        shuffle=True,
        collate_fn=pad_clips,
        generator=torch.Generator().manual_seed(2),
    )
    Trainer(KeywordNet(), loader).fit(epochs=3)


if __name__ == "__main__":
    main()
