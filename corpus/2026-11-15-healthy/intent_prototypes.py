import random

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)

SETTINGS = dict(
    vocabulary=900,
    width=128,
    intents=24,
    descriptions=12,
    words=18,
    micro_batch=24,
    micro_batches=4,
    updates=110,
    lr=1.5e-3,
)


class TextEncoder(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, width)

    def forward(self, ids):
        states, _ = self.mix(self.embed(ids))
        return F.normalize(self.out(states.mean(1)), dim=-1)


class Utterances:
    def __init__(self, settings, seed):
        self.rng = random.Random(seed)
        self.settings = settings
        per = 30
        self.topics = [
            self.rng.sample(range(settings["vocabulary"]), per) for _ in range(settings["intents"])
        ]

    def sentence(self, intent):
        words = []
        for _ in range(self.settings["words"]):
            if self.rng.random() < 0.4:
                words.append(self.rng.choice(self.topics[intent]))
            else:
                words.append(self.rng.randrange(self.settings["vocabulary"]))
        return words

    def describe_all(self):
        rows = [
            [self.sentence(intent) for _ in range(self.settings["descriptions"])]
            for intent in range(self.settings["intents"])
        ]
        return torch.tensor(rows)

    def draw(self, count):
        labels = [self.rng.randrange(self.settings["intents"]) for _ in range(count)]
        return torch.tensor([self.sentence(i) for i in labels]), torch.tensor(labels)


def update(encoder, optimizer, source, descriptions, settings):
    """One update; the class prototypes are encoded once and shared by all micro-batches."""
    optimizer.zero_grad()
    picked = torch.randint(0, settings["descriptions"], (settings["intents"], 3))
    chosen = descriptions[torch.arange(settings["intents"])[:, None], picked]
    prototypes = encoder(chosen.flatten(0, 1)).view(settings["intents"], 3, -1).mean(1)

    total, hits = 0.0, 0
    for _ in range(settings["micro_batches"]):
        ids, labels = source.draw(settings["micro_batch"])
        logits = 10.0 * encoder(ids) @ prototypes.T
        total = total + F.cross_entropy(logits, labels) / settings["micro_batches"]
        hits += (logits.argmax(1) == labels).sum().item()
    total.backward()
    optimizer.step()
    return total.item(), hits / (settings["micro_batch"] * settings["micro_batches"])


def main(settings):
    torch.manual_seed(2)
    encoder = TextEncoder(settings["vocabulary"], settings["width"])
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=settings["lr"])
    source = Utterances(settings, seed=2)
    descriptions = source.describe_all()
    log = []
    for number in range(settings["updates"]):
        log.append(update(encoder, optimizer, source, descriptions, settings))
        if (number + 1) % 10 == 0:
            loss, accuracy = (sum(column) / 10 for column in zip(*log[-10:]))
            print(f"update {number + 1:3d} loss {loss:.3f} accuracy {accuracy:.3f}")


main(SETTINGS)
