from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(21)

N_CLASSES, DIM, BATCH, TEMPERATURE = 2000, 128, 192, 0.2
CENTRES = torch.randn(N_CLASSES, DIM) * 1.5


def two_views(batch):
    labels = torch.randint(0, N_CLASSES, (batch,))
    base = CENTRES[labels] + 0.3 * torch.randn(batch, DIM)
    return tuple(base + 1.2 * torch.randn(batch, DIM) for _ in range(2))


def info_nce(za, zb):
    z = torch.cat([za, zb])
    sim = z @ z.T / TEMPERATURE
    sim.fill_diagonal_(float("-inf"))
    n = za.shape[0]
    positives = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, positives)


def build(width=384, out=96):
    return nn.Sequential(
        nn.Linear(DIM, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, out),
    )


def make_stepper(net, opt, log_len=10_000):
    losses = deque(maxlen=log_len)
    uniformity = deque(maxlen=log_len)

    def step(a, b):
        za, zb = F.normalize(net(a), dim=1), F.normalize(net(b), dim=1)
        loss = info_nce(za, zb)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        losses.append(loss.item())
        uniformity.append(torch.pdist(za).pow(2).mul(-2).exp().mean().log())

    def report(last):
        recent = list(losses)[-last:]
        spread = torch.stack(list(uniformity)[-last:]).mean()
        return sum(recent) / len(recent), spread.item()

    return step, report


encoder = build()
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
step, report = make_stepper(encoder, optimizer)

done = 0
while done < 280:
    step(*two_views(BATCH))
    done += 1
    if done % 40 == 0:
        nce, uni = report(last=40)
        print(f"step {done:4d}  nce {nce:.4f}  uniformity {uni:.3f}")
