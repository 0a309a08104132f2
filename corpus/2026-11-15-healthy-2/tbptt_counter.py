import torch
import torch.nn as nn
import torch.nn.functional as F


def detach(state):
    return tuple(s.detach() for s in state)


class StatefulLSTM(nn.Module):
    def __init__(self, vocab, dim=48, hidden=160, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, x, state=None):
        out, state = self.lstm(self.emb(x), state)
        return self.head(out), state


def stream(batch, length, vocab, seed):
    gen = torch.Generator().manual_seed(seed)
    step = torch.randint(1, 4, (batch, 1), generator=gen)
    start = torch.randint(0, vocab, (batch, 1), generator=gen)
    ids = (start + step * torch.arange(length)) % vocab
    flip = torch.rand(batch, length, generator=gen) < 0.03
    return torch.where(flip, torch.randint(0, vocab, ids.shape, generator=gen), ids)


def train(vocab=40, batch=24, bptt=24, passes=4):
    torch.set_num_threads(1)
    torch.manual_seed(30)
    data = stream(batch, 50 * bptt + 1, vocab, seed=30)
    model = StatefulLSTM(vocab)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for p in range(passes):
        state, losses = None, []
        for start in range(0, data.shape[1] - 1, bptt):
            x = data[:, start : start + bptt]
            y = data[:, start + 1 : start + bptt + 1]
            logits, state = model(x, state)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            state = detach(state)
            losses.append(loss.item())
        print(f"pass {p}: start {losses[0]:.3f} end {losses[-1]:.3f}")


if __name__ == "__main__":
    train()
