# Toy GAN: learn to imitate 16-channel detector intensities (ADC counts, roughly 0..80).
import torch
from torch import nn

torch.manual_seed(2)

n_channels = 16
z_dim = 8
batch = 64
n_iter = 60

# real data: correlated bumps, positive, not centred
base = 35.0 + 20.0 * torch.sin(torch.linspace(0, 6.28, n_channels))


def real_batch(n):
    gain = 1.0 + 0.15 * torch.randn(n, 1)
    return (base * gain + 3.0 * torch.randn(n, n_channels)).clamp(min=0)


G = nn.Sequential(
    nn.Linear(z_dim, 32),
    nn.ReLU(),
    nn.Linear(32, n_channels),
    nn.Sigmoid(),
)

full_scale = 80.0  # the ADC saturates here

D = nn.Sequential(
    nn.Linear(n_channels, 64),
    nn.LeakyReLU(0.2),
    nn.Linear(64, 64),
    nn.LeakyReLU(0.2),
    nn.Linear(64, 1),
    nn.Sigmoid(),
)

opt_d = torch.optim.Adam(D.parameters(), lr=2e-2, betas=(0.5, 0.999))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))

for it in range(n_iter):
    # ---- discriminator
    x = real_batch(batch)
    z = torch.randn(batch, z_dim)
    fake = full_scale * G(z).detach()
    d_real = D(x)
    d_fake = D(fake)
    d_loss = -torch.log(d_real).mean() - torch.log(1 - d_fake).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()

    # ---- generator, non saturating version
    z = torch.randn(batch, z_dim)
    score = D(full_scale * G(z))
    g_loss = -torch.log(score).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()

    if it % 5 == 0:
        print(
            f"iter {it:3d}  D {d_loss.item():.4f}  G {g_loss.item():.4f}"
            f"  D(x) {d_real.mean().item():.3f}  D(G(z)) {score.mean().item():.3g}"
        )

with torch.no_grad():
    sample = full_scale * G(torch.randn(256, z_dim))
print("generated mean per channel:", [round(v, 2) for v in sample.mean(0).tolist()])
print("target    mean per channel:", [round(v, 2) for v in base.tolist()])
