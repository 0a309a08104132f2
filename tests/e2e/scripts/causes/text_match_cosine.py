"""Match questions to topics with a bag-of-words encoder and cosine similarity."""

import torch
import torch.nn.functional as F
from lib_vectors import cosine_matrix, prototypes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PAD = 0
VOCAB = 50
TOPICS = 4
MAX_WORDS = 7


class BagEncoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.words = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, ids):
        n_words = (ids != PAD).sum(dim=1, keepdim=True).clamp(min=1)
        mean = self.words(ids).sum(dim=1) / n_words
        return self.proj(mean)


def questions(n, gen):
    topic = torch.randint(0, TOPICS, (n,), generator=gen)
    ids = 1 + topic.unsqueeze(1) * 12 + torch.randint(0, 12, (n, MAX_WORDS), generator=gen)
    noise = torch.rand(n, MAX_WORDS, generator=gen) < 0.2
    ids[noise] = 49
    length = torch.randint(2, MAX_WORDS + 1, (n, 1), generator=gen)
    length[140] = 0
    ids[torch.arange(MAX_WORDS) >= length] = PAD
    return ids, topic


def main():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(2)
    ids, topic = questions(192, gen)
    loader = DataLoader(TensorDataset(ids, topic), batch_size=12, shuffle=True, generator=gen)

    encoder = BagEncoder()
    topics = nn.Parameter(torch.randn(TOPICS, 32))
    opt = torch.optim.Adam([*encoder.parameters(), topics], lr=3e-3)
    temperature = 0.1

    step = 0
    for epoch in range(3):
        for words, target in loader:
            vec = encoder(words)
            logits = cosine_matrix(vec, topics) / temperature
            loss = F.cross_entropy(logits, target)
            # pull the topic vectors towards the batch means
            with torch.no_grad():
                centre = prototypes(vec, target, TOPICS)
            loss = loss + 0.1 * (1 - cosine_matrix(topics, centre).diagonal()).mean()

            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 4 == 0:
                acc = (logits.argmax(1) == target).float().mean()
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} acc {acc.item():.2f}")
            step += 1


if __name__ == "__main__":
    main()
