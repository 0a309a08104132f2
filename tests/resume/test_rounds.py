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
    "expressions": MADE
    + """
def train(scale):
    for i in range(0, 96, 16):
        x, y = scale * x_all[i:i + 16], y_all[i:i + 16]"""
    + stepping(8)
    + """
    return loss.item()
def main():
    total, rows = 0.5, []
    for epoch in range(5):
        rows.append(
            max(total, 0.1) + sum([epoch, len(rows), train(1 + epoch / 10)], start=total)
        )
        total += rows[-1]
    return total, rows
print(main())
told(model)
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

HEADS = {
    "bar": (
        "from tqdm import tqdm\nfor n in tqdm(range(30)):",
        "x, y = x_all[3 * n:3 * n + 16], y_all[3 * n:3 * n + 16]",
    ),
    "no bar": (
        "from tqdm import trange\nfor n in trange(30, disable=True):",
        "x, y = x_all[3 * n:3 * n + 16], y_all[3 * n:3 * n + 16]",
    ),
    "with bar": (
        "from tqdm.auto import tqdm\n"
        "with tqdm(total=30) as bar:\n  while bar.n < bar.total:\n    bar.update(1)",
        "x, y = x_all[bar.n:bar.n + 16], y_all[bar.n:bar.n + 16]",
    ),
    "count": (
        "import itertools\nfor n in itertools.count(2):\n    if n == 30: break",
        "x, y = x_all[n:n + 16], y_all[n:n + 16]",
    ),
    "shuffled": (
        "order = list(range(6))\nfor epoch in range(5):\n  random.shuffle(order)\n"
        "  for i in order:",
        "x, y = x_all[16 * i:16 * i + 16], y_all[16 * i:16 * i + 16]",
    ),
    "split": (
        "for epoch in range(5):\n  for pick in torch.randperm(96).split(16):",
        "x, y = x_all[pick], y_all[pick]",
    ),
    "pairs": (
        "for epoch in range(5):\n"
        "  for n, (x, y) in enumerate(zip(x_all.split(16), y_all.split(16)), 3):",
        "x = x + n",
    ),
    "backwards": (
        "for epoch in reversed(range(5)):\n  for pick in reversed([[n, n + 9, n + 40] for n in "
        "np.random.permutation(6)]):",
        "x, y = x_all[pick], y_all[pick]",
    ),
    "array": (
        "for epoch in range(5):\n  for pick in np.array_split(np.random.permutation(96), 6):",
        "x, y = x_all[pick], y_all[pick]",
    ),
    "random length": (
        "for epoch in range(5):\n  length = random.randint(4, 8)\n  for n in range(length):",
        "x, y = x_all[n:n + 16], y_all[n:n + 16]",
    ),
    "dict": (
        "sets = {'a': (0, 3), 'b': (40, 2), 'c': (20, 5)}\nfor epoch in range(3):\n"
        "  for name, (first, much) in sets.items():\n    for n in range(much):",
        "x, y = x_all[first + n:first + n + 16], y_all[first + n:first + n + 16]",
    ),
    "generator": (
        "def batches(size):\n    order = torch.randperm(96)\n    for i in range(0, 96, size):\n"
        "        yield x_all[order[i:i + size]], y_all[order[i:i + size]]\n"
        "for epoch in range(5):\n  for x, y in batches(16):",
        "x = x + epoch",
    ),
    "noise": (
        "def noise():\n    g, n = torch.Generator().manual_seed(4), 0\n    while True:\n"
        "        n += 1\n        yield torch.randn(6, generator=g) / n\n"
        "NOISE = noise()\nstep = 0\nwhile step < 30:\n    step += 1",
        "x, y = x_all[step:step + 16] + next(NOISE), y_all[step:step + 16]",
    ),
    "expression": (
        "for epoch in range(5):\n  for pick in (torch.randint(0, 96, (16,)) for _ in range(6)):",
        "x, y = x_all[pick], y_all[pick]",
    ),
    "samples": (
        "samples = [(x_all[i], y_all[i]) for i in range(0, 96, 16)]\n"
        "for epoch in range(5):\n  random.shuffle(samples)\n  for one, label in samples:",
        "x, y = one + 0.1 * torch.randn(4, 6), label.expand(4)",
    ),
    "own": (
        "class Walk:\n    def __init__(self, much): self.at, self.much = 0, much\n"
        "    def __iter__(self): return self\n    def __next__(self):\n"
        "        if self.at >= self.much: raise StopIteration\n"
        "        self.at += 1\n        return self.at * random.randint(1, 9)\n"
        "for epoch in range(5):\n  for n in Walk(6):",
        "x, y = x_all[n:n + 16], y_all[n:n + 16]",
    ),
}


def _in(head: str, inside: str) -> str:
    """A script with a training step in the innermost of some loops."""
    last = head.splitlines()[-1]
    deep = len(last) - len(last.lstrip()) + (4 if last.endswith(":") else 0)
    within = stepping(deep) + f"\n{' ' * deep}seen.append(loss.item())\n"
    return f"{MADE}\nseen = []\n{head}\n{' ' * deep}{inside}{within}\nprint(seen)\ntold(model)\n"


CARRIED |= {name: _in(*parts) for name, parts in HEADS.items()}


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


def test_a_loop_goes_on_that_begins_later_by_a_file_of_its_own(bench: Bench) -> None:
    script = bench.script(
        MADE
        + """
