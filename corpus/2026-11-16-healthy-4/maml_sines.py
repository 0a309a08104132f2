import math

import torch
from torch import nn
from torch.func import functional_call

torch.set_num_threads(1)
torch.manual_seed(21)


def sample_task(generator):
    amplitude = 0.5 + 4.0 * torch.rand((), generator=generator)
    phase = math.pi * torch.rand((), generator=generator)

    def draw(n):
        x = 10 * torch.rand(n, 1, generator=generator) - 5
        return x, amplitude * torch.sin(x + phase)

    return draw


def adapt(net, weights, x, y, lr, steps, second_order=True):
    fast = dict(weights)
    for _ in range(steps):
        loss = nn.functional.mse_loss(functional_call(net, fast, (x,)), y)
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=second_order)
        fast = {name: w - lr * g for (name, w), g in zip(fast.items(), grads)}
    return fast


def meta_batches(n_iterations, tasks_per_batch, generator):
    for _ in range(n_iterations):
        yield [sample_task(generator) for _ in range(tasks_per_batch)]


def evaluate(net, n_tasks, generator):
    scores = []
    weights = dict(net.named_parameters())
    for _ in range(n_tasks):
        task = sample_task(generator)
        fast = adapt(net, weights, *task(10), lr=0.02, steps=5, second_order=False)
        xq, yq = task(100)
        with torch.no_grad():
            scores.append(nn.functional.mse_loss(functional_call(net, fast, (xq,)), yq))
    return torch.stack(scores).mean().item()


net = nn.Sequential(
    nn.Linear(1, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(),
    nn.Linear(96, 1),
)  # fmt: skip
meta_opt = torch.optim.Adam(net.parameters(), lr=2e-3)
train_gen = torch.Generator().manual_seed(1)
test_gen = torch.Generator().manual_seed(2)
inner_lr, curve = 0.02, []

for it, tasks in enumerate(meta_batches(200, 5, train_gen)):
    # the number of inner steps goes 1, 2, 3 and stays there
    inner_steps = min(3, 1 + it // 40)
    meta_loss = torch.zeros(())
    weights = dict(net.named_parameters())
    for task in tasks:
        fast = adapt(net, weights, *task(10), lr=inner_lr, steps=inner_steps)
        xq, yq = task(25)
        meta_loss = meta_loss + nn.functional.mse_loss(functional_call(net, fast, (xq,)), yq)
    meta_loss = meta_loss / len(tasks)
    meta_opt.zero_grad()
    meta_loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    meta_opt.step()
    curve.append(meta_loss.item())
    if (it + 1) % 50 == 0:
        recent = sum(curve[-40:]) / 40
        print(
            f"{it + 1:4d} meta loss {recent:.3f} after adaptation {evaluate(net, 10, test_gen):.3f}"
        )

print(f"first 20: {sum(curve[:20]) / 20:.3f}   last 20: {sum(curve[-20:]) / 20:.3f}")
