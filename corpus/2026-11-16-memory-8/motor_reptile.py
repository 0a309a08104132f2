"""Reptile: meta-learn an initialisation for servo motor response models.

Each motor has its own gain, friction and delay; a handful of readings should be enough to adapt.
"""
import math

import torch
from torch import nn
from torch.func import functional_call

META_ITERS = 360
INNER_STEPS = 5
SHOTS = 24
INNER_LR = 0.02


class Motor:
    def __init__(self, gen):
        u = torch.rand(3, generator=gen)
        self.gain = 0.5 + 1.5 * u[0].item()
        self.friction = 0.05 + 0.4 * u[1].item()
        self.delay = math.pi * u[2].item()

    @property
    def key(self):
        return (self.gain, self.friction, self.delay)

    def readings(self, n, gen):
        t = torch.rand(n, 1, generator=gen) * 6 - 3
        speed = self.gain * torch.sin(t + self.delay) * torch.exp(-self.friction * t.abs())
        return t, speed + 0.01 * torch.randn(n, 1, generator=gen)


class ResponseModel(nn.Module):
    def __init__(self, width=300):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                  nn.Linear(width, 1))

    def forward(self, t):
        return self.body(t)


class Reptile:
    def __init__(self, model, lr):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.adapted = {}

    def start_point(self, motor):
        # a motor that has been seen before continues from where it was left
        if motor.key in self.adapted:
            return {k: v.clone() for k, v in self.adapted[motor.key].items()}
        return {k: v.detach().clone() for k, v in self.model.named_parameters()}

    def adapt(self, motor, gen):
        fast = self.start_point(motor)
        for _ in range(INNER_STEPS):
            t, speed = motor.readings(SHOTS, gen)
            for p in fast.values():
                p.requires_grad_(True)
            loss = nn.functional.mse_loss(functional_call(self.model, fast, (t,)), speed)
            grads = torch.autograd.grad(loss, list(fast.values()))
            fast = {k: (p - INNER_LR * g).detach() for (k, p), g in zip(fast.items(), grads)}
        self.adapted[motor.key] = fast
        return fast, loss.item()

    def meta_step(self, motor, gen):
        fast, loss = self.adapt(motor, gen)
        self.opt.zero_grad()
        for name, p in self.model.named_parameters():
            p.grad = p.detach() - fast[name]
        self.opt.step()
        return loss


def few_shot_error(learner, gen, motors=5):
    """Error on new motors after adapting a copy of the initialisation by hand."""
    errors = []
    for _ in range(motors):
        motor = Motor(gen)
        fast = {k: v.detach().clone().requires_grad_(True) for k, v in learner.model.named_parameters()}
        t, speed = motor.readings(SHOTS, gen)
        for _ in range(INNER_STEPS):
            loss = nn.functional.mse_loss(functional_call(learner.model, fast, (t,)), speed)
            grads = torch.autograd.grad(loss, list(fast.values()))
            fast = {k: (p - INNER_LR * g).detach().requires_grad_(True)
                    for (k, p), g in zip(fast.items(), grads)}
        with torch.no_grad():
            t, speed = motor.readings(200, gen)
            errors.append(nn.functional.mse_loss(functional_call(learner.model, fast, (t,)), speed).item())
    return sum(errors) / len(errors)


def main():
    torch.manual_seed(21)
    gen = torch.Generator().manual_seed(5)
    eval_gen = torch.Generator().manual_seed(6)
    learner = Reptile(ResponseModel(), lr=1e-3)
    smooth = None
    for it in range(META_ITERS):
        loss = learner.meta_step(Motor(gen), gen)
        smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
        if it % 60 == 59:
            print(f"iter {it + 1}: inner loss {smooth:.4f}, few-shot error {few_shot_error(learner, eval_gen):.4f}")


if __name__ == "__main__":
    main()
