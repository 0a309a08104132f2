import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(60)

VOCAB, TOPICS, PASSAGES, LENGTH = 1200, 60, 1800, 24
SETTINGS = dict(batch_size=48, steps=144, refresh=12, depth=20, temperature=0.07)

topic_of = torch.randint(0, TOPICS, (PASSAGES,))


def draw_text(topics):
    own = topics[:, None] * 20 + torch.randint(0, 20, (len(topics), LENGTH))
    other = torch.randint(0, VOCAB, (len(topics), LENGTH))
    return torch.where(torch.rand(len(topics), LENGTH) < 0.35, own, other)


passages = draw_text(topic_of)


class TextEncoder(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)
        self.out = nn.Linear(dim, 64)

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        x = F.gelu(self.conv(x)).mean(2)
        return F.normalize(self.out(x), dim=1)


class HardNegatives:
    def __init__(self, encoder, depth):
        self.encoder = encoder
        self.depth = depth
        self.neighbours = torch.randint(0, PASSAGES, (PASSAGES, depth))

    @torch.no_grad()
    def refresh(self):
        bank = torch.cat([self.encoder(chunk) for chunk in passages.split(256)])
        scores = bank @ bank.t()
        scores[topic_of[:, None] == topic_of[None, :]] = -1.0
        self.neighbours = scores.argsort(dim=1, descending=True)[:, : self.depth]

    def pick(self, ids):
        column = torch.randint(0, self.depth, (len(ids),))
        return self.neighbours[ids, column]


encoder = TextEncoder()
optimizer = torch.optim.AdamW(encoder.parameters(), lr=2e-3)
negatives = HardNegatives(encoder, SETTINGS["depth"])
tail = []
for step in range(1, SETTINGS["steps"] + 1):
    ids = torch.randint(0, PASSAGES, (SETTINGS["batch_size"],))
    queries = encoder(draw_text(topic_of[ids]))
    candidates = torch.cat([passages[ids], passages[negatives.pick(ids)]])
    logits = queries @ encoder(candidates).t() / SETTINGS["temperature"]
    loss = F.cross_entropy(logits, torch.arange(len(ids)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tail.append(loss.item())
    if step % SETTINGS["refresh"] == 0:
        negatives.refresh()
    if step % 30 == 0:
        print(f"step {step}: contrastive loss {sum(tail) / len(tail):.3f}")
        tail = []
