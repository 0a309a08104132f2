"""Training loops that follow one another: each is gone on with bit for bit, wherever it was."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.file import load, save
from holdfast.checkpoint.tree import flatten

from .conftest import Bench

MADE = """
x_all, y_all = data(64).tensors
loader = DataLoader(TensorDataset(x_all, y_all), batch_size=16, shuffle=True,
                    generator=torch.Generator().manual_seed(5))
model = net()
seen = []
def step(optimizer, x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    seen.append(loss.item())
def score():
    model.eval()
    with torch.no_grad():
        told = model(x_all).var().item()
    model.train()
    return told
def epoch_of(optimizer, schedule=None):
    total = 0.0
    for x, y in loader:
        step(optimizer, x, y)
        total += seen[-1]
        if schedule is not None: schedule.step()
    return total
"""
END = "\nprint(len(seen), sum(seen))\ntold(model)\n"
ROUNDS = """
first = torch.optim.Adam(model.parameters(), lr=1e-2)
for i in range(12):
    pick = torch.randint(0, 64, (16,))
    step(first, x_all[pick] + 0.1 * torch.randn(16, 6), y_all[pick])
del first
"""
TUNING = """
def tune(much, lr):
    optimizer = torch.optim.SGD(model[0].parameters(), lr=lr, momentum=0.9)
    best = None
    for epoch in range(much):
        total = epoch_of(optimizer)
        best = score() if best is None else max(best, score())
    print("tuned", total, best)
"""
SCRIPTS = {
    "rounds, then epochs": ROUNDS
    + """
for p in model[0].parameters(): p.requires_grad = False
second = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05, momentum=0.9)
for epoch in range(3):
    total = epoch_of(second)
    print(epoch, total, score())
for p in model[0].parameters(): p.requires_grad = True
third = torch.optim.AdamW([{"params": model[0].parameters(), "lr": 1e-3},
                           {"params": model[1:].parameters(), "lr": 5e-3}])
schedule = torch.optim.lr_scheduler.OneCycleLR(third, [1e-3, 5e-3], total_steps=3 * len(loader))
for epoch in range(3):
    total = epoch_of(third, schedule)
    print(epoch, total, score())
""",
    "epochs, then rounds": """
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    total = epoch_of(optimizer)
    print(epoch, total, score())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
n = 0
while n < 14:
    pick = np.random.randint(0, 64, 16)
    step(optimizer, x_all[pick], y_all[pick])
    n += 1
""",
    "rounds, then rounds": ROUNDS
    + """
second = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for i in range(15):
    k = random.randrange(48)
    step(second, x_all[k:k + 16], y_all[k:k + 16])
""",
    "a function called twice": TUNING + "\ntune(3, 0.1)\ntune(3, 0.01)\n",
}


def _expected(out: str, resumed: str) -> None:
    lines, shown = out.splitlines(), resumed.splitlines()
    # What is printed once more on the way is what was printed then.
    assert shown[-2:] == lines[-2:] and set(shown) <= set(lines), (shown, lines)


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_loop_goes_on_bit_for_bit(bench: Bench, name: str) -> None:
    script = bench.script(MADE + SCRIPTS[name] + END)
    whole = bench.run(script, every=3)
    assert whole.code == 0, whole.err
    assert whole.refusal.get("accepted"), whole.refusal
    saved = whole.checkpoints
    assert len(saved) >= 6
    for checkpoint in (saved[1], saved[len(saved) // 2], saved[-2], saved[-1]):
        resumed = bench.run(script, checkpoint)
        assert resumed.code == 0, (checkpoint, resumed.err)
        _expected(whole.out, resumed.out)
        assert checkpoint == saved[-1] or resumed.rows["step"][-1] == whole.rows["step"][-1]
    again = bench.run(script, resumed.checkpoints[-1] if resumed.checkpoints else saved[-1])
    assert again.code == 0, again.err
    _expected(whole.out, again.out)


def test_the_last_checkpoint_of_a_loop_before_is_kept(bench: Bench) -> None:
    script = bench.script(MADE + SCRIPTS["rounds, then rounds"] + END)
    whole = bench.run(script, every=4, also=("checkpoint.last=1",))
    assert whole.code == 0, whole.err
    before, last = whole.checkpoints
    resumed = bench.run(script, last)
    assert resumed.code == 0, resumed.err
    assert f"is done again from its checkpoint {before.name} to its end" in resumed.err
    _expected(whole.out, resumed.out)
    before.unlink()
    resumed = bench.run(script, last)
    assert resumed.code == 0, resumed.err
    assert "is done again from its beginning to its end" in resumed.err
    _expected(whole.out, resumed.out)


def test_a_loop_that_leads_to_something_else_is_refused_by_its_line(bench: Bench) -> None:
    script = bench.script(MADE + SCRIPTS["a function called twice"] + END)
    whole = bench.run(script, every=3)
    tree, _ = load(whole.checkpoints[-1])
    tree["resume"]["phases"][0]["weights"][0] ^= 1
    other = whole.checkpoints[-1].with_name("other.safetensors")
    save(other, *flatten(tree), {"step": 20, "resume": True})
    resumed = bench.run(script, other)
    assert resumed.code == 2
    line = script.read_text().splitlines().index("    for epoch in range(much):") + 1
    assert "has led to something else" in resumed.err and f"train.py:{line}" in resumed.err


def test_training_in_two_places_of_one_loop_is_refused_by_its_line(bench: Bench) -> None:
    script = bench.script(
        MADE
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for fold in range(3):
    for i in range(4):
        step(optimizer, x_all[i:i + 16], y_all[i:i + 16])
    for x, y in loader:
        step(optimizer, x, y)
"""
        + END
    )
    whole = bench.run(script, every=3)
    assert whole.code == 0, whole.err
    reported = [event.data for event in whole.events if event.kind == "resumable"]
    refused = [one for one in reported if not one["accepted"]]
    assert refused and all(one["line"] for one in refused), reported