import os
EPOCHS, start, seen = 6, 0, []
if os.path.exists("last.pt"):
    last = torch.load("last.pt")
    model.load_state_dict(last["model"]); optimizer.load_state_dict(last["optimizer"])
    start, seen = last["epoch"] + 1, last["seen"]
for epoch in range(start, EPOCHS):
    for i in range(0, 96, 16):
        x, y = x_all[i:i + 16], y_all[i:i + 16]"""
        + stepping(8)
        + """
    seen.append(loss.item())
    if epoch in (1, 3):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "epoch": epoch, "seen": seen}, "last.pt")
print(seen)
told(model)
"""
    )
    whole = bench.run(script)
    assert whole.refusal.get("accepted"), whole.refusal
    assert len(whole.checkpoints) >= 5
    for checkpoint in (whole.checkpoints[0], whole.checkpoints[-1]):
        resumed = bench.run(script, checkpoint)
        assert resumed.code == 0, resumed.err
        assert resumed.out == whole.out


REFUSED = {
    "cycle": (
        MADE
        + "\nimport itertools\nfor n, i in zip(range(30), itertools.cycle(range(0, 96, 16))):\n"
        + "    x, y = x_all[i:i + 16], y_all[i:i + 16]"
        + stepping(4),
        "has a place that cannot be saved (a cycle)",
        "itertools.cycle",
    ),
    "two yields": (
        MADE
        + "\ndef batches():\n    for i in range(0, 96, 32):\n"
        + "        yield x_all[i:i + 16], y_all[i:i + 16]\n"
        + "        yield x_all[i + 16:i + 32], y_all[i + 16:i + 32]\n"
        + "for epoch in range(4):\n    for x, y in batches():"
        + stepping(8),
        "it reads something of another kind than at first",
        "for x, y in batches()",
    ),
    "handler": (
        MADE
        + "\nfor epoch in range(4):\n  try: raise ValueError\n  except ValueError:\n"
        + "    for i in range(0, 96, 16):\n      x, y = x_all[i:i + 16], y_all[i:i + 16]"
        + stepping(6),
        "in an except or a finally",
        "for i in range(0, 96, 16)",
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
    reported = [event.data for event in whole.events if event.kind == "resumable"]
    refusal: dict[str, Any] = {"reason": ""}
    refusal = dict(next((one for one in reported if not one["accepted"]), refusal))
    assert reason in refusal["reason"], reported
    if line:
        assert line in script.read_text().splitlines()[refusal["line"] - 1]
