"""Toy reading comprehension: the answer is the story's object list, reversed."""
import random
from collections import Counter

import torch
import torch.nn as nn

torch.set_num_threads(1)

NAMES = "mary john sandra daniel".split()
VERBS = "took dropped carried moved".split()
OBJECTS = "apple milk football lamp book key cup chair rope coin pen box".split()
PLACES = "kitchen garden office hallway bedroom bathroom".split()


class Dictionary:
    def __init__(self, words):
        self.itos = ["<pad>", "<eos>"] + sorted(words)
        self.stoi = {w: i for i, w in enumerate(self.itos)}
        self.pad, self.eos = 0, 1

    def encode(self, text):
        return [self.stoi[w] for w in text.split()] + [self.eos]

    def to_text(self, ids):
        words = []
        for i in ids:
            if i == self.eos:
                break
            if i != self.pad:
                words.append(self.itos[i])
        return " ".join(words)

    def __len__(self):
        return len(self.itos)


def make_story(rng, n_facts=14):
    facts, objs = [], []
    for _ in range(n_facts):
        o = rng.choice(OBJECTS)
        objs.append(o)
        facts.append(f"{rng.choice(NAMES)} {rng.choice(VERBS)} {o} {rng.choice(PLACES)}")
    return " ".join(facts), " ".join(reversed(objs))


def unigram_f1(guess, answer):
    g, a = guess.split(), answer.split()
    same = sum((Counter(g) & Counter(a)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(g), same / len(a)
    return 2 * precision * recall / (precision + recall)


class MixerReader(nn.Module):
    """Token mixing over story positions, then a per-slot classifier for the answer."""

    def __init__(self, vocab, src_len, tgt_len, hidden=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden, padding_idx=0)
        self.mix = nn.Linear(src_len, tgt_len)
        self.ff = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 96), nn.ReLU(), nn.Linear(96, hidden))
        self.out = nn.Linear(hidden, vocab)

    def forward(self, src):
        slots = self.mix(self.embed(src).transpose(1, 2)).transpose(1, 2)
        return self.out(slots + self.ff(slots))


class Agent:
    def __init__(self, dictionary, src_len, tgt_len):
        self.dict = dictionary
        self.model = MixerReader(len(dictionary), src_len, tgt_len)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=4e-3)
        self.criterion = nn.CrossEntropyLoss(ignore_index=dictionary.pad)
        self.f1 = 0.0

    def act(self, src, tgt):
        scores = self.model(src)
        loss = self.criterion(scores.flatten(0, 1), tgt.flatten())
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.opt.step()
        preds = scores.detach().argmax(-1)
        return loss.detach(), self.report(preds, tgt)

    def report(self, preds, tgt):
        guesses = [self.dict.to_text(p) for p in preds]
        answers = [self.dict.to_text(t) for t in tgt]
        batch_f1 = sum(map(unigram_f1, guesses, answers)) / len(guesses)
        self.f1 = 0.95 * self.f1 + 0.05 * batch_f1
        return self.f1


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    dictionary = Dictionary(NAMES + VERBS + OBJECTS + PLACES)
    stories = [make_story(rng) for _ in range(1600)]
    src = torch.tensor([dictionary.encode(s) for s, _ in stories])
    tgt = torch.tensor([dictionary.encode(a) for _, a in stories])
    agent = Agent(dictionary, src.size(1), tgt.size(1))
    step = 0
    for epoch in range(6):
        for idx in torch.randperm(len(stories)).split(40):
            loss, f1 = agent.act(src[idx], tgt[idx])
            if step % 40 == 0:
                print(f"[{epoch}:{step}] loss {loss.item():.3f} f1 {f1:.3f}")
            step += 1


if __name__ == "__main__":
    main()
