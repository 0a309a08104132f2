"""Next-note model on long synthetic melodies, read in windows that get longer during training."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(42)

VOCAB, STREAMS = 48, 24


def compose(n_notes):
    """Markov melodies with a slowly drifting key, one row per stream."""
    table = torch.randn(VOCAB, VOCAB).mul(1.8).softmax(-1)
    note = torch.randint(0, VOCAB, (STREAMS,))
    song = torch.empty(STREAMS, n_notes, dtype=torch.long)
    for i in range(n_notes):
        song[:, i] = note
        key = (i // 200) % 12
        note = (torch.multinomial(table[note], 1).squeeze(1) + (1 if key > 8 else 0)) % VOCAB
    return song


class MelodyModel(nn.Module):
    def __init__(self, dim=48, hidden=96):
        super().__init__()
        self.notes = nn.Embedding(VOCAB, dim)
        self.rnn = nn.LSTM(dim, hidden, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(hidden, VOCAB)
        self.state = None

    def reset(self):
        self.state = None

    def forward(self, x):
        out, (h, c) = self.rnn(self.notes(x), self.state)
        self.state = (h.detach(), c.detach())
        return self.head(out)


def window_length(step):
    for limit, length in ((50, 12), (100, 24), (150, 36)):
        if step < limit:
            return length
    return 48


def perplexity(model, song, length=100):
    kept = model.state
    model.reset()
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for i in range(0, song.size(1) - length - 1, length):
            x, y = song[:, i:i + length], song[:, i + 1:i + length + 1]
            total += nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
            count += 1
    model.train()
    model.state = kept
    return torch.tensor(total / count).exp().item()


def train(steps=320):
    song = compose(3000)
    train_part, valid_part = song[:, :2600], song[:, 2600:]
    model = MelodyModel()
    opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1)
    pos, losses = 0, []
    for step in range(steps):
        length = window_length(step)
        if pos + length + 1 > train_part.size(1):
            pos = 0
            model.reset()
        x = train_part[:, pos:pos + length]
        y = train_part[:, pos + 1:pos + length + 1]
        pos += length
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
        if (step + 1) % 80 == 0:
            ppl = perplexity(model, valid_part)
            plateau.step(ppl)
            mean = sum(losses[-80:]) / 80
            print(f"step {step + 1:4d} | window {length:3d} | train nll {mean:.3f} | valid ppl {ppl:.2f}")
    return losses


if __name__ == "__main__":
    curve = train()
    print(f"first {curve[0]:.3f}, last {curve[-1]:.3f}")
