"""Frame-wise chord tagging of chroma sequences with a bidirectional GRU."""

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(55)

CHORDS, CHROMA, FRAMES = 10, 12, 48
SETTINGS = {"batch": 16, "updates": 110, "check_every": 22, "check_batches": 4, "lr": 4e-3}


def songs(n):
    templates = torch.stack(
        [torch.roll(torch.tensor([1.0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0]), k) for k in range(CHORDS)]
    )
    segments = torch.randint(0, CHORDS, (n, FRAMES // 6))
    tags = segments.repeat_interleave(6, dim=1)
    return templates[tags] + 0.6 * torch.randn(n, FRAMES, CHROMA), tags


class Tagger(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.inp = nn.Linear(CHROMA, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(2 * hidden, CHORDS)

    def forward(self, chroma):
        h, _ = self.rnn(torch.relu(self.inp(chroma)))
        return self.out(self.drop(h))


def check(model, held_out):
    was_training = model.training
    model.eval()
    torch.no_grad()
    right = total = 0
    for chroma, tags in held_out:
        guess = model(chroma).argmax(dim=-1)
        right += (guess == tags).sum().item()
        total += tags.numel()
    model.train(was_training)
    return right / total


def train():
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=SETTINGS["lr"])
    held_out = [songs(160) for _ in range(SETTINGS["check_batches"])]
    criterion = nn.CrossEntropyLoss()
    update = 0
    while update < SETTINGS["updates"]:
        chroma, tags = songs(SETTINGS["batch"])
        logits = model(chroma)
        loss = criterion(logits.flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        update += 1
        if update % SETTINGS["check_every"] == 0:
            accuracy = check(model, held_out)
            print(f"{update:4d} loss {loss.item():.3f} held-out frame accuracy {accuracy:.3f}")
    return model


if __name__ == "__main__":
    train()
