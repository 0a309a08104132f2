import torch
from torch import nn
from torch.func import functional_call

torch.set_num_threads(1)


class TaskFamily:
    """Each task is a joint with its own stiffness, rest angle and damping."""

    def __init__(self, seed):
        self.rng = torch.Generator().manual_seed(seed)

    def sample(self, shots):
        stiff, rest, damp = (0.5 + torch.rand(3, generator=self.rng)).tolist()

        def measure():
            x = 4 * torch.rand(shots, 2, generator=self.rng) - 2
            y = torch.sin(stiff * 2 * x[:, :1] - rest * 3) - damp * x[:, 1:]
            return x, y

        return measure(), measure()


def adapt(model, weights, support, rate, rounds):
    x, y = support
    for _ in range(rounds):
        loss = nn.functional.mse_loss(functional_call(model, weights, (x,)), y)
        slopes = torch.autograd.grad(loss, tuple(weights.values()), create_graph=True)
        weights = {k: w - rate * g for (k, w), g in zip(weights.items(), slopes)}
    return weights


def outer_loss(model, tasks):
    weights = dict(model.named_parameters())
    losses = []
    for support, query in tasks:
        fast = adapt(model, weights, support, rate=0.05, rounds=3)
        losses.append(nn.functional.mse_loss(functional_call(model, fast, (query[0],)), query[1]))
    return torch.stack(losses).mean()


def main(iterations=190, tasks_per_step=6, shots=20):
    torch.manual_seed(9)
    family = TaskFamily(9)
    model = nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    smooth = None
    for number in range(1, iterations + 1):
        tasks = [family.sample(shots) for _ in range(tasks_per_step)]
        optimizer.zero_grad()
        loss = outer_loss(model, tasks)
        loss.backward()
        optimizer.step()
        scheduler.step()
        value = loss.item()
        smooth = value if smooth is None else 0.95 * smooth + 0.05 * value
        if number % 25 == 0:
            print(f"iteration {number:3d} after adaptation {smooth:.4f}")


if __name__ == "__main__":
    main()
