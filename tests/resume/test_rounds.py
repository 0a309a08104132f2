"""Training loops without a loader go on bit for bit from the end of any of their rounds."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Bench

STEP = """
loss = nn.functional.cross_entropy(model(x), y)
optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def stepping(indent: int) -> str:
    """A step of the training, at some depth."""
    return "".join(f"\n{' ' * indent}{line}" for line in STEP.strip().splitlines()) + "\n"


MADE = """
x_all, y_all = data(96).tensors
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
"""
CARRIED = {
    "range": MADE
    + """
history = []
for epoch in range(5):
    perm = torch.randperm(96)
    total = 0.0
    for i in range(0, 96, 16):
        x, y = x_all[perm[i:i + 16]], y_all[perm[i:i + 16]]"""
    + stepping(8)
    + """
        total += loss.item()
    history.append(total)
    print(epoch, total)
print(history)
told(model)
""",
    "files": MADE
    + """
log = open("log.csv", "w")
for epoch in range(5):
    for i in range(0, 96, 16):
        x, y = x_all[i:i + 16], y_all[i:i + 16] ^ (torch.rand(16) < 0.1)"""
    + stepping(8)
    + """
    print(epoch, loss.item(), file=log)
    with open("all.txt", "a") as f:
        f.write(f"{epoch} {loss.item()}\\n")
    if epoch % 2 == 1:
        with open(f"{epoch}.txt", "w") as f:
            f.write(f"{loss.item()}\\n")
    print(epoch, loss.item())
log.close()
print(open("log.csv").read(), open("all.txt").read(), open("1.txt").read(), open("3.txt").read())
told(model)
""",
    "functions": MADE
    + """
def step(x, y):"""
    + stepping(4)
    + """
    return loss.item()
def epoch_of(order):
    total = 0.0
    for i in range(0, 96, 16):
        total += step(x_all[order[i:i + 16]], y_all[order[i:i + 16]])
    return total
def main():
    best = 9e9
    for epoch in range(5):
        order = np.random.permutation(96)
        total = epoch_of(order)
        best = min(best, total)
        print(epoch, total, best)
main()
told(model)
""",
    "while": MADE
    + """
step, seen = 0, []
while step < 30:
    pick = torch.randint(0, 96, (16,))
    x, y = x_all[pick], y_all[pick]"""
    + stepping(4)
    + """
    step += 1
    seen.append(loss.item())
    if step % 6 == 0:
        print(step, sum(seen))
print(sum(seen))
told(model)
""",
    "endless": MADE
    + """
step = 0
while True:
    pick = [random.randrange(96) for _ in range(16)]
    x, y = x_all[pick], y_all[pick]"""
    + stepping(4)
    + """
    step += 1
    if step == 30:
        break
print(step, loss.item())
told(model)
""",
    "enumerate": MADE
    + """
for epoch, (lr, name) in enumerate(zip([1e-2, 5e-3, 2e-3], ("a", "b", "c"))):
    for g in optimizer.param_groups:
        g["lr"] = lr
    for n, i in enumerate(range(0, 96, 16)):
        x, y = x_all[i:i + 16] + 0.1 * torch.randn(16, 6), y_all[i:i + 16]"""
    + stepping(8)
    + """
    print(epoch, name, n, loss.item())
told(model)
""",
    "method": MADE
    + """
class Trainer:
    def __init__(self):
        self.calls, self.scale, self.losses = 0, torch.ones(6), []
    def one(self, x, y):
        self.calls += 1
        loss = nn.functional.cross_entropy(model(x * self.scale), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        self.losses.append(loss.item())
    def train(self, epochs):
        for self.epoch in range(epochs):
            with torch.enable_grad():
                for i in range(0, 96, 16):
                    self.one(x_all[i:i + 16], y_all[i:i + 16])
            self.scale = self.scale * 0.9
            print(self.epoch, self.calls, self.losses[-1])
trainer = Trainer()
trainer.train(5)
print(sum(trainer.losses))
told(model)
""",
    "replay": MADE
    + """
from collections import deque, namedtuple
Row = namedtuple("Row", "x y")
memory, returns = deque(maxlen=40), []
def main():
    total = 0.0
    for episode in range(6):
        for t in range(6):
            memory.append(Row(np.random.rand(6).astype("float32"), random.randrange(2)))
            rows = random.choices(memory, k=8)
            x = torch.from_numpy(np.stack([row.x for row in rows]))
            y = torch.tensor([row.y for row in rows])"""
    + stepping(12)
    + """
            total += loss.item()
        returns.append(total)
        print(episode, total)
main()
print(sum(returns), len(memory), float(sum(row.x.sum() for row in memory)))
told(model)
""",
    "gan": """
torch.manual_seed(3)
G, D = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 1))
og = torch.optim.Adam(G.parameters(), lr=1e-2)
od = torch.optim.Adam(D.parameters(), lr=1e-2)
skipped = 0
for it in range(30):
    fake = G(torch.randn(16, 3))
    ld = D(fake.detach()).mean() - D(torch.randn(16, 6)).mean()
    od.zero_grad(); ld.backward()
    if it % 4 != 2:
        od.step()
    else:
        skipped += 1
    lg = -D(fake).mean()
    og.zero_grad(); lg.backward(); og.step()
    if it % 6 == 5:
        print(it, skipped, lg.item())
told(G, D)
""",
    "accumulation": MADE
    + """
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=40)
micro = 0
for epoch in range(5):
    for i in range(0, 88, 8):
        loss = nn.functional.cross_entropy(model(x_all[i:i + 8]), y_all[i:i + 8]) / 3
        loss.backward()
        micro += 1
        if micro % 3 == 0:
            optimizer.step(); optimizer.zero_grad(); schedule.step()
    print(epoch, micro, loss.item())
told(model)
""",
}


