import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BLANK = 0


class SpokenDigits(Dataset):
    def __init__(self, n=240, classes=6, n_mels=8):
        g = torch.Generator().manual_seed(9)
        self.items = []
        templates = torch.randn(classes, n_mels, generator=g)
        for _ in range(n):
            length = int(torch.randint(3, 7, (1,), generator=g))
            labels = torch.randint(1, classes, (length,), generator=g)
            stretch = 4 if torch.rand(1, generator=g) > 0.01 else 1
            frames = templates[labels].repeat_interleave(stretch, dim=0)
            frames = frames + 0.1 * torch.randn(frames.shape, generator=g)
            self.items.append((frames, labels))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    frames = nn.utils.rnn.pad_sequence([b[0] for b in batch], batch_first=True)
    frame_lengths = torch.tensor([len(b[0]) for b in batch])
    labels = torch.cat([b[1] for b in batch])
    label_lengths = torch.tensor([len(b[1]) for b in batch])
    return frames, frame_lengths, labels, label_lengths


class Recognizer(nn.Module):
    def __init__(self, n_mels=8, hidden=20, classes=6):
        super().__init__()
        self.rnn = nn.GRU(n_mels, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, classes)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h).log_softmax(dim=-1)


def main():
    torch.manual_seed(6)
    loader = DataLoader(SpokenDigits(), batch_size=8, shuffle=True, collate_fn=collate)
    model = Recognizer()
    ctc = nn.CTCLoss(blank=BLANK)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    max_steps = 50
    step = 0
    batches = iter(loader)
    while step < max_steps:
        try:
            frames, frame_lengths, labels, label_lengths = next(batches)
        except StopIteration:
            batches = iter(loader)
            continue
        log_probs = model(frames).transpose(0, 1)
        loss = ctc(log_probs, labels, frame_lengths, label_lengths)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        step += 1
        if step % 10 == 0:
            print(f"step {step}: ctc {loss.item():.3f}")


if __name__ == "__main__":
    main()
