import csv
import random
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

torch.set_num_threads(1)
torch.manual_seed(71)
random.seed(71)

COLUMNS = ["months", "calls", "minutes", "charge", "visits", "plan", "region", "age"]
PLANS = ["basic", "family", "plus"]
REGIONS = ["north", "south", "east", "west"]


def write_customers(path, count):
    with open(path, "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(COLUMNS + ["left"])
        for _ in range(count):
            months, calls = random.randint(1, 72), random.randint(0, 40)
            minutes, charge = random.uniform(0, 900), random.uniform(5, 95)
            visits, age = random.randint(0, 9), random.randint(18, 80)
            plan, region = random.choice(PLANS), random.choice(REGIONS)
            score = 0.06 * charge - 0.1 * months + 0.6 * visits - 2 * (plan == "family")
            left = int(random.random() < 1 / (1 + 2.718 ** -(score - 1.2)))
            row = [
                months,
                calls,
                f"{minutes:.1f}",
                f"{charge:.2f}",
                visits,
                plan,
                region,
                age,
                left,
            ]
            writer.writerow(row)


class Customers(Dataset):
    def __init__(self, path):
        with open(path, newline="") as handle:
            self.rows = list(csv.DictReader(handle))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        numbers = [
            float(row["months"]) / 72,
            float(row["calls"]) / 40,
            float(row["minutes"]) / 900,
            float(row["charge"]) / 95,
            float(row["visits"]) / 9,
            float(row["age"]) / 80,
        ]
        plan = [float(row["plan"] == name) for name in PLANS]
        region = [float(row["region"] == name) for name in REGIONS]
        return torch.tensor(numbers + plan + region), torch.tensor(float(row["left"]))


path = Path(tempfile.mkdtemp(prefix="churn_")) / "customers.csv"
write_customers(path, 3600)
train_set, test_set = random_split(Customers(path), [3000, 600])
train_loader = DataLoader(train_set, batch_size=256, shuffle=True)
test_loader = DataLoader(test_set, batch_size=256)

model = nn.Sequential(
    nn.Linear(13, 384),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(384, 384),
    nn.ReLU(),
    nn.Linear(384, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
train_losses, test_losses = [], []

for epoch in range(30):
    model.train()
    for features, left in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(features).squeeze(1), left)
        loss.backward()
        optimizer.step()
        train_losses.append(loss.item())

    model.eval()
    predictions, answers = [], []
    with torch.no_grad():
        for features, left in test_loader:
            predictions.append(model(features).squeeze(1))
            answers.append(left)
    test_losses.append(criterion(torch.cat(predictions), torch.cat(answers)).item())
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1} train {train_losses[-1]:.4f} test {test_losses[-1]:.4f}")