@pytest.mark.parametrize("name", CARRIED)
def test_a_loop_without_a_loader_goes_on_bit_for_bit(bench: Bench, name: str) -> None:
    script = bench.script(CARRIED[name])
    whole = bench.run(script)
    assert whole.code == 0, whole.err
    assert whole.refusal.get("accepted"), (whole.refusal, whole.events[-3:])
    saved = whole.checkpoints
    assert len(saved) >= 2
    lines = whole.out.splitlines()
    for checkpoint in (saved[0], saved[len(saved) // 2], saved[-1]):
        resumed = bench.run(script, checkpoint)
        assert resumed.code == 0, (checkpoint, resumed.err)
        shown = resumed.out.splitlines()
        assert shown and shown == lines[-len(shown) :], (checkpoint, shown, lines)
        assert any(event.kind == "resume" for event in resumed.events)


REFUSED = {
    "generator": (
        MADE
        + "\ndef batches():\n    for i in range(0, 96, 16): yield x_all[i:i + 16], y_all[i:i + 16]"
        + "\nfor epoch in range(4):\n    for x, y in batches():"
        + stepping(8),
        "the loop over batches() has a place that cannot be saved",
        "for x, y in batches()",
    ),
    "sum": (
        MADE
        + "\ndef train():\n    for i in range(0, 96, 16):\n"
        + "        x, y = x_all[i:i + 16], y_all[i:i + 16]"
        + stepping(8)
        + "    return loss.item()\ntotal = 0.0\nfor epoch in range(4):\n    total += train()\n",
        "is a part of an expression",
        "total += train()",
    ),
    "permutation": (
        MADE
        + "\nfor epoch in range(4):\n    order = list(range(6)); random.shuffle(order)\n"
        + "    for i in order:\n        x, y = x_all[16 * i:16 * i + 16], y_all[16 * i:16 * i + 16]"
        + stepping(8),
        "made with other values each time",
        "for i in order",
    ),
    "tensors": (
        MADE
        + "\nfor epoch in range(4):\n    for pick in torch.randperm(96).split(16):\n"
        + "        x, y = x_all[pick], y_all[pick]"
        + stepping(8),
        "it holds more than numbers and texts",
        "for pick in",
    ),
    "no loop": (
        MADE
        + "\ndef once(k):\n    x, y = x_all[:16], y_all[:16]"
        + stepping(4)
        + "    if k: once(k - 1)\nonce(20)\n",
        "steps outside of a loop",
        "",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loop_whose_place_is_not_known_is_refused_by_name(bench: Bench, name: str) -> None:
    body, reason, line = REFUSED[name]
    script = bench.script(body)
    whole = bench.run(script, every=7)
    assert whole.code == 0, whole.err
    told = [event.data for event in whole.events if event.kind == "resumable"]
    refusal: dict[str, Any] = {"reason": ""}
    refusal = dict(next((one for one in told if not one["accepted"]), refusal))
    assert reason in refusal["reason"], told
    if line:
        assert line in script.read_text().splitlines()[refusal["line"] - 1]
