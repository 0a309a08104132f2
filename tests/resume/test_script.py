"""An unmodified script goes on from any of its checkpoints as if nothing had happened."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.resume import frames

from .conftest import HEAD, Bench

PLAIN = """
train = DataLoader(data(160), batch_size=16, shuffle=True)
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
step = 0
for epoch in range(4):
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        step += 1
    print(epoch, step, loss.item())
told(model)
"""
SCRIPTS = {
    "plain": PLAIN,
    "function": """
def run(model, loader, optimizer=None):
    total, count = 0.0, 0
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item() * len(x)
        count += len(x)
    return total / count, i
def main():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    train = DataLoader(data(160), batch_size=16, shuffle=True)
    val = DataLoader(data(64, 2), batch_size=16)
    best, bad, history = float("inf"), 0, []
    for epoch in range(8):
        model.train()
        loss, i = run(model, train, optimizer)
        model.eval()
        with torch.no_grad():
            value, _ = run(model, val)
        plateau.step(value)
        history.append((loss, value))
        if value < best:
            best, bad = value, 0
            torch.save(model.state_dict(), "best.pt")
        else:
            bad += 1
        print(epoch, i, loss, value, best, bad, optimizer.param_groups[0]["lr"])
        if bad > 2:
            break
    print(history)
    told(model)
main()
""",
    "workers": """
class Noisy(Dataset):
    def __init__(self): self.x = torch.arange(96.).view(96, 1).repeat(1, 6) / 50
    def __len__(self): return 96
    def __getitem__(self, i): return self.x[i] + torch.randn(6) + random.random(), int(i % 2)
train = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2)
model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=36)
for epoch in range(3):
    seen = []
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()
        seen.append(loss.item())
    print(epoch, sum(seen) / len(seen), schedule.get_last_lr())
told(model)
""",
    "own_noise": """
class Noisy(Dataset):
    def __init__(self):
        self.x = torch.arange(96.).view(96, 1).repeat(1, 6) / 50
        self.rng = np.random.default_rng(3)
        self.served = 0
    def __len__(self): return 96
    def __getitem__(self, i):
        self.served += 1
        return self.x[i] + float(self.rng.normal()) + random.random(), int(i % 2)
train = DataLoader(Noisy(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(4))
model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(3):
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(epoch, train.dataset.served, loss.item())
told(model)
""",
    "named_dataset": """
class Rows(Dataset):
    def __init__(self):
        self.x = torch.arange(96.).view(96, 1).repeat(1, 6) / 50
        self.scale = 0.5
    def __len__(self): return 96
    def __getitem__(self, i): return self.x[i] * self.scale + random.random(), int(i % 2)
rows = Rows()
train = DataLoader(rows, batch_size=8, shuffle=True)
model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(3):
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    rows.scale *= 0.9
    print(epoch, rows.scale, loss.item())
told(model)
""",
    "collected": """
# Data as lists that are appended to, a table of losses by sample, a buffer that forgets.
rows, hard, seen = [], [0.0] * 5000, []
for i in range(5000):
    rows.append([[random.random() for _ in range(6)], i])
for i in range(5000):
    seen.append((torch.full((2,), float(i)), i))
class Rows(Dataset):
    def __len__(self): return 96
    def __getitem__(self, i): return torch.tensor(rows[i][0]), i % 2, i
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(4):
    for x, y, numbers in DataLoader(Rows(), batch_size=12, shuffle=True):
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        optimizer.zero_grad(); losses.mean().backward(); optimizer.step()
        for n, one in zip(numbers.tolist(), losses.tolist()):
            hard[n] += one
        seen.append((losses.detach()[:2].clone(), -1)); seen.pop(0)
    rows[epoch][0][0] += sum(hard) / 100
    print(epoch, sum(hard), sum(r[0][0] for r in rows))
print(hard[:5], float(sum(t.sum() for t, _ in seen)), len(seen))
told(model)
""",
    "accumulation": """
train = DataLoader(data(160), batch_size=8, shuffle=True, drop_last=True)
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
running = 0.0
for epoch in range(4):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(train):
        loss = nn.functional.cross_entropy(model(x), y) / 3
        loss.backward()
        running = 0.9 * running + 0.1 * loss.item()
        if (i + 1) % 3 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    print(epoch, running)
told(model)
""",
    "scaler": """
train = DataLoader(data(160), batch_size=16, shuffle=True)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10, growth_interval=7)
for epoch in range(4):
    for x, y in train:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(epoch, scaler.get_scale(), loss.item())
