"""Mixed precision training is fine until stage two adds a loss on raw microsecond timestamps.

Kind of report: "loss scale reduced again and again, down to 1e-10" after switching on an
auxiliary head. From step 30 on the float16 gradient overflows at every attempt; after step 48 the
scale is below 1 and keeps halving, while the loss itself is finite. The scaler already
skips every one of these steps, so there is nothing left to save, only to notice.
"""
# expect: none-saved
# poisoned-steps: [48]
# category: NUM006

import torch
from torch import nn

STAGE_TWO = 30
TOTAL = 76


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.kind = nn.Linear(96, 4)
        self.time = nn.Linear(96, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.time(h)


def events(batch=32):
    x = torch.randn(batch, 32)
    kind = x[:, :4].argmax(dim=1)
    time_us = 1.7e15 + 1e9 * torch.rand(batch, 1)
    return x, kind, time_us


def train_one_step(model, optimizer, scaler, with_time):
    x, kind, time_us = events()
    optimizer.zero_grad()
    with torch.autocast(device_type="cpu", dtype=torch.float16):
        kind_logits, time_pred = model(x)
    loss = nn.functional.cross_entropy(kind_logits.float(), kind)
    if with_time:
        loss = loss + nn.functional.mse_loss(time_pred.float(), time_us)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def main():
    torch.manual_seed(5)
    torch.set_num_threads(1)
    model = TwoHeads()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=10)
    for step in range(TOTAL):
        loss = train_one_step(model, optimizer, scaler, with_time=step >= STAGE_TWO)
        if step % 10 == 0:
            print(f"{step:3d} loss {loss:.5g} scale {scaler.get_scale():g}")
    print(f"final loss {loss:.5g}")


if __name__ == "__main__":
    main()
