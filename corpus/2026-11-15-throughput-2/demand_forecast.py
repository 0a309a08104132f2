import json
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {"series": 160, "context": 36, "horizon": 6, "hidden": 48, "lr": 4e-3, "steps": 220}


class RunLog:
    def __init__(self, directory, config):
        self.path = os.path.join(directory, "run.json")
        self.content = {"config": config, "records": []}

    def record(self, step, loss, model):
        entry = {"step": step, "loss": loss, "params": {}}
        for name, param in model.named_parameters():
            entry["params"][name] = {
                "norm": round(float(param.detach().norm()), 5),
                "grad": round(float(param.grad.norm()), 5),
            }
        self.content["records"].append(entry)
        self.flush()

    def flush(self):
        with open(self.path, "w") as handle:
            json.dump(self.content, handle, indent=2)


class Forecaster(nn.Module):
    def __init__(self, hidden, horizon):
        super().__init__()
        self.rnn = nn.LSTM(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, horizon)

    def forward(self, window):
        states, _ = self.rnn(window.unsqueeze(-1))
        return self.head(states[:, -1])


def demand_series(count, length=240):
    t = torch.arange(length).float()
    weekly = torch.sin(2 * torch.pi * (t / 7 + torch.rand(count, 1)))
    yearly = torch.sin(2 * torch.pi * (t / 90 + torch.rand(count, 1)))
    return weekly + 0.6 * yearly + 0.15 * torch.randn(count, length)


def draw_windows(series, batch_size, cfg):
    span = cfg["context"] + cfg["horizon"]
    rows = torch.randint(0, len(series), (batch_size,))
    starts = torch.randint(0, series.shape[1] - span, (batch_size,))
    cut = series[rows[:, None], starts[:, None] + torch.arange(span)]
    return cut[:, : cfg["context"]], cut[:, cfg["context"] :]


def main(cfg):
    torch.set_num_threads(1)
    torch.manual_seed(40)
    series = demand_series(cfg["series"])
    model = Forecaster(cfg["hidden"], cfg["horizon"])
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    log = RunLog(tempfile.mkdtemp(prefix="forecast_"), cfg)
    for step in range(cfg["steps"]):
        window, future = draw_windows(series, 32, cfg)
        loss = F.l1_loss(model(window), future)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.record(step, loss.item(), model)
        if step % 50 == 0:
            print(f"step {step}: mae {loss.item():.4f}")
    print(f"{len(log.content['records'])} records written")


if __name__ == "__main__":
    main(CONFIG)