told(model)
""",
    "two_optimizers": """
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
D = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
og = torch.optim.Adam(G.parameters(), lr=1e-3)
od = torch.optim.Adam(D.parameters(), lr=1e-3)
loader = DataLoader(data(160), batch_size=16, shuffle=True)
bce = nn.BCEWithLogitsLoss()
log = {"d": [], "g": []}
for epoch in range(4):
    for real, _ in loader:
        n = len(real)
        fake = G(torch.randn(n, 4))
        ld = bce(D(real), torch.ones(n, 1)) + bce(D(fake.detach()), torch.zeros(n, 1))
        od.zero_grad(); ld.backward(); od.step()
        lg = bce(D(fake), torch.ones(n, 1))
        og.zero_grad(); lg.backward(); og.step()
        log["d"].append(ld.item()); log["g"].append(lg.item())
    print(epoch, log["d"][-1], np.mean(log["g"]))
told(G, D)
""",
    "trainer_class": """
import copy
from collections import defaultdict, deque
class Meter:
    def __init__(self): self.reset()
    def reset(self): self.sum = 0.0; self.n = 0
    def update(self, v, n=1): self.sum += v * n; self.n += n
    @property
    def avg(self): return self.sum / self.n
class Stopper:
    def __init__(self, patience): self.patience, self.best, self.bad = patience, None, 0
    def __call__(self, v):
        if self.best is None or v < self.best: self.best, self.bad = v, 0; return False
        self.bad += 1
        return self.bad > self.patience
class Trainer:
    def __init__(self):
        self.model = net()
        self.ema = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=3e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 60)
        self.train_loader = DataLoader(data(160), 16, shuffle=True)
        self.val_loader = DataLoader(data(64, 2), 16)
        self.step, self.logs, self.recent = 0, defaultdict(list), deque(maxlen=7)
        self.best_state = None
        self.stopper = Stopper(3)
    def train_epoch(self):
        self.model.train()
        meter = Meter()
        for x, y in self.train_loader:
            self.train_step(x, y, meter)
        return meter.avg
    def train_step(self, x, y, meter):
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad(); loss.backward(); self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            for a, b in zip(self.ema.state_dict().values(), self.model.state_dict().values()):
                a.copy_(b if not a.is_floating_point() else 0.9 * a + 0.1 * b)
        meter.update(loss.item(), len(x))
        self.recent.append(loss.detach())
        self.step += 1
    @torch.no_grad()
    def validate(self, model):
        model.eval()
        right = torch.tensor(0)
        preds = []
        meter = Meter()
        for x, y in self.val_loader:
            out = model(x)
            right += (out.argmax(1) == y).sum()
            preds.append(out)
            meter.update(nn.functional.cross_entropy(out, y).item(), len(x))
        return meter.avg, right.item() / len(torch.cat(preds))
    def fit(self, epochs):
        for epoch in range(epochs):
            loss = self.train_epoch()
            value, accuracy = self.validate(self.ema)
            self.logs["loss"].append(loss); self.logs["val"].append((value, accuracy))
            print(epoch, self.step, loss, value, accuracy, float(sum(self.recent)))
            if self.stopper.best is None or value < self.stopper.best:
                self.best_state = copy.deepcopy(self.model.state_dict())
            if self.stopper(value):
                break
trainer = Trainer()
trainer.fit(6)
print(dict(trainer.logs))
trainer.model.load_state_dict(trainer.best_state)
told(trainer.model, trainer.ema)
""",
    "validation_within": """
train = DataLoader(data(160), batch_size=16, shuffle=True)
val = DataLoader(data(64, 2), batch_size=16)
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
step, best = 0, 9e9
def validate():
    model.eval()
    with torch.no_grad():
        values = [nn.functional.cross_entropy(model(x), y).item() for x, y in val]
    model.train()
    return sum(values) / len(values)
for epoch in range(4):
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        step += 1
        if step % 4 == 0:
            value = validate()
            best = min(best, value)
            print(step, value, best)
told(model)
""",
    "endless": """
def forever(loader):
    while True:
        for batch in loader:
            yield batch
train = DataLoader(data(160), batch_size=16, shuffle=True)
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
batches, step = forever(train), 0
while step < 44:
    x, y = next(batches)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    step += 1
    if step % 11 == 0: print(step, loss.item())
told(model)
""",
    "unfreezing": """
train = DataLoader(data(160), batch_size=16, shuffle=True)
model = net()
for p in model[0].parameters(): p.requires_grad = False
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
x0, y0 = next(iter(train))
print(x0.sum().item())
step = 0
for epoch in range(4):
    if epoch == 1:
        for p in model[0].parameters(): p.requires_grad = True
        optimizer.add_param_group({"params": model[0].parameters(), "lr": 1e-3})
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        step += 1
        if step == 25: model[3].p = 0.5
    print(epoch, loss.item(), len(optimizer.param_groups))
told(model)
""",
    "stateful": """
