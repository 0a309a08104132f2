# Small CTC acoustic model on synthetic "spoken digit strings".
# Utterances are served from short to long in every pass, as in the Deep Speech recipe.
import random

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

torch.set_num_threads(1)
random.seed(3)
np.random.seed(3)
torch.manual_seed(3)

N_MELS, N_DIGITS, BLANK = 24, 10, 0
EPOCHS, BATCH = 4, 8
templates = np.random.randn(N_DIGITS + 1, N_MELS).astype(np.float32)


def speak(digits, frames_per_digit):
    parts = []
    for d in digits:
        n = frames_per_digit + random.randint(0, 3)
        parts.append(np.repeat(templates[d][None], n, 0))
        parts.append(np.repeat(templates[0][None], random.randint(1, 3), 0))
    wave = np.concatenate(parts)
    return torch.from_numpy(wave + 0.5 * np.random.randn(*wave.shape).astype(np.float32))


def build_corpus(n):
    corpus = []
    for i in range(n):
        length = int(np.clip(np.random.lognormal(2.2, 0.75), 2, 25))
        digits = [random.randint(1, N_DIGITS) for _ in range(length)]
        # a few hurried speakers: fewer encoder frames than symbols
        rate = 1 if i % 60 == 7 else 4
        if rate == 1:
            feats = speak(digits, 1)[: length + 1]
        else:
            feats = speak(digits, rate)
        corpus.append((feats, torch.tensor(digits)))
    corpus.sort(key=lambda pair: pair[0].shape[0])
    return corpus


def batches(corpus):
    for start in range(0, len(corpus), BATCH):
        chunk = corpus[start:start + BATCH]
        feats = pad_sequence([f for f, _ in chunk], batch_first=True)
        flen = torch.tensor([f.shape[0] for f, _ in chunk])
        text = torch.cat([t for _, t in chunk])
        tlen = torch.tensor([t.shape[0] for _, t in chunk])
        yield feats, flen, text, tlen


class Acoustic(nn.Module):
    def __init__(self, hidden=56):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(N_MELS, 48, 5, padding=2), nn.ReLU(),
            nn.Conv1d(48, 48, 5, stride=2, padding=2), nn.ReLU())
        self.rnn = nn.GRU(48, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, N_DIGITS + 1)

    def forward(self, feats, flen):
        h = self.front(feats.transpose(1, 2)).transpose(1, 2)
        hlen = (flen + 1) // 2
        packed = pack_padded_sequence(h, hlen, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(h).log_softmax(-1), hlen


def greedy(log_probs, hlen):
    for row, n in zip(log_probs.argmax(-1), hlen):
        path = torch.unique_consecutive(row[:n])
        yield path[path != BLANK].tolist()


corpus = build_corpus(320)
held_out = build_corpus(24)
model = Acoustic()
criterion = nn.CTCLoss(blank=BLANK, zero_infinity=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=EPOCHS * -(-len(corpus) // BATCH))

for epoch in range(EPOCHS):
    model.train()
    running = []
    for feats, flen, text, tlen in batches(corpus):
        log_probs, hlen = model(feats, flen)
        loss = criterion(log_probs.transpose(0, 1), text, hlen, tlen)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        running.append(loss.item())
    model.eval()
    right = total = 0
    with torch.inference_mode():
        for feats, flen, text, tlen in batches(held_out):
            log_probs, hlen = model(feats, flen)
            refs = text.split(tlen.tolist())
            for hyp, ref in zip(greedy(log_probs, hlen), refs):
                right += hyp == ref.tolist()
                total += 1
    print(f"epoch {epoch}: ctc {np.mean(running):.3f} (first {running[0]:.2f}, last {running[-1]:.2f}) "
          f"exact strings {right}/{total}")
