# Few-shot system identification: second order MAML on damped oscillators.
import math
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

torch.set_num_threads(1)
torch.manual_seed(21)

META_STEPS = 210
TASKS_PER_STEP = 3
INNER_LR = 0.02


class Task:
    """One oscillator: noisy samples of a decaying sine with its own frequency, phase and damping."""

    def __init__(self):
        self.freq = 1.0 + 2.0 * torch.rand(1)
        self.phase = math.pi * torch.rand(1)
        self.damp = 0.1 + 0.5 * torch.rand(1)

    def draw(self, n):
        t = 4 * torch.rand(n, 1)
        y = torch.exp(-self.damp * t) * torch.sin(self.freq * t + self.phase)
        return t - 2, y + 0.01 * torch.randn_like(y)


class Regressor(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                  nn.Linear(width, 1))

    def forward(self, t):
        return self.body(t)


def inner_steps_for(step):
    # start with a single adaptation step and add one every 40 meta steps, up to four
    return min(4, 1 + step // 40)


def adapt(model, fast, support, n_steps, create_graph):
    t, y = support
    for _ in range(n_steps):
        loss = F.mse_loss(functional_call(model, fast, (t,)), y)
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=create_graph)
        fast = {name: w - INNER_LR * g for (name, w), g in zip(fast.items(), grads)}
    return fast


def meta_loss(model, n_steps):
    total = 0.0
    for _ in range(TASKS_PER_STEP):
        task = Task()
        fast = adapt(model, dict(model.named_parameters()), task.draw(20), n_steps, create_graph=True)
        t, y = task.draw(40)
        total = total + F.mse_loss(functional_call(model, fast, (t,)), y)
    return total / TASKS_PER_STEP


def evaluate(model, tasks, n_steps=4):
    before = after = 0.0
    for task in tasks:
        t, y = task.draw(100)
        start = {k: v.detach().requires_grad_() for k, v in model.named_parameters()}
        fast = adapt(model, start, task.draw(20), n_steps, create_graph=False)
        with torch.no_grad():
            before += F.mse_loss(model(t), y).item()
            after += F.mse_loss(functional_call(model, fast, (t,)), y).item()
    return before / len(tasks), after / len(tasks)


model = Regressor()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
held_out = [Task() for _ in range(4)]
window = []
for step in range(META_STEPS):
    loss = meta_loss(model, inner_steps_for(step))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    window.append(loss.item())
    if (step + 1) % 40 == 0:
        before, after = evaluate(model, held_out)
        print(f"meta step {step + 1:3d} inner {inner_steps_for(step)} query mse {sum(window) / len(window):.4f} "
              f"| held out {before:.4f} -> {after:.4f}")
        window.clear()
before, after = evaluate(model, held_out)
print(f"final: {before:.4f} before, {after:.4f} after adaptation")
