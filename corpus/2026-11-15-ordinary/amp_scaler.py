"""Mixed precision with a gradient scaler that starts too high, overflows a few times, recovers.

This is how a scaler is meant to work: inf gradients at the start and after growth, steps skipped.
"""

import torch
import torch.nn as nn

torch.manual_seed(14)
torch.set_num_threads(1)

model = nn.Sequential(
    nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=25)
w = torch.randn(48)

for step in range(90):
    x = torch.randn(64, 48)
    y = (x @ w)[:, None]
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    loss = nn.functional.mse_loss(out.float(), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 15 == 0:
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")

print(f"final loss {loss.item():.4f}")
