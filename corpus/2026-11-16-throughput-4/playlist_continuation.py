import torch
import torch.nn.functional as F
from torch import nn

from playlist_metrics import ndcg_at_k

torch.set_num_threads(1)
torch.manual_seed(21)

CFG = {
    "playlists": 1024,
    "tracks": 300,
    "moods": 12,
    "batch": 128,
    "hidden": 512,
    "latent": 64,
    "epochs": 12,
    "watch_lists": 8,
}


def make_playlists(cfg):
    mood_of_track = torch.randint(0, cfg["moods"], (cfg["tracks"],))
    mood_of_list = torch.randint(0, cfg["moods"], (cfg["playlists"],))
    same = mood_of_track[None] == mood_of_list[:, None]
    prob = torch.where(same, torch.tensor(0.6), torch.tensor(0.02))
    return torch.bernoulli(prob)


class MultVAE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        n, h, z = cfg["tracks"], cfg["hidden"], cfg["latent"]
        self.enc = nn.Sequential(nn.Linear(n, h), nn.Tanh(), nn.Linear(h, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, h), nn.Tanh(), nn.Linear(h, n))

    def forward(self, x):
        mu, logvar = self.enc(F.dropout(F.normalize(x), 0.5, self.training)).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return self.dec(z), kl


class MetricLog:
    def __init__(self):
        self.rows = []

    def on_batch_end(self, step, loss, logits, batch):
        n = CFG["watch_lists"]
        relevant = [set(row.nonzero().flatten().tolist()) for row in batch[:n]]
        self.rows.append((step, loss, ndcg_at_k(logits[:n].detach(), relevant)))

    def on_epoch_end(self, epoch, steps):
        recent = self.rows[-steps:]
        loss = sum(r[1] for r in recent) / steps
        ndcg = sum(r[2] for r in recent) / steps
        print(f"epoch {epoch:2d}  loss {loss:8.3f}  ndcg@20 {ndcg:.3f}")


def fit(cfg, callbacks):
    data = make_playlists(cfg)
    model = MultVAE(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(cfg["epochs"]):
        order = torch.randperm(len(data)).split(cfg["batch"])
        for idx in order:
            batch = data[idx]
            logits, kl = model(batch)
            nll = -(F.log_softmax(logits, dim=1) * batch).sum(1).mean()
            loss = nll + min(0.2, step / 400) * kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for cb in callbacks:
                cb.on_batch_end(step, loss.item(), logits, batch)
            step += 1
        for cb in callbacks:
            cb.on_epoch_end(epoch, len(order))


if __name__ == "__main__":
    fit(CFG, [MetricLog()])
