"""The gradient scaler never stops halving: float16 gradients overflow at every step.

Mixed precision regression on targets left in raw currency units (around 1e12). The loss is
computed in float32 and is finite, but its gradient with respect to the float16 output does not
fit at any reasonable scale, so the scaler skips every step and halves: 65536 down to 1, then
below. Users report this as an endless list of "gradient overflow, skipping step, reducing loss
scale" with the scale heading for zero and a loss that never moves.

FIRST_STEP counts attempted steps (calls of ``scaler.step``): overflow starts at attempt 0, and
attempt 16 is the one after which the scale is below 1.
"""

import torch
from torch import nn

CODE = "NUM006"
FIRST_STEP = 16

STEPS = 60
BATCH = 32


def make_companies() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(STEPS * BATCH, 40, generator=generator)
    value = 1e12 * torch.exp(0.5 * x[:, 0] + 0.2 * x[:, 1])
    return x, value[:, None]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, value = make_companies()
    model = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")

    last = float("nan")
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            prediction = model(x[rows])
        loss = nn.functional.mse_loss(prediction.float(), value[rows])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        last = loss.item()
        if step % 8 == 0:
            print(f"step {step} loss {last:.4e} scale {scaler.get_scale():g}")
    print(f"final loss {last:.4e}")


if __name__ == "__main__":
    main()
