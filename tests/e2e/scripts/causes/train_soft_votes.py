"""Emotion classifier trained on annotator votes instead of hard labels."""

import torch
from lib_losses_distill import agreement, entropy, kl_to_target
from torch import nn
from torch.utils.data import DataLoader, Dataset

EMOTIONS = ("joy", "anger", "fear", "sadness", "surprise")
ANNOTATORS = 9


class VotedClips(Dataset):
    """Clip features and the distribution of the votes.

    Votes are smoothed with one pseudo-vote per class, except for the expert-labelled clips.
    """

    def __init__(self, n=150, dim=16, expert=(104,)):
        g = torch.Generator().manual_seed(6)
        directions = torch.randn(len(EMOTIONS), dim, generator=g)
        truth = torch.randint(0, len(EMOTIONS), (n,), generator=g)
        self.features = directions[truth] + 0.7 * torch.randn(n, dim, generator=g)
        reliability = 0.15 + 0.6 * torch.nn.functional.one_hot(truth, len(EMOTIONS))
        votes = torch.zeros(n, len(EMOTIONS))
        for _ in range(ANNOTATORS):
            pick = torch.multinomial(reliability, 1, generator=g)
            votes.scatter_add_(1, pick, torch.ones_like(pick, dtype=votes.dtype))
        votes += 1.0
        for i in expert:
            votes[i] = 0.0
            votes[i, truth[i]] = 1.0
        self.votes = votes / votes.sum(dim=1, keepdim=True)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, i):
        return self.features[i], self.votes[i]


def main(epochs=4):
    torch.manual_seed(0)
    loader = DataLoader(
        VotedClips(),
        batch_size=15,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
    )
    model = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, len(EMOTIONS))
    )
    log_t = nn.Parameter(torch.zeros(()))  # the softness of the votes is learned too
    opt = torch.optim.Adam([*model.parameters(), log_t], lr=5e-3)
    step = 0
    for epoch in range(epochs):
        for x, votes in loader:
            logits = model(x)
            loss = kl_to_target(logits, votes, log_t.exp()) - 0.01 * entropy(logits)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 3 == 0:
                agree = agreement(logits, votes).item()
                print(f"epoch {epoch} step {step:2d} loss {loss.item():.4f} agree {agree:.2f}")
            step += 1


if __name__ == "__main__":
    main()
