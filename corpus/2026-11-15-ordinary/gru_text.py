"""Character GRU on a small text with packed sequences and dict batches; healthy."""

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

TEXT = """the quick brown fox jumps over the lazy dog
a stitch in time saves nine
all that glitters is not gold
practice makes perfect
better late than never
the early bird catches the worm
actions speak louder than words
when in rome do as the romans do
""".strip().split("\n")

CHARS = sorted(set("".join(TEXT)))
STOI = {c: i + 1 for i, c in enumerate(CHARS)}


class Lines(Dataset):
    def __init__(self, repeat=60):
        self.lines = TEXT * repeat

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return torch.tensor([STOI[c] for c in self.lines[i]])


def collate(lines):
    inputs = [line[:-1] for line in lines]
    return {
        "input": pad_sequence(inputs, batch_first=True),
        "target": pad_sequence([line[1:] for line in lines], True, padding_value=-100),
        "length": torch.tensor([len(i) for i in inputs]),
    }


class CharGRU(nn.Module):
    def __init__(self, vocab, dim=32, hidden=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.gru = nn.GRU(dim, hidden, num_layers=1, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, x, length):
        packed = pack_padded_sequence(self.emb(x), length, True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return self.out(h)


torch.manual_seed(9)
torch.set_num_threads(1)
model = CharGRU(len(CHARS) + 1)
loss_fn = nn.CrossEntropyLoss(ignore_index=-100)
optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
loader = DataLoader(Lines(), batch_size=8, shuffle=True, collate_fn=collate)

for step, batch in enumerate(loader):
    logits = model(batch["input"], batch["length"])
    loss = loss_fn(logits.flatten(0, 1), batch["target"].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 15 == 0:
        print(f"{step}: {loss.item():.4f}")
print(f"final loss {loss.item():.4f}")
