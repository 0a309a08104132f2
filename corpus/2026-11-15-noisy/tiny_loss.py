"""Learn the one-step change of a pendulum state, in SI units: the loss ends near 1e-6."""

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(2)

DT = 0.005


def transitions(n):
    angle = (torch.rand(n) * 2 - 1) * 3.1
    speed = (torch.rand(n) * 2 - 1) * 4
    torque = torch.rand(n) * 2 - 1
    acc = -9.81 * torch.sin(angle) - 0.3 * speed + 2 * torque
    state = torch.stack([angle, speed / 4, torque], dim=1)
    return state, torch.stack([speed * DT, acc * DT], dim=1)


x, y = transitions(4096)
x_test, y_test = transitions(1000)

net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
sched = torch.optim.lr_scheduler.MultiStepLR(opt, milestones=[1000, 1300], gamma=0.2)

for step in range(1450):
    idx = torch.randint(0, len(x), (128,))
    loss = ((net(x[idx]) - y[idx]) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 100 == 0:
        print(f"step {step:5d} loss {loss.item():.3e}")

with torch.no_grad():
    print("final", ((net(x_test) - y_test) ** 2).mean().item())
