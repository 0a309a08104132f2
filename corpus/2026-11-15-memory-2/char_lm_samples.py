import string

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(4)

ALPHABET = string.ascii_lowercase + " .,"
WORDS = "the river runs past a quiet mill and under an old stone bridge near our town".split()
gen = torch.Generator().manual_seed(4)


def make_text(n_words):
    picks = torch.randint(0, len(WORDS), (n_words,), generator=gen)
    return " ".join(WORDS[i] for i in picks.tolist()) + "."


corpus = torch.tensor([ALPHABET.index(c) for c in make_text(12000)])
SEQ, BATCH, STEPS = 96, 56, 150


class CharGRU(nn.Module):
    def __init__(self, n_symbols, dim=48, hidden=96):
        super().__init__()
        self.emb = nn.Embedding(n_symbols, dim)
        self.gru = nn.GRU(dim, hidden, batch_first=True)
        self.head = nn.Linear(hidden, n_symbols)

    def forward(self, x):
        out, _ = self.gru(self.emb(x))
        return self.head(out)


def decode(ids):
    return "".join(ALPHABET[i] for i in ids)


model = CharGRU(len(ALPHABET))
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
columns = ["step", "prompt", "target", "prediction", "char_nll"]
sample_table = []

for step in range(STEPS):
    starts = torch.randint(0, len(corpus) - SEQ - 1, (BATCH,))
    window = torch.stack([corpus[s : s + SEQ + 1] for s in starts])
    x, y = window[:, :-1], window[:, 1:]
    logits = model(x)
    nll = F.cross_entropy(logits.transpose(1, 2), y, reduction="none")
    loss = nll.mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()

    guesses = logits.argmax(-1).tolist()
    for src, tgt, guess, scores in zip(x.tolist(), y.tolist(), guesses, nll.tolist()):
        row = dict(zip(columns, (step, decode(src), decode(tgt), decode(guess), scores)))
        sample_table.append(row)

    if (step + 1) % 30 == 0:
        worst = max(sample_table[-BATCH:], key=lambda r: sum(r["char_nll"]))
        print(
            f"{step + 1} loss {loss.item():.3f} | {worst['target'][:24]!r} -> {worst['prediction'][:24]!r}"
        )
