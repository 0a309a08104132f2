"""Scripts that cannot be led from pass to pass go on from their first batch at once."""

from __future__ import annotations

import pytest

from .conftest import Bench

MADE = """
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
train = DataLoader(data(160), batch_size=16, shuffle=True)
val_x, val_y = data(32, 2).tensors
told_so_far = []
"""
STEP = """
loss = nn.functional.cross_entropy(model(x), y)
optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def step(deep: int) -> str:
    return "".join(f"\n{' ' * deep}{line}" for line in STEP.strip().splitlines()) + "\n"


ROWS = """
class Rows(Dataset):
    def __init__(self, count): self.count, self.scale = count, 1.0
    def __len__(self): return self.count
    def __getitem__(self, i):
        noise = random.random() + torch.rand(1).item()
        return torch.full((6,), self.scale * i / 160 + noise), i % 2
rows = Rows(160)
"""
END = "\nprint(told_so_far)\ntold(model)\n"
CARRIED = {
    "validation on a tensor": """
for epoch in range(5):
    model.train()
    for x, y in train:"""
    + step(8)
    + """
    model.eval()
    with torch.no_grad():
        told_so_far.append(nn.functional.cross_entropy(model(val_x), val_y).item())
""",
    "sampling with noise": """
def sample():
    return model(torch.randn(8, 6)).detach()
best = None
for epoch in range(5):
    for n, (x, y) in enumerate(train):"""
    + step(8)
    + """
    best = sample() if best is None else torch.maximum(best, sample())
    told_so_far.append((n, best.sum().item()))
""",
    "functions": """
def train_one(scale):
    total = 0.0
    for x, y in train:
        x = x * scale"""
    + step(8)
    + """
        total += loss.item()
    return total
def main():
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    scales = [0.5, 1.0, 2.0, 0.9, 1.1]
    random.shuffle(scales)
    for epoch, scale in enumerate(scales):
        total = train_one(scale)
        schedule.step(model(val_x).std().item())
        told_so_far.append((epoch, total, optimizer.param_groups[0]["lr"]))
main()
""",
    "left early": """
for epoch in range(6):
    for i, (x, y) in enumerate(train):
        if i > 6: break"""
    + step(8)
    + """
    told_so_far.append((i, loss.item()))
""",
    "next in a range": """
source = iter(train)
for n in range(45):
    try:
        x, y = next(source)
    except StopIteration:
        source = iter(train)
        x, y = next(source)
    x = x * (1 + n / 100)"""
    + step(4)
    + """
    told_so_far.append(loss.item())
""",
    "next in a while": """
source, n = iter(train), 0
while n < 45:
    try:
        x, y = next(source)
    except StopIteration:
        source = iter(train)
        x, y = next(source)"""
    + step(4)
    + """
    n += 1
    if n % 15 == 0:
        told_so_far.append(model(val_x).sum().item())
""",
    "endless": """
def cycle(loader):
    while True:
        for batch in loader:
            yield batch
batches = cycle(train)
for n in range(45):
    x, y = next(batches)"""
    + step(4)
    + """
    told_so_far.append(loss.item())
""",
    "workers that run code of the script": ROWS
    + """
counted = torch.Generator().manual_seed(3)
for epoch in range(3):
    rows = Rows(96 + 32 * epoch)
    rows.scale = 1.0 + epoch
    train = DataLoader(rows, batch_size=16 + 4 * epoch, shuffle=True, num_workers=1,
                       generator=counted)
    for x, y in train:"""
    + step(8)
    + """
    told_so_far.append((train.batch_size, model(val_x).sum().item()))
""",
    "bar": """
from tqdm import tqdm
for epoch in tqdm(range(5)):
    bar = tqdm(train, leave=False)
    for x, y in bar:"""
    + step(8)
    + """
        bar.set_postfix(loss=loss.item())
    told_so_far.append(model(val_x).sum().item())
""",
}


@pytest.mark.parametrize("name", CARRIED)
def test_a_resumed_script_goes_to_its_batch_at_once(bench: Bench, name: str) -> None:
    script = bench.script(MADE + CARRIED[name] + END)
    whole = bench.run(script, every=6)
    assert whole.code == 0, whole.err
    assert whole.refusal.get("accepted"), whole.refusal
    saved = whole.checkpoints
    assert len(saved) >= 3
    for checkpoint in (saved[0], saved[len(saved) // 2], saved[-1]):
        resumed = bench.run(script, checkpoint)
        assert resumed.code == 0, (checkpoint, resumed.err)
        assert resumed.out == whole.out, checkpoint
    again = bench.run(script, resumed.checkpoints[-1] if resumed.checkpoints else saved[-1])
    assert again.code == 0 and again.out == whole.out, again.err


REFUSED = {
    "workers that may see what changes": (
        ROWS
        + """
train = DataLoader(rows, batch_size=16, num_workers=1)
for epoch in range(4):
    for x, y in train:
        rows.scale += 0.1"""
        + step(8)
        + """
    model(val_x)
""",
        "the dataset has changed since the workers of the loader began",
    ),
    "workers that may see a variable that changes": (
        ROWS.replace("self.scale * i", "FACTOR[0] * i")
        + """
FACTOR = [1.0]
train = DataLoader(rows, batch_size=16, num_workers=1)
for epoch in range(4):
    for x, y in train:
        FACTOR[0] += 0.1"""
        + step(8)
        + """
    model(val_x)
""",
        "FACTOR has changed since the workers of the loader began",
    ),
    "an expression": (
        """
source = iter(DataLoader(data(800), batch_size=16))
total = torch.zeros(16, 6)
for n in range(40):
    total = total + next(source)[0]
    x, y = total, torch.zeros(16).long()"""
        + step(4),
        "amid an expression",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_jump_is_refused(bench: Bench, name: str) -> None:
    body, reason = REFUSED[name]
    whole = bench.run(bench.script(MADE + body + END), every=6)
    assert whole.code == 0, whole.err
    reported = [event.data for event in whole.events if event.kind == "resumable"]
    assert not reported[-1]["accepted"] and reason in reported[-1]["reason"], reported
