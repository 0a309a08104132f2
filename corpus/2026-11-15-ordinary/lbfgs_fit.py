"""Full-batch LBFGS with strong Wolfe line search on a curve fit; healthy and converged early."""

import torch


class Fourier(torch.nn.Module):
    def __init__(self, terms=24):
        super().__init__()
        self.amp = torch.nn.Parameter(0.1 * torch.randn(terms))
        self.phase = torch.nn.Parameter(torch.randn(terms))
        self.freq = torch.nn.Parameter(torch.linspace(0.5, 6, terms))

    def forward(self, t):
        return (self.amp * torch.sin(self.freq * t[:, None] + self.phase)).sum(1)


def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    t = torch.linspace(-3, 3, 2000)
    y = torch.exp(-(t**2)) * torch.cos(4 * t)
    model = Fourier()
    opt = torch.optim.LBFGS(
        model.parameters(), lr=1.0, max_iter=8, history_size=10, line_search_fn="strong_wolfe"
    )

    def closure():
        opt.zero_grad()
        loss = torch.mean((model(t) - y) ** 2)
        loss.backward()
        return loss

    for i in range(40):
        loss = opt.step(closure)
        if i % 8 == 0:
            print(f"iter {i} loss {loss.item():.3e}")
    print(f"final loss {closure().item():.3e}")


if __name__ == "__main__":
    main()
