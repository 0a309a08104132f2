import argparse
import math

import torch
import torch.nn.functional as F


def init_params(width):
    def layer(i, o):
        w = torch.randn(o, i) * math.sqrt(1.0 / i)
        return [w.requires_grad_(), torch.zeros(o, requires_grad=True)]

    return layer(1, width) + layer(width, width) + layer(width, 1)


def net(x, p):
    h = F.relu(F.linear(x / 5, p[0], p[1]))
    h = F.relu(F.linear(h, p[2], p[3]))
    return F.linear(h, p[4], p[5])


class SineTasks:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def sample(self, shots):
        amp = 0.5 + 2.5 * torch.rand(1, generator=self.g)
        phase = math.pi * torch.rand(1, generator=self.g)
        x = torch.rand(2 * shots, 1, generator=self.g) * 10 - 5
        y = amp * torch.sin(x + phase)
        return (x[:shots], y[:shots]), (x[shots:], y[shots:])


def adapt(params, support, steps, lr, second_order):
    fast = list(params)
    x, y = support
    for _ in range(steps):
        loss = F.mse_loss(net(x, fast), y)
        grads = torch.autograd.grad(loss, fast, create_graph=second_order)
        fast = [p - lr * g for p, g in zip(fast, grads)]
    return fast


def evaluate(params, tasks, args):
    total = 0.0
    for _ in range(10):
        support, query = tasks.sample(args.shots)
        fast = adapt(params, support, args.inner, args.inner_lr, second_order=False)
        with torch.no_grad():
            total += F.mse_loss(net(query[0], fast), query[1]).item()
    return total / 10


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--meta-steps", type=int, default=130)
    ap.add_argument("--tasks", type=int, default=8)
    ap.add_argument("--shots", type=int, default=20)
    ap.add_argument("--inner", type=int, default=3)
    ap.add_argument("--inner-lr", type=float, default=0.05)
    ap.add_argument("--width", type=int, default=64)
    args = ap.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    params = init_params(args.width)
    meta_opt = torch.optim.Adam(params, lr=2e-3)
    train_tasks = SineTasks(1)
    running = None
    for step in range(args.meta_steps):
        meta_opt.zero_grad()
        meta_loss = 0.0
        for _ in range(args.tasks):
            support, query = train_tasks.sample(args.shots)
            fast = adapt(params, support, args.inner, args.inner_lr, second_order=True)
            meta_loss = meta_loss + F.mse_loss(net(query[0], fast), query[1])
        meta_loss = meta_loss / args.tasks
        meta_loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 10.0)
        meta_opt.step()
        value = meta_loss.item()
        running = value if running is None else 0.95 * running + 0.05 * value
        if (step + 1) % 26 == 0:
            val = evaluate(params, SineTasks(99), args)
            print(f"meta-step {step + 1} running {running:.3f} held-out {val:.3f}")


if __name__ == "__main__":
    main()
