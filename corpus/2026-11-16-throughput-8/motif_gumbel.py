"""Learning discrete DNA motifs through a Gumbel-softmax layer."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch._dynamo.config.recompile_limit = 2000
torch._dynamo.config.accumulated_recompile_limit = 4000

LENGTH, CODES, BATCH, STEPS = 60, 12, 48, 160


def genome(n, seed=0):
    """Random reads; half of them carry two copies of one of three planted motifs."""
    g = torch.Generator().manual_seed(seed)
    bases = torch.randint(0, 4, (n, LENGTH), generator=g)
    motifs = torch.randint(0, 4, (3, 10), generator=g)
    label = torch.zeros(n, dtype=torch.long)
    for i in range(n):
        if i % 2:
            which = int(torch.randint(0, 3, (1,), generator=g))
            at = int(torch.randint(0, LENGTH - 10, (1,), generator=g))
            bases[i, at:at + 10] = motifs[which]
            bases[i, (at + 20) % 50:(at + 20) % 50 + 10] = motifs[which]
            label[i] = which + 1
    return F.one_hot(bases, 4).float().transpose(1, 2).contiguous(), label


class MotifCoder(nn.Module):
    def __init__(self, tau_start=2.0, tau_end=0.3):
        super().__init__()
        self.tau_start, self.tau_end = tau_start, tau_end
        self.iteration = 0
        self.scan = nn.Conv1d(4, 32, 10)
        self.to_codes = nn.Conv1d(32, CODES, 1)
        self.table = nn.Parameter(torch.randn(CODES, 32) * 0.2)
        self.head = nn.Linear(32, 4)

    def temperature(self):
        done = min(1.0, self.iteration / STEPS)
        return self.tau_start + (self.tau_end - self.tau_start) * done

    def forward(self, x, noise):
        h = F.relu(self.scan(x))
        logits = self.to_codes(h).transpose(1, 2)
        soft = torch.softmax((logits + 0.2 * noise) / self.temperature(), dim=-1)
        pooled = (soft @ self.table).amax(dim=1)
        usage = soft.mean(dim=(0, 1))
        return self.head(pooled), usage


def gumbel(shape):
    return -torch.log(-torch.log(torch.rand(shape).clamp(1e-6, 1 - 1e-6)))


def main():
    torch.manual_seed(0)
    reads, labels = genome(4000)
    model = MotifCoder()
    fast = torch.compile(model, backend="aot_eager")
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    noise_shape = (BATCH, LENGTH - 9, CODES)
    total = 0.0
    for step in range(STEPS):
        if step % 4 == 0:
            model.iteration = step
        idx = torch.randint(0, len(reads), (BATCH,))
        logits, usage = fast(reads[idx], gumbel(noise_shape))
        entropy = -(usage * (usage + 1e-8).log()).sum()
        loss = F.cross_entropy(logits, labels[idx]) - 0.02 * entropy
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        total += loss.item()
        if (step + 1) % 40 == 0:
            print(f"step {step + 1:4d}  tau {model.temperature():.2f}  loss {total / 40:.4f}")
            total = 0.0


if __name__ == "__main__":
    main()
