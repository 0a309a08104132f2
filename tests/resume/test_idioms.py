"""What scripts do every day: names that loops leave behind, copies of models, state out of sight.

Each goes on from its checkpoints as if nothing had happened, or is refused by name.
"""

from __future__ import annotations

import pytest

from .conftest import Bench

MADE = """
train = DataLoader(data(96), batch_size=16, shuffle=True)
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
def other(g, p, t, f, best, i):
    return [p + t for p, t in zip(g, f)], best, i
"""
STEP = """
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
LOOP = f"""
for epoch in range(4):
    for x, y in train:{STEP}"""
CARRIED = {
    "tuple of a class": MADE
    + """
class Agent:
    EPS, made = (0.9, 0.05, 600), 0
for epoch in range(4):
    for x, y in train:"""
    + STEP
    + """
        Agent.made += 1
    print(epoch, loss.item(), Agent.EPS[0] * Agent.made)
told(model)
""",
    "groups": MADE
    + """
for epoch in range(4):
    for g in optimizer.param_groups:
        g["lr"] = 1e-2 / (epoch + 1)
    for x, y in train:"""
    + STEP
    + """
    print(epoch, g["lr"], loss.item())
told(model)
""",
    "ema": MADE
    + """
slow = net()
slow.load_state_dict(model.state_dict())
for epoch in range(4):
    for x, y in train:"""
    + STEP
    + """
        with torch.no_grad():
            for p, t in zip(model.parameters(), slow.parameters()):
                t.mul_(0.9).add_(p, alpha=0.1)
    print(epoch, loss.item())
told(model, slow)
""",
    "ema through data": MADE
    + """
slow = net()
for epoch in range(4):
    for x, y in train:"""
    + STEP
    + """
        if epoch:
            for p, t in zip(model.parameters(), slow.parameters()):
                t.data.mul_(0.9).add_(p.data, alpha=0.1)
    print(epoch, loss.item())
told(model, slow)
""",
    "gan": """
train = DataLoader(data(96), batch_size=16, shuffle=True)
G, D = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
og = torch.optim.Adam(G.parameters(), lr=1e-2)
od = torch.optim.Adam(D.parameters(), lr=1e-2)
def saved(path, f=None):
    with open(path) as f: return f.read()
for epoch in range(4):
    for x, _ in train:
        z = torch.randn(len(x), 3)
        f = G(z)
        d = D(x).mean() - D(f.detach()).mean()
        od.zero_grad(); d.backward(); od.step()
        g = -D(f).mean()
        og.zero_grad(); g.backward(); og.step()
    print(epoch, d.item(), g.item())
told(G, D)
""",
    "best_copy": "import copy\n"
    + MADE
    + """
value = 9.0
for epoch in range(5):
    for x, y in train:"""
    + STEP
    + """
        if loss.item() < value:
            value, best = loss.item(), copy.deepcopy(model)
            kept = copy.deepcopy(model.state_dict())
            teacher = {"model": copy.deepcopy(model).eval()}
    print(epoch, value, teacher["model"].training)
torch.save(kept, "kept.pt")
print(len(kept._metadata))
told(model, best, teacher["model"])
""",
    "cache": "import functools\n"
    + MADE
    + """
@functools.lru_cache(maxsize=8)
def noise(k): return random.random() + k
@functools.cache
def rows(k, scale=1): return torch.randn(3) * scale
class Made:
    @functools.lru_cache
    def draw(self, k): return random.random()
made = Made()
for epoch in range(4):
    for i, (x, y) in enumerate(train):
        x = x + noise(i % 10) + rows(i % 3, scale=2).sum() + made.draw(i % 2)"""
    + STEP
    + """
    print(epoch, loss.item())
print(noise.cache_info(), rows.cache_info(), Made.draw.cache_info())
told(model)
""",
    "local": "import threading\n"
    + MADE
    + """
class Own(threading.local):
    total = 0
state, own = threading.local(), Own()
state.sum = 0.0
stop = threading.Event()
for epoch in range(4):
    for x, y in train:"""
    + STEP
    + """
        state.sum += loss.item(); own.total += 1
        if own.total == 9: stop.set()
    print(epoch, state.sum, own.total, stop.is_set())
told(model)
""",
    "hidden": "import itertools, collections\n"
    + MADE
    + """
class Meter:
    ids = itertools.count(3)
    seen = collections.Counter()
    rng = random.Random(4)
    def __call__(self): return next(self.ids)
