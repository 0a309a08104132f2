# Turbine power-curve regression with a SWAG posterior collected along the SGD trajectory.
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(12)

N_FEATURES, WIDTH, MAX_RANK, COLLECT_EVERY = 24, 320, 25, 6


def synth(n):
    x = torch.randn(n, N_FEATURES)
    wind = x[:, :1] * 3 + 9
    power = torch.sigmoid((wind - 8.5) * 0.9) * (1 - 0.1 * torch.tanh(x[:, 1:2])) + 0.05 * x[:, 2:3] * x[:, 3:4]
    return x, power + 0.03 * torch.randn_like(power)


class PowerNet(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(N_FEATURES, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(),
                         nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))


class Swag:
    def __init__(self, model, max_rank):
        w = nn.utils.parameters_to_vector(model.parameters()).detach()
        self.mean, self.sq_mean = torch.zeros_like(w), torch.zeros_like(w)
        self.deviations = []
        self.n, self.max_rank = 0, max_rank

    @torch.no_grad()
    def collect(self, model):
        w = nn.utils.parameters_to_vector(model.parameters())
        self.mean = (self.mean * self.n + w) / (self.n + 1)
        self.sq_mean = (self.sq_mean * self.n + w * w) / (self.n + 1)
        self.deviations.append(w - self.mean)
        if len(self.deviations) > self.max_rank:
            self.deviations.pop(0)
        self.n += 1

    @torch.no_grad()
    def sample_into(self, model):
        var = (self.sq_mean - self.mean ** 2).clamp(min=1e-12)
        d = torch.stack(self.deviations)
        w = self.mean + (var / 2).sqrt() * torch.randn_like(var)
        w = w + torch.randn(len(d)) @ d / (2 * (len(d) - 1)) ** 0.5
        nn.utils.vector_to_parameters(w, model.parameters())


x_train, y_train = synth(4096)
x_test, y_test = synth(512)
loader = DataLoader(TensorDataset(x_train, y_train), batch_size=64, shuffle=True)

model = PowerNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
swag = Swag(model, MAX_RANK)
step, start_collect = 0, 128

for epoch in range(10):
    epoch_loss = 0.0
    for xb, yb in loader:
        for group in optimizer.param_groups:
            group["lr"] = 0.05 if step < start_collect else 0.02
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
        step += 1
        if step > start_collect and step % COLLECT_EVERY == 0:
            swag.collect(model)
    print(f"epoch {epoch + 1}  train mse {epoch_loss / len(loader):.5f}  snapshots {swag.n} (kept {len(swag.deviations)})")

sampled = PowerNet()
predictions = []
for _ in range(20):
    swag.sample_into(sampled)
    with torch.no_grad():
        predictions.append(sampled(x_test))
predictions = torch.stack(predictions)
rmse = (predictions.mean(0) - y_test).pow(2).mean().sqrt().item()
print(f"ensemble rmse {rmse:.4f}  mean predictive std {predictions.std(0).mean().item():.4f}")
