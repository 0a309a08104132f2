# matrix factorisation with user / item biases, explicit ratings
# (reproducible runs wanted for the report -> deterministic algorithms on)
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2023)
torch.use_deterministic_algorithms(True)


N_USERS, N_ITEMS, K = 60, 40, 6

# synthetic ratings 1..5
true_u = torch.randn(N_USERS, 3)
true_i = torch.randn(N_ITEMS, 3)
pairs = torch.stack([torch.randint(0, N_USERS, (1500,)), torch.randint(0, N_ITEMS, (1500,))], dim=1)
score = (true_u[pairs[:, 0]] * true_i[pairs[:, 1]]).sum(1)
ratings = (3 + score).round().clamp(1, 5)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(N_USERS, K)
        self.item = nn.Embedding(N_ITEMS, K)
        self.user_bias = nn.Parameter(torch.zeros(N_USERS))
        self.item_bias = nn.Parameter(torch.empty(N_ITEMS))
        self.mean = nn.Parameter(torch.tensor(3.0))
        for emb in (self.user, self.item):
            nn.init.normal_(emb.weight, std=0.1)

    def forward(self, u, i):
        dot = (self.user(u) * self.item(i)).sum(dim=1)
        return self.mean + self.user_bias[u] + self.item_bias[i] + dot


model = Recommender()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)

perm = torch.randperm(len(pairs))
train_idx, test_idx = perm[:1300], perm[1300:]

step = 0
for epoch in range(3):
    order = train_idx[torch.randperm(len(train_idx))]
    for chunk in order.split(64):
        u, i = pairs[chunk].unbind(1)
        pred = model(u, i)
        loss = F.mse_loss(pred, ratings[chunk])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 7 == 0:
            print("epoch", epoch, "step", step, "mse", loss.item())
        step += 1

with torch.no_grad():
    u, i = pairs[test_idx].unbind(1)
    rmse = F.mse_loss(model(u, i), ratings[test_idx]).sqrt()
print("test rmse", rmse.item())

# a few recommendations for the report
with torch.no_grad():
    for user in (0, 7, 21):
        every = torch.arange(N_ITEMS)
        top = model(torch.full((N_ITEMS,), user), every).topk(3).indices
        print("user", user, "->", top.tolist())
