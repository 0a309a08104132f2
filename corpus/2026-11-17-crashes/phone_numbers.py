"""Reads spoken digit strings (synthetic spectrograms) with a convolution, a GRU and CTC."""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

BANDS = 20
BLANK = 10


class SpokenDigits(Dataset):
    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        self.templates = torch.rand(10, BANDS, generator=torch.Generator().manual_seed(99))
        self.strings = [
            torch.randint(10, (int(torch.randint(3, 7, (1,), generator=gen)),), generator=gen)
            for _ in range(count)
        ]

    def __len__(self):
        return len(self.strings)

    def __getitem__(self, index):
        digits = self.strings[index]
        frames = []
        for digit in digits.tolist():
            frames.append(self.templates[digit].expand(8, BANDS))
            frames.append(torch.zeros(4, BANDS))
        spectrogram = torch.cat(frames)
        return spectrogram + 0.1 * torch.randn(spectrogram.shape), digits


def collate(batch):
    spectrograms = pad_sequence([s for s, _ in batch], batch_first=True)
    digits = torch.cat([d for _, d in batch])
    frame_counts = torch.tensor([len(s) for s, _ in batch])
    digit_counts = torch.tensor([len(d) for _, d in batch])
    return spectrograms, digits, frame_counts, digit_counts


class Listener(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.conv = nn.Conv1d(BANDS, 32, 3, stride=2, padding=1)
        self.gru = nn.GRU(32, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, 11)

    def forward(self, spectrograms):
        h = torch.relu(self.conv(spectrograms.transpose(1, 2))).transpose(1, 2)
        h, _ = self.gru(h)
        return self.out(h).log_softmax(-1).transpose(0, 1)


class CtcTrainer:
    def __init__(self, model, lr):
        self.model = model
        self.criterion = nn.CTCLoss(blank=BLANK, zero_infinity=True)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def loss_of(self, batch):
        spectrograms, digits, frame_counts, digit_counts = batch
        log_probs = self.model(spectrograms)
        return self.criterion(log_probs, digits, frame_counts, digit_counts)

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            total = 0.0
            for batch in loader:
                loss = self.loss_of(batch)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
                self.optimizer.step()
                total += loss.item()
            print(f"epoch {epoch}: ctc {total / len(loader):.4f}")


if __name__ == "__main__":
    torch.manual_seed(55)
    loader = DataLoader(SpokenDigits(400, seed=4), batch_size=20, collate_fn=collate)
    CtcTrainer(Listener(), lr=3e-3).fit(loader, epochs=3)
