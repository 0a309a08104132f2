import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
torch.set_num_threads(1)

SIDE = 10
T = 40
BATCH = 128
STEPS = 240
PREVIEW_EVERY = 10

betas = torch.linspace(1e-3, 0.12, T)
alphas = 1 - betas
alpha_bar = torch.cumprod(alphas, dim=0)


def draw_runes(n):
    """Glyphs made of one vertical stem and two random strokes."""
    canvas = torch.zeros(n, SIDE, SIDE)
    stem = torch.randint(3, 7, (n,))
    canvas[torch.arange(n), :, stem] = 1.0
    for _ in range(2):
        row = torch.randint(1, SIDE - 3, (n,))
        slope = torch.randint(0, 2, (n,)) * 2 - 1
        for k in range(4):
            r = (row + k // 2).clamp(0, SIDE - 1)
            c = (stem + slope * k).clamp(0, SIDE - 1)
            canvas[torch.arange(n), r, c] = 1.0
    return canvas.view(n, -1) * 2 - 1


class Denoiser(nn.Module):
    def __init__(self, pixels=SIDE * SIDE, width=192):
        super().__init__()
        self.time = nn.Embedding(T, width)
        self.inp = nn.Linear(pixels, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(2))
        self.out = nn.Linear(width, pixels)

    def forward(self, x, t):
        h = self.inp(x) + self.time(t)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)


def diffuse(x0, t):
    noise = torch.randn_like(x0)
    ab = alpha_bar[t].unsqueeze(1)
    return ab.sqrt() * x0 + (1 - ab).sqrt() * noise, noise


def sample(model, n):
    model.eval()
    x = torch.randn(n, SIDE * SIDE)
    for i in reversed(range(T)):
        eps = model(x, torch.full((n,), i, dtype=torch.long))
        mean = (x - betas[i] / (1 - alpha_bar[i]).sqrt() * eps) / alphas[i].sqrt()
        x = mean + betas[i].sqrt() * torch.randn_like(x) if i > 0 else mean
    model.train()
    return x.view(n, SIDE, SIDE).clamp(-1, 1)


def ascii_art(glyph):
    return "\n".join("".join("#" if v > 0 else "." for v in row) for row in glyph.tolist())


dataset = draw_runes(6000)
model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
previews = {}
ema_loss = None

for step in range(1, STEPS + 1):
    x0 = dataset[torch.randint(0, len(dataset), (BATCH,))]
    t = torch.randint(0, T, (BATCH,))
    xt, noise = diffuse(x0, t)
    loss = F.mse_loss(model(xt, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    ema_loss = loss.item() if ema_loss is None else 0.95 * ema_loss + 0.05 * loss.item()

    if step % PREVIEW_EVERY == 0:
        previews[step] = sample(model, 32)
    if step % 60 == 0:
        ink = (previews[step] > 0).float().mean().item()
        print(f"step {step:4d}  loss {ema_loss:.4f}  ink in samples {ink:.3f}")

print("first preview / last preview")
first, last = min(previews), max(previews)
print(ascii_art(previews[first][0]), "\n")
print(ascii_art(previews[last][0]))
