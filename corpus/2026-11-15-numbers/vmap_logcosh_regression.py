from functools import partial

import torch
from torch import nn
from torch.func import functional_call, vmap


def make_sensor_data(n=400, d=5, seed=3):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g)
    w = torch.randn(d, generator=g)
    y = torch.sin(x @ w) + 0.1 * torch.randn(n, generator=g)
    spikes = torch.rand(n, generator=g) < 0.004
    y = torch.where(spikes, y + 250.0, y)
    return x, y


def log_cosh(residual):
    return torch.log(torch.cosh(residual))


def example_loss(model, params, x, y, penalty):
    pred = functional_call(model, params, (x.unsqueeze(0),)).squeeze()
    return penalty(pred - y)


def batch_objective(model, params, x, y, l2):
    per_example = vmap(partial(example_loss, model, params, penalty=log_cosh))(x, y)
    decay = sum(p.square().sum() for p in params.values())
    return per_example.mean() + l2 * decay


def main():
    torch.manual_seed(0)
    x, y = make_sensor_data()
    model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
    params = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
    optimizer = torch.optim.Adam(params.values(), lr=5e-3)
    objective = partial(batch_objective, model, l2=1e-5)

    step = 0
    for epoch in range(3):
        for rows in torch.randperm(len(x)).split(20):
            optimizer.zero_grad()
            loss = objective(params, x[rows], y[rows])
            loss.backward()
            optimizer.step()
            if step % 12 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
