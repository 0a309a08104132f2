"""Character-level GRU that learns to write (very simple) recipes."""
import random
from dataclasses import dataclass, field

import torch
import torch.nn as nn

torch.set_num_threads(1)


@dataclass
class Settings:
    seq_len: int = 24
    batch: int = 16
    hidden: int = 64
    embed: int = 24
    steps: int = 170
    lr: float = 6e-3
    gen_every: int = 20
    gen_length: int = 64
    temperatures: list = field(default_factory=lambda: [0.5, 1.0])
    seed: int = 21


def write_corpus(rng, n=900):
    things = ["onion", "carrot", "butter", "flour", "sugar", "salt", "tomato", "cheese", "basil"]
    verbs = ["chop", "fry", "boil", "bake", "mix", "stir", "melt", "season"]
    times = ["2 min", "5 min", "10 min", "an hour"]
    lines = []
    for _ in range(n):
        a, b = rng.sample(things, 2)
        lines.append(f"{rng.choice(verbs)} the {a} with {b} for {rng.choice(times)}.")
    return "\n".join(lines)


class CharVocab:
    def __init__(self, text):
        self.chars = sorted(set(text))
        self.index = {c: i for i, c in enumerate(self.chars)}

    def encode(self, text):
        return torch.tensor([self.index[c] for c in text])

    def decode(self, ids):
        return "".join(self.chars[i] for i in ids)


class RecipeRNN(nn.Module):
    def __init__(self, n_chars, cfg):
        super().__init__()
        self.embed = nn.Embedding(n_chars, cfg.embed)
        self.rnn = nn.GRU(cfg.embed, cfg.hidden, batch_first=True)
        self.head = nn.Linear(cfg.hidden, n_chars)

    def forward(self, ids, state=None):
        h, state = self.rnn(self.embed(ids), state)
        return self.head(h), state


class TextGen:
    def __init__(self, cfg):
        self.cfg = cfg
        text = write_corpus(random.Random(cfg.seed))
        self.vocab = CharVocab(text)
        self.data = self.vocab.encode(text)
        self.net = RecipeRNN(len(self.vocab.chars), cfg)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=cfg.lr)
        self.criterion = nn.CrossEntropyLoss()
        self.samples = {}

    def batch(self):
        starts = torch.randint(len(self.data) - self.cfg.seq_len - 1, (self.cfg.batch, 1))
        block = self.data[starts + torch.arange(self.cfg.seq_len + 1)]
        return block[:, :-1], block[:, 1:]

    @torch.no_grad()
    def generate(self, temperature, prefix="chop the "):
        self.net.eval()
        ids = self.vocab.encode(prefix).unsqueeze(0)
        for _ in range(self.cfg.gen_length):
            logits, _ = self.net(ids)
            probs = torch.softmax(logits[:, -1] / temperature, dim=-1)
            ids = torch.cat([ids, torch.multinomial(probs, 1)], dim=1)
        self.net.train()
        return self.vocab.decode(ids[0].tolist())

    def generate_samples(self):
        return {t: self.generate(t) for t in self.cfg.temperatures}

    def fit(self):
        running = None
        for step in range(1, self.cfg.steps + 1):
            x, y = self.batch()
            logits, _ = self.net(x)
            loss = self.criterion(logits.flatten(0, 1), y.flatten())
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.opt.step()
            value = loss.item()
            running = value if running is None else 0.9 * running + 0.1 * value
            if step % self.cfg.gen_every == 0:
                self.samples[step] = self.generate_samples()
                print(f"step {step}  loss {running:.3f}")
        for temperature, text in self.samples[max(self.samples)].items():
            print(f"--- temperature {temperature}\n{text}")


if __name__ == "__main__":
    settings = Settings()
    torch.manual_seed(settings.seed)
    TextGen(settings).fit()
