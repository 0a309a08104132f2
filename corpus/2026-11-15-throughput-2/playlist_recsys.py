"""Two-tower playlist continuation model."""

import os
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F


class TwoTower(nn.Module):
    def __init__(self, users, tracks, dim=64):
        super().__init__()
        self.users = nn.Embedding(users, dim, sparse=True)
        self.tracks = nn.Embedding(tracks, dim, sparse=True)
        self.project = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, dim))

    def forward(self, user, track):
        left = self.project(self.users(user))
        right = self.project(self.tracks(track))
        return F.normalize(left, dim=1) @ F.normalize(right, dim=1).t()


class PlaylistTrainer:
    def __init__(self, users=24000, tracks=48000, batch_size=384, save_every=8):
        self.num_users, self.num_tracks = users, tracks
        self.batch_size, self.save_every = batch_size, save_every
        self.model = TwoTower(users, tracks)
        tables = [self.model.users.weight, self.model.tracks.weight]
        self.sparse_opt = torch.optim.SparseAdam(tables, lr=0.01)
        self.dense_opt = torch.optim.Adam(self.model.project.parameters(), lr=1e-3)
        self.directory = Path(tempfile.mkdtemp(prefix="playlist_"))
        self.step = 0

    def draw(self):
        taste = torch.randint(0, 50, (self.batch_size,))
        user = taste * (self.num_users // 50) + torch.randint(0, 6, (self.batch_size,))
        track = taste * (self.num_tracks // 50) + torch.randint(0, 6, (self.batch_size,))
        return user, track, taste

    def save(self):
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "sparse": self.sparse_opt.state_dict(),
            "dense": self.dense_opt.state_dict(),
        }
        temporary = self.directory / "latest.tmp"
        torch.save(state, temporary)
        os.replace(temporary, self.directory / "latest.pt")

    def train_step(self):
        user, track, taste = self.draw()
        logits = self.model(user, track) * 12.0
        same = (taste[:, None] == taste[None, :]).float()
        loss = -(F.log_softmax(logits, 1) * same / same.sum(1, keepdim=True)).sum(1).mean()
        self.sparse_opt.zero_grad()
        self.dense_opt.zero_grad()
        loss.backward()
        self.sparse_opt.step()
        self.dense_opt.step()
        self.step += 1
        return loss.item()

    def fit(self, steps):
        window = []
        while self.step < steps:
            window.append(self.train_step())
            if self.step % self.save_every == 0:
                self.save()
            if len(window) == 32:
                print(f"step {self.step}: softmax loss {sum(window) / len(window):.4f}")
                window.clear()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(50)
    PlaylistTrainer().fit(200)
