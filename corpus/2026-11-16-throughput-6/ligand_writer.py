import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.manual_seed(1)
torch.set_num_threads(1)

TOKENS = ["<end>", "C", "N", "O", "c", "n", "F", "S", "=", "(", ")", "1"]
MAX_LEN = 9
BATCH = 112


class Writer(nn.Module):
    """Autoregressive generator of SMILES-like strings."""

    def __init__(self, hidden=48):
        super().__init__()
        self.embed = nn.Embedding(len(TOKENS) + 1, 24)
        self.cell = nn.GRUCell(24, hidden)
        self.out = nn.Linear(hidden, len(TOKENS))
        self.hidden = hidden

    def sample(self, n):
        h = torch.zeros(n, self.hidden)
        tok = torch.full((n,), len(TOKENS))
        alive = torch.ones(n)
        logp, entropy, tokens = torch.zeros(n), torch.zeros(n), []
        for _ in range(MAX_LEN):
            h = self.cell(self.embed(tok), h)
            dist = Categorical(logits=self.out(h))
            tok = dist.sample()
            logp = logp + alive * dist.log_prob(tok)
            entropy = entropy + alive * dist.entropy()
            tokens.append(tok)
            alive = alive * (tok != 0).float()
        return torch.stack(tokens, 1), logp, entropy


def to_strings(tokens):
    strings = []
    for row in tokens.tolist():
        if 0 in row:
            row = row[: row.index(0)]
        strings.append("".join(TOKENS[i] for i in row))
    return strings


class Scorer:
    """Property score with a bonus for molecules that were not proposed before."""

    def __init__(self, novelty=0.5):
        self.novelty = novelty
        self.proposed = []

    def property(self, s):
        hetero = sum(s.count(a) for a in "NOnSF")
        depth, broken = 0, 0
        for ch in s:
            depth += (ch == "(") - (ch == ")")
            if depth < 0:
                broken, depth = broken + 1, 0
        broken += depth + s.count("1") % 2 + s.count("==") + s.count("()")
        return min(hetero, 4) / 4 + 0.03 * len(s) - 0.35 * broken

    def __call__(self, strings):
        rewards = []
        for s in strings:
            r = self.property(s)
            if s not in self.proposed:
                r += self.novelty
                self.proposed.append(s)
            rewards.append(r)
        return torch.tensor(rewards)


writer = Writer()
scorer = Scorer()
optimizer = torch.optim.Adam(writer.parameters(), lr=1e-3)
baseline = 0.0

for step in range(1, 161):
    tokens, logp, entropy = writer.sample(BATCH)
    strings = to_strings(tokens)
    reward = scorer(strings)
    advantage = reward - baseline
    baseline = 0.9 * baseline + 0.1 * reward.mean().item()
    loss = -(advantage * logp).mean() - 0.02 * entropy.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step:3d} | reward {reward.mean().item():.3f} | best now {strings[reward.argmax()]}")
print("distinct molecules:", len(scorer.proposed))
