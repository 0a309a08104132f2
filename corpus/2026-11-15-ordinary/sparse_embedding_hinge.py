"""Recommender with sparse embedding gradients and a hinge loss that is exactly 0 at times.

Two optimizers: SparseAdam for the tables, Adam for the dense part. Healthy throughout.
"""

import torch
import torch.nn as nn

torch.manual_seed(55)
torch.set_num_threads(1)
USERS, ITEMS, DIM = 2000, 500, 24


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM, sparse=True)
        self.item = nn.Embedding(ITEMS, DIM, sparse=True)
        self.mix = nn.Sequential(nn.Linear(2 * DIM, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, u, i):
        return self.mix(torch.cat([self.user(u), self.item(i)], dim=-1)).squeeze(-1)


model = Recommender()
tables = [model.user.weight, model.item.weight]
sparse_opt = torch.optim.SparseAdam(tables, lr=0.05)
dense_opt = torch.optim.Adam(model.mix.parameters(), lr=1e-2)
zero_batches = 0

for step in range(150):
    users = torch.randint(0, USERS, (8,))
    liked = torch.randint(0, ITEMS // 2, (8,))  # everybody likes the first half of the catalogue
    other = torch.randint(ITEMS // 2, ITEMS, (8,))
    margin = 0.5 - (model(users, liked) - model(users, other))
    loss = torch.relu(margin).mean()
    sparse_opt.zero_grad()
    dense_opt.zero_grad()
    loss.backward()
    sparse_opt.step()
    dense_opt.step()
    zero_batches += int(loss.item() == 0.0)
    if step % 30 == 0:
        print(f"step {step} hinge {loss.item():.4f}")

print("batches with zero loss:", zero_batches)
print(f"final loss {loss.item():.4f}")
