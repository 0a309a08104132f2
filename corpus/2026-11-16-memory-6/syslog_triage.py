"""Severity triage of system log lines with a small sub-word attention model."""
import random
import string

import torch
import torch.nn as nn
import torch.nn.functional as F


class SubwordTokenizer:
    """Greedy longest-match pieces over a vocabulary of frequent character n-grams."""

    def __init__(self, corpus, size=1500, longest=4):
        self.longest = longest
        self.cache = {}
        counts = {}
        for line in corpus:
            for word in line.split():
                for n in range(1, longest + 1):
                    for i in range(len(word) - n + 1):
                        counts[word[i:i + n]] = counts.get(word[i:i + n], 0) + 1
        kept = sorted(counts, key=counts.get, reverse=True)[:size]
        self.vocab = {piece: i + 2 for i, piece in enumerate(kept)}

    def split_word(self, word):
        if word in self.cache:
            return self.cache[word]
        pieces, i = [], 0
        while i < len(word):
            for n in range(self.longest, 0, -1):
                piece = word[i:i + n]
                if piece in self.vocab or n == 1:
                    pieces.append((piece, self.vocab.get(piece, 1)))
                    i += len(piece)
                    break
        self.cache[word] = pieces
        return pieces

    def encode(self, line):
        return [i for word in line.split() for _, i in self.split_word(word)]


class LogSource:
    SERVICES = ["sshd", "kernel", "nginx", "postgres", "cron", "docker", "systemd"]
    CALM = ["session opened for user", "started unit", "accepted connection from", "checkpoint complete at"]
    WARN = ["long query took", "retrying upstream", "high latency on", "disk usage above"]
    BAD = ["segfault at address", "out of space on", "connection refused by", "corrupt page in block"]

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def hexid(self, n):
        return "".join(self.rng.choices(string.hexdigits.lower(), k=n))

    def line(self):
        level = self.rng.choices([0, 1, 2], weights=[5, 3, 2])[0]
        text = self.rng.choice((self.CALM, self.WARN, self.BAD)[level])
        service = self.rng.choice(self.SERVICES)
        ip = ".".join(str(self.rng.randrange(256)) for _ in range(4))
        return f"{service}[{self.rng.randrange(65536)}]: {text} {ip} req={self.hexid(12)} trace={self.hexid(32)}", level

    def batch(self, n):
        lines, levels = zip(*(self.line() for _ in range(n)))
        return lines, torch.tensor(levels)


class TriageModel(nn.Module):
    def __init__(self, vocab, dim=160):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.score = nn.Linear(dim, 1)
        self.out = nn.Linear(dim, 3)

    def forward(self, tokens):
        h = self.embed(tokens)
        h = h + self.mix(h)
        weight = self.score(h).squeeze(-1).masked_fill(tokens == 0, -1e9).softmax(dim=1)
        return self.out((weight.unsqueeze(-1) * h).sum(1))


def collate(tokenizer, lines):
    encoded = [torch.tensor(tokenizer.encode(line)) for line in lines]
    return nn.utils.rnn.pad_sequence(encoded, batch_first=True)


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    source = LogSource(seed=1)
    tokenizer = SubwordTokenizer([source.line()[0] for _ in range(2000)])
    model = TriageModel(len(tokenizer.vocab) + 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    correct = seen = 0
    for step in range(1, 181):
        lines, levels = source.batch(80)
        logits = model(collate(tokenizer, lines))
        loss = F.cross_entropy(logits, levels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (logits.argmax(1) == levels).sum().item()
        seen += len(levels)
        if step % 30 == 0:
            print(f"batch {step:4d}  loss {loss.item():.4f}  accuracy {correct / seen:.3f}")
            correct = seen = 0


if __name__ == "__main__":
    main()