train = DataLoader(data(160), batch_size=16, shuffle=False)
gru, head = nn.GRU(6, 8), nn.Linear(8, 2)
optimizer = torch.optim.Adam([*gru.parameters(), *head.parameters()], lr=1e-2)
hidden, total = None, 0
for epoch in range(4):
    for x, y in train:
        if hidden is not None: hidden = hidden.detach()
        out, hidden = gru(x.unsqueeze(0), hidden)
        loss = nn.functional.cross_entropy(head(out[0]), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        total += loss
    print(epoch, (total / (epoch + 1)).item())
told(gru, head)
""",
}


# CI tries some; all of them with make prove.
QUICK = ("collected", "function", "workers", "accumulation", "scaler", "trainer_class")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SCRIPTS]
)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(bench: Bench, name: str):
    script = bench.script(SCRIPTS[name])
    whole = bench.run(script)
    assert whole.code == 0, whole.err
    assert whole.refusal.get("accepted"), whole.refusal
    saved = whole.checkpoints
    assert len(saved) >= 4
    for checkpoint in (saved[0], saved[len(saved) // 2], saved[-1]):
        resumed = bench.run(script, checkpoint)
        assert resumed.code == 0, (checkpoint, resumed.err)
        # What a loop prints in its own body before the checkpoint is not printed again.
        lines, shown = whole.out.splitlines(), resumed.out.splitlines()
        assert shown and shown == [line for line in lines if line in shown], checkpoint
        prints_within = name in ("validation_within", "endless")
        assert shown[-1] == lines[-1] and (len(shown) == len(lines) or prints_within)
        assert any(event.kind == "resume" for event in resumed.events)


LOOP = """
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
MADE = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train = DataLoader(data(160), batch_size=16, shuffle=True)
val = DataLoader(data(32, 2), batch_size=16)
"""
REFUSED = {
    "no loader": (
        """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def batch(step):
    return torch.randn(8, 6), torch.zeros(8).long()
import itertools
for x, y in itertools.starmap(batch, zip(range(20))):
    """,
        "the loop over itertools.starmap(batch, zip(range(20))) has a place that cannot be saved",
        "for x, y in itertools",
    ),
    "stream": (
        """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        self.left = 160
        return self
    def __next__(self):
        self.left -= 1
        if self.left < 0: raise StopIteration
        return torch.randn(6), 1
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Stream(), batch_size=8):
    """,
        "Stream is an iterable dataset that keeps its own place",
        "for x, y in",
    ),
    "zip": (MADE + "\nfor (x, y), n in zip(train, range(99)):\n    ", "through zip", ""),
    "an iterator": (
        MADE + "\nfrom itertools import cycle\nnumbers = cycle([1, 2])\n"
        "for x, y in train:\n    next(numbers)\n    ",
        "numbers is an iterator",
        "numbers =",
    ),
    "a graph": (
        MADE
        + "\nkept = torch.zeros(())\nfor x, y in train:\n    kept = kept + model(x).mean()\n    ",
        "kept carries a graph",
        "kept =",
    ),
    "what changes and cannot be saved": (
        MADE
        + "\nimport array\nseen = array.array('d')\nfor x, y in train:\n    seen.append(1.0)\n    ",
        "seen is a array:array; it changes",
        "seen =",
    ),
    "lbfgs": (
        """
