import random

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(3)
rng = random.Random(3)

VERBS = ["book", "cancel", "play", "find", "remind", "call", "order", "translate"]
NOUNS = [f"item{i}" for i in range(900)]
FILL = ["please", "now", "the", "a", "for", "me", "today", "with", "and", "to", "my", "again"]


def make_utterance():
    label = rng.randrange(len(VERBS))
    words = [rng.choice(NOUNS if rng.random() < 0.5 else FILL) for _ in range(rng.randint(8, 20))]
    words.insert(rng.randrange(len(words)), VERBS[label])
    return " ".join(words), label


corpus = [make_utterance() for _ in range(2400)]
valid = [make_utterance() for _ in range(320)]

vocab = {"<pad>": 0, "<unk>": 1}
features = {}
MAX_LEN, N_GRAM_DIM, MAX_VOCAB = 22, 512, 1200


def featurize(text, grow):
    ids = []
    for w in text.split():
        if grow and w not in vocab and len(vocab) < MAX_VOCAB:
            vocab[w] = len(vocab)
        ids.append(vocab.get(w, 1))
    ids = ids[:MAX_LEN] + [0] * (MAX_LEN - len(ids))
    grams = [0.0] * N_GRAM_DIM
    raw = text.encode()
    for a, b, c in zip(raw, raw[1:], raw[2:]):
        grams[(a * 961 + b * 31 + c) % N_GRAM_DIM] += 0.2
    return torch.tensor(ids), torch.tensor(grams)


def encode(idx):
    if idx not in features:
        features[idx] = featurize(corpus[idx][0], grow=True)
    return features[idx]


class IntentNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(MAX_VOCAB, 64, padding_idx=0)
        self.rnn = nn.GRU(64, 160, batch_first=True)
        self.grams = nn.Linear(N_GRAM_DIM, 64)
        self.out = nn.Linear(160 + 64, len(VERBS))

    def forward(self, ids, grams):
        h, _ = self.rnn(self.emb(ids))
        return self.out(torch.cat([h.amax(1), torch.relu(self.grams(grams))], dim=1))


model = IntentNet()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()
history = []

for epoch in range(5):
    order = list(range(len(corpus)))
    rng.shuffle(order)
    total = 0.0
    for start in range(0, len(order), 64):
        chunk = order[start : start + 64]
        ids, grams = map(torch.stack, zip(*(encode(i) for i in chunk)))
        target = torch.tensor([corpus[i][1] for i in chunk])
        loss = criterion(model(ids, grams), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(chunk)
    model.eval()
    with torch.no_grad():
        ids, grams = map(torch.stack, zip(*(featurize(t, grow=False) for t, _ in valid)))
        pred = model(ids, grams).argmax(1)
        acc = (pred == torch.tensor([y for _, y in valid])).float().mean().item()
    model.train()
    history.append({"loss": total / len(order), "acc": acc})
    print(f"epoch {epoch} loss {history[-1]['loss']:.4f} acc {acc:.3f} vocab {len(vocab)}")
