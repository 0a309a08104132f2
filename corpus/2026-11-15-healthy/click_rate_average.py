import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.set_num_threads(1)
torch.manual_seed(17)

ROWS, FIELDS, CARDINALITY, DENSE = 40000, 8, 1500, 16
BATCH = 256
TOTAL_STEPS = 220


class ClickModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(CARDINALITY, dim) for _ in range(FIELDS))
        self.dense = nn.Linear(DENSE, dim)
        self.top = nn.Sequential(
            nn.Linear((FIELDS + 1) * dim, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()
        )
        self.out = nn.Linear(1024, 1)

    def forward(self, categories, dense):
        parts = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        parts.append(self.dense(dense))
        return self.out(self.top(torch.cat(parts, dim=1))).squeeze(1)


def make_table():
    categories = (torch.rand(ROWS, FIELDS).pow(4) * CARDINALITY).long()
    dense = torch.randn(ROWS, DENSE)
    weights = torch.randn(DENSE)
    score = dense @ weights * 0.6 + (categories[:, 0] % 7 - 3) * 0.5 + (categories[:, 1] % 2)
    return categories, dense, (torch.rand(ROWS) < score.sigmoid()).float()


categories, dense, clicked = make_table()
train_rows = torch.arange(0, ROWS - 2000)
test_rows = torch.arange(ROWS - 2000, ROWS)

model = ClickModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.BCEWithLogitsLoss()
averaged = None
step = 0
losses = []

while step < TOTAL_STEPS:
    for rows in train_rows[torch.randperm(len(train_rows))].split(BATCH):
        optimizer.zero_grad()
        loss = criterion(model(categories[rows], dense[rows]), clicked[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        step += 1

        if step == TOTAL_STEPS // 2:
            averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
            print(f"averaging from step {step}")
        if averaged is not None:
            averaged.update_parameters(model)
        if step % 40 == 0:
            print(f"step {step:4d} loss {sum(losses[-40:]) / 40:.4f}")
        if step == TOTAL_STEPS:
            break

with torch.no_grad():
    for name, net in (("last", model), ("averaged", averaged)):
        net.eval()
        held_out = criterion(net(categories[test_rows], dense[test_rows]), clicked[test_rows])
        print(f"{name}: held out loss {held_out.item():.4f}")
