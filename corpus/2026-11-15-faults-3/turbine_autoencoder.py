import torch
from torch import nn

torch.set_num_threads(1)


class TurbineAE(nn.Module):
    def __init__(self, sensors=80, code=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(sensors, 320), nn.ELU(), nn.Linear(320, code))
        self.decoder = nn.Sequential(nn.Linear(code, 320), nn.ELU(), nn.Linear(320, sensors))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class CodeStats:
    """Collects summary numbers of the layers of interest."""

    def __init__(self):
        self.values = {}

    def watch(self, model):
        def hook_for(name):
            def hook(_module, _inputs, out):
                flat = out.detach()
                self.values[name] = (flat.mean(), flat.std())

            return hook

        for name, layer in model.named_modules():
            if isinstance(layer, nn.ELU):
                layer.register_forward_hook(hook_for(name))

    def summary(self):
        return " ".join(f"{k}:{m:.2f}/{s:.2f}" for k, (m, s) in self.values.items())


def sensor_batches(n_batches, batch=256, sensors=80):
    mix = torch.randn(10, sensors)
    for _ in range(n_batches):
        yield torch.tanh(torch.randn(batch, 10) @ mix) + 0.05 * torch.randn(batch, sensors)


def train_step(model, opt, stats, x):
    stats.watch(model)
    rebuilt = model(x)
    loss = nn.functional.mse_loss(rebuilt, x)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.item()


def main():
    torch.manual_seed(31)
    model = TurbineAE()
    opt = torch.optim.NAdam(model.parameters(), lr=1.5e-3)
    stats = CodeStats()
    for i, x in enumerate(sensor_batches(200)):
        value = train_step(model, opt, stats, x)
        if i % 40 == 39:
            print(f"batch {i + 1}: mse {value:.4f} | {stats.summary()}")


if __name__ == "__main__":
    main()