def jitter(rng=random.Random(5), *, kept={"n": 0}):
    kept["n"] += 1
    return rng.random() + kept["n"]
draw = random.Random(6).random
order = iter(list(range(500)))
def counted(k, memo={}):
    memo[k] = memo.get(k, 0) + 1
    return memo[k]
step = itertools.count()
meter = Meter()
for epoch in range(4):
    for x, y in train:
        x = x + meter() / 100 + jitter() / 10 + draw() + next(order) / 500 + counted(len(y)) / 50
        Meter.seen[int(y[0])] += 1"""
    + STEP
    + """
        last = next(step)
    print(epoch, loss.item(), sorted(Meter.seen.items()), last)
told(model)
""",
    "constant_critic": """
train = DataLoader(data(96), batch_size=16, shuffle=True)
G, D = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
og = torch.optim.RMSprop(G.parameters(), lr=1e-3)
od = torch.optim.RMSprop(D.parameters(), lr=1e-3)
for epoch in range(3):
    for i, (x, _) in enumerate(train):
        for _ in range(2):
            fake = G(torch.randn(len(x), 3)).detach()
            d = D(fake).mean() - D(x).mean()
            od.zero_grad(); d.backward(); od.step()
            for p in D.parameters(): p.data.clamp_(-0.1, 0.1)
        if i % 2 == 0:
            g = -D(G(torch.randn(len(x), 3))).mean()
            og.zero_grad(); g.backward(); og.step()
    print(epoch, d.item())
told(G, D)
""",
    "class_constants": """
class Agent:
    EPS = (0.9, 0.05, (600, "linear"))
    SEEN = 0
    def eps(self):
        Agent.SEEN += 1
        a, b, k = self.EPS
        return b + (a - b) * 0.99 ** Agent.SEEN
agent, train, model = Agent(), DataLoader(data(96), batch_size=16, shuffle=True), net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
for epoch in range(3):
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x + agent.eps() * torch.randn(6)), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
print(Agent.SEEN, Agent.EPS)
told(model)
""",
}


@pytest.mark.parametrize("name", CARRIED)
def test_an_idiom_is_carried_bit_for_bit(bench: Bench, name: str) -> None:
    script = bench.script(CARRIED[name])
    whole = bench.run(script, every=4)
    assert whole.code == 0, whole.err
    assert whole.refusal.get("accepted"), whole.refusal
    saved = whole.checkpoints
    for checkpoint in (saved[1], saved[-2]):
        resumed = bench.run(script, checkpoint)
        assert resumed.code == 0, (checkpoint, resumed.err)
        assert resumed.out == whole.out, checkpoint


def test_groups_say_in_a_run_and_a_resumed_one_what_plain_python_says(bench: Bench) -> None:
    """Small optimizers run by ``foreach`` on a CPU: scripts that write groups down see nothing."""
    body = MADE + LOOP + """
    print(epoch, optimizer, repr([{**g, "params": 0} for g in optimizer.param_groups]))
told(model)
"""  # fmt: skip
    script, switched = bench.script(body), ("guard.fused=true",)
    plain, whole = bench.run(script), bench.run(script, also=switched)
    assert whole.out == plain.out
    assert any(event.kind == "switched_to_foreach" for event in whole.events)
    resumed = bench.run(script, whole.checkpoints[1], also=switched)
    assert (resumed.code, resumed.out) == (0, plain.out), resumed.err


REFUSED = {
    "generator in a closure": (
        """
def drawing():
    numbers = (random.random() for _ in range(999))
    return lambda: next(numbers)
draw = drawing()
""",
        "draw()",
        "draw.numbers is an iterator",
    ),
    "generator by its method": (
        "draw = (random.random() for _ in range(999)).__next__\n",
        "draw()",
        "draw is an iterator",
    ),
    "generator of a class": (
        "class Made:\n    rows = (random.random() for _ in range(999))\n",
        "next(Made.rows)",
        "Made.rows is an iterator",
    ),
    "thread": (
        """
import threading, time
def beside():
    while True: random.random(); time.sleep(0.01)
worker = threading.Thread(target=beside, daemon=True)
worker.start()
""",
        "pass",
        "worker is a thread",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_is_refused_by_name(bench: Bench, name: str) -> None:
    made, used, reason = REFUSED[name]
    script = bench.script(MADE + made + LOOP.replace("loss =", f"{used}\n        loss =", 1) + "\n")
    whole = bench.run(script, every=4)
    assert whole.code == 0, whole.err
    assert not whole.refusal["accepted"] and reason in whole.refusal["reason"], whole.refusal