model = net()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
train = DataLoader(data(160), batch_size=16)
for x, y in train:
    def closure():
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(model(x), y)
        value.backward()
        return value
    optimizer.step(closure)
    """,
        "LBFGS",
        "",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_script_that_cannot_be_resumed_is_refused_with_its_line(bench: Bench, name: str):
    body, reason, line = REFUSED[name]
    indent = body.rsplit("\n", 1)[-1]
    body = body + LOOP.strip().replace("\n    ", f"\n{indent}") if "LBFGS" not in body else body
    script = bench.script(body)
    whole = bench.run(script, every=2)
    assert whole.code == 0, whole.err
    refusal = whole.refusal
    assert refusal and not refusal["accepted"] and reason in refusal["reason"], refusal
    if line:
        assert refusal["file"] == "train.py"
        assert line in script.read_text().splitlines()[refusal["line"] - 1]


def test_a_script_without_seeds_goes_on_with_its_own_random_numbers(bench: Bench):
    head = "\n".join(row for row in HEAD.splitlines() if "seed(0)" not in row)
    script = bench.script(PLAIN, head + "\nprint(random.random(), np.random.rand())\n")
    whole = bench.run(script)
    resumed = bench.run(script, whole.checkpoints[-1])
    assert resumed.out == whole.out


def test_data_that_is_not_made_the_same_again_is_refused(bench: Bench):
    script = bench.script(PLAIN.replace("data(160)", "data(160, torch.seed() % 2 ** 40)"))
    whole = bench.run(script)
    resumed = bench.run(script, whole.checkpoints[0])
    assert resumed.code == 2 and "with other values each time" in resumed.err
    assert not resumed.out


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("nn.Linear(8, 2)", "nn.Linear(8, 3)", "has changed since"),
        ("", "", ""),
    ],
)
def test_a_changed_script_is_refused(bench: Bench, before: str, after: str, why: str):
    script = bench.script(PLAIN)
    whole = bench.run(script)
    script.write_text(script.read_text().replace(before, after))
    resumed = bench.run(script, whole.checkpoints[-1])
    assert resumed.code == (2 if why else 0) and why in resumed.err


def test_a_script_that_loads_what_it_saved_is_left_alone(bench: Bench):
    body = """
    import os
    train = DataLoader(data(160), batch_size=16, shuffle=True)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if os.path.exists("last.pt"):
        saved = torch.load("last.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
    for epoch in range(first, 3 if first else 2):
        print("epoch", epoch)
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "epoch": epoch}, "last.pt")
    """
    script = bench.script(body)
    whole = bench.run(script)
    assert whole.refusal["own"] == 1 + script.read_text().splitlines().index(
        '    optimizer.load_state_dict(saved["optimizer"])'
    )
    resumed = bench.run(script, whole.checkpoints[-1])
    assert resumed.code == 0 and resumed.out == "epoch 2\n"
    assert "the script loads last.pt by itself at train.py:" in resumed.err


def test_what_the_first_epochs_wrote_is_not_written_again(bench: Bench):
    body = PLAIN.replace(
        "    print(epoch,",
        """    torch.save(epoch, "last.pt")
    with open("log.txt", "a") as file: print(epoch, file=file)
    print(epoch,""",
    )
    script = bench.script(body)
    whole = bench.run(script)
    (bench.folder / "last.pt").write_text("newer")
    resumed = bench.run(script, whole.checkpoints[2])
    assert resumed.out == whole.out
    assert (bench.folder / "log.txt").read_text().split() == ["0", "1", "2", "3"]


def test_a_run_that_was_resumed_is_resumed_again(bench: Bench):
    script = bench.script(SCRIPTS["trainer_class"])
    whole = bench.run(script)
    second = bench.run(script, whole.checkpoints[1])
    third = bench.run(script, second.checkpoints[-2])
    assert third.code == 0 and third.out == second.out == whole.out


def test_a_long_list_that_the_loop_fills_is_kept(bench: Bench):
    loop = LOOP.replace("\n    ", "\n        ")
    script = bench.script(
        MADE
        + "\nhistory = []\nfor epoch in range(3):\n    for x, y in train:\n"
        + f"        history += [epoch] * 40{loop}\nprint(len(history), sum(history), loss.item())\n"
    )
    whole = bench.run(script)
    assert whole.out.startswith("1200 "), whole.err
    again = bench.run(script, whole.checkpoints[-2])
    assert again.code == 0 and again.out == whole.out, again.err


LAZY = """
class Rows(torch.utils.data.Dataset):
    rows = None
    def __len__(self): return 160
    def __getitem__(self, i):
        if self.rows is None: self.rows = torch.{made}
        return self.rows[i], torch.tensor(i % 2)

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Rows(), batch_size=16):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print(loss.item())
"""


@pytest.mark.parametrize("made", ["randn(160, 6)", "linspace(0, 1, 960).view(160, 6)"])
def test_data_that_a_dataset_makes_when_it_is_first_asked(bench: Bench, made: str):
    """No variable holds the dataset: its state is that of the loader."""
    script = bench.script(LAZY.format(made=made))
    whole = bench.run(script, every=2)
    assert whole.code == 0 and whole.checkpoints, whole.err
    again = bench.run(script, whole.checkpoints[-2])
    assert (again.code == 0 and again.out == whole.out) or "cannot resume" in again.err


@pytest.mark.parametrize("name", ["no loader"])
def test_what_cannot_be_resumed_is_said_before_a_checkpoint_is_due(bench: Bench, name: str):
    body, reason, _ = REFUSED[name]
    indent = body.rsplit("\n", 1)[-1]
    loop = LOOP.strip().replace("\n    ", f"\n{indent}")
    # A kill that nobody hears of, long before the first checkpoint.
    end = f"\n{indent}steps = globals().get('steps', 0) + 1\n{indent}if steps == 18: os._exit(9)"
    killed = bench.run(bench.script("import os\n" + body + loop + end), every=999)
    assert killed.code == 9 and not killed.checkpoints, killed.err
    assert reason in killed.refusal["reason"] and not killed.refusal["accepted"]


def test_a_script_with_two_names_is_one_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "train.py")
    (tmp_path / "train.py").touch()
    # So does multiprocessing, and torch imports that: what is dead in one was alive in the other.
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, script)
    both = ["__main__", "__mp_main__"]
    monkeypatch.setattr("holdfast.source.ownership.user_modules", lambda: both)
    found = frames.user_modules()
    assert list(found) == ["__main__"]
