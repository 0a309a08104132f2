import torch
import torch.nn as nn
import torch.nn.functional as F


class DocScorer(nn.Module):
    def __init__(self, vocab=600, dim=64, hidden=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, tokens):
        h, _ = self.rnn(self.emb(tokens))
        return self.out(h.mean(dim=1)).squeeze(1)


def ratings(n, vocab, length, seed):
    gen = torch.Generator().manual_seed(seed)
    weight = torch.randn(vocab, generator=gen)
    tokens = torch.randint(0, vocab, (n, length), generator=gen)
    score = weight[tokens].sum(1) / length**0.5
    return tokens, score


def windows(sizes):
    while True:
        yield from sizes


def train(max_updates=140, micro=32):
    torch.set_num_threads(1)
    torch.manual_seed(14)
    tokens, score = ratings(6000, 600, 24, seed=14)
    model = DocScorer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = windows([2, 4, 4, 3, 6, 4, 2])
    running, history = None, []
    for update in range(max_updates):
        parts = next(schedule)
        optimizer.zero_grad()
        loss_sum = torch.zeros(())
        for _ in range(parts):
            idx = torch.randint(0, len(tokens), (micro,))
            loss = F.mse_loss(model(tokens[idx]), score[idx]) / parts
            loss.backward()
            loss_sum += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update % 10 == 9:
            value = loss_sum.item()
            running = value if running is None else 0.7 * running + 0.3 * value
            history.append(round(running, 4))
            print(f"update {update + 1} window {parts} running mse {running:.4f}")
    print("history", history)


if __name__ == "__main__":
    train()
