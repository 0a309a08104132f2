import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

torch.set_num_threads(1)
torch.manual_seed(3)

Z, SIDE, BATCH, ITERS = 24, 20, 96, 240


def real_batch(n):
    """Images of one bright ridge at a random height and slant."""
    cols = torch.linspace(-1, 1, SIDE)
    rows = torch.linspace(-1, 1, SIDE)
    height = torch.rand(n, 1, 1) * 1.2 - 0.6
    slant = torch.rand(n, 1, 1) - 0.5
    ridge = height + slant * cols.view(1, 1, -1)
    return torch.exp(-(((rows.view(1, -1, 1) - ridge) / 0.2) ** 2)).flatten(1) * 2 - 1


def build_generator():
    return nn.Sequential(
        nn.Linear(Z, 192),
        nn.BatchNorm1d(192),
        nn.ReLU(),
        nn.Linear(192, 384),
        nn.BatchNorm1d(384),
        nn.ReLU(),
        nn.Linear(384, SIDE * SIDE),
        nn.Tanh(),
    )


def build_discriminator():
    return nn.Sequential(
        nn.Linear(SIDE * SIDE, 320),
        nn.LeakyReLU(0.2),
        nn.Linear(320, 160),
        nn.LeakyReLU(0.2),
        nn.Linear(160, 1),
    )


def curve_recorder(every):
    curves = []

    def record(step, **values):
        curves.append((step, values))
        if step % every == 0:
            print(f"[{step:4d}] " + " ".join(f"{k}={v:.3f}" for k, v in values.items()))

    def averages(last):
        tail = [vals for _, vals in curves[-last:]]
        return {k: torch.stack([v[k] for v in tail]).mean().item() for k in tail[0]}

    return record, averages


def main():
    G, D = build_generator(), build_discriminator()
    opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam(D.parameters(), lr=4e-4, betas=(0.5, 0.99))
    record, averages = curve_recorder(every=40)
    ones, zeros = torch.full((BATCH, 1), 0.9), torch.zeros(BATCH, 1)

    for step in range(ITERS):
        real = real_batch(BATCH)
        fake = G(torch.randn(BATCH, Z))

        d_loss = bce(D(real), ones) + bce(D(fake), zeros)
        opt_d.zero_grad()
        d_loss.backward(retain_graph=True)
        opt_d.step()

        g_loss = bce(D(fake), ones)
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()

        record(step, d=d_loss, g=g_loss)

    with torch.no_grad():
        sample = G(torch.randn(256, Z))
        gap = (sample.mean(0) - real_batch(2048).mean(0)).abs().mean()
    print("final", averages(20), f"mean image gap {gap.item():.3f}")


main()
