"""Scripts that ask their loaders by hand go on bit for bit from the end of any of their rounds."""

from __future__ import annotations

import pytest

from .conftest import Bench

STEP = """
loss = nn.functional.cross_entropy(model(x), y)
optimizer.zero_grad(); loss.backward(); optimizer.step()
told_so_far.append(loss.item())
"""


def step(deep: int) -> str:
    return "".join(f"\n{' ' * deep}{line}" for line in STEP.strip().splitlines()) + "\n"


MADE = """
told_so_far = []
class Noisy(Dataset):
    def __init__(self, n, seed):
        self.x, self.y = data(n, seed).tensors
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(6) + random.uniform(-0.1, 0.1), int(self.y[i])
class Endless:
    def __init__(self, loader):
        self.loader, self.epoch, self.it = loader, 0, iter(loader)
    def next(self):
        try:
            return next(self.it)
        except StopIteration:
            self.epoch += 1
            self.it = iter(self.loader)
            return next(self.it)
"""
NET = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1, momentum=0.9)
"""
END = "\nprint(told_so_far)\ntold(model)\n"
TWO = (
    MADE
    + """
one = Endless(DataLoader(Noisy(40, 1), batch_size=8, shuffle=True, drop_last=True))
other = Endless(DataLoader(Noisy(96, 2), batch_size=8, shuffle=True, num_workers=%s))
"""
    + NET
    + """
n = 0
while n < 45:
    x, y = one.next()
    u, v = other.next()
    x, y = torch.cat([x, u]), torch.cat([y, v])"""
    + step(4)
    + """
    n += 1
    if n %% 15 == 0:
        print(n, one.epoch, other.epoch)
"""
)
STREAM = """
from torch.utils.data import IterableDataset, get_worker_info
class Stream(IterableDataset):
    def __init__(self, n=0):
        self.n, self.begun, self.made = n, 0, 0
    def __iter__(self):
        self.begun += 1
        worker = get_worker_info()
        rng = np.random.default_rng([self.begun, worker.id if worker else 0])
        buffer, handed = [], 0
        while not self.n or handed < self.n:
            k = int(rng.integers(2))
            buffer.append((rng.normal(size=6).astype(np.float32) + k + random.gauss(0, 0.1), k))
            if len(buffer) >= 8:
                handed += 1
                self.made += 1
                yield buffer.pop(int(rng.integers(len(buffer))))
"""
ENDLESS = (
    """
stream = iter(DataLoader(Stream(), batch_size=8, num_workers=%s))
held = iter(Stream())
val = [next(held)[0] for _ in range(4)]
"""
    + NET
    + """
for n in range(22):
    model.train()
    for _ in range(2):
        x, y = next(stream)
        x = x.float()"""
    + step(8)
    + """
    optimizer.param_groups[0]["lr"] *= 0.97
print(next(stream)[0].sum().item(), next(held))
"""
)
ROUND = """
def batches(loader):
    while True:
        for batch in loader:
            yield batch
"""
EPOCHS = (
    """
for epoch in range(5):
    for x, y in train:
        x = x.float()"""
    + step(8)
    + """
    told_so_far.append((train.dataset.begun, train.dataset.made))
"""
)
CARRIED = {
    "an endless stream": MADE + STREAM + ENDLESS % "0",
    "an endless stream with workers": MADE + STREAM + ENDLESS % "2",
    "a stream that ends": MADE
    + STREAM
    + """
stream = Endless(DataLoader(Stream(40), batch_size=8))
"""
    + NET
    + """
for n in range(40):
    x, y = stream.next()
    x = x.float()"""
    + step(4)
    + """
print(stream.loader.dataset.made, stream.epoch)
""",
    "beside a loop over another": MADE
    + """
one = DataLoader(Noisy(40, 1), batch_size=8, shuffle=True)
two = DataLoader(Noisy(64, 2), batch_size=8, shuffle=True, num_workers=1)
side = iter(two)
"""
    + NET
    + """
for epoch in range(6):
    for x, y in one:
        try:
            u, v = next(side)
        except StopIteration:
            side = iter(two)
            u, v = next(side)
        x, y = torch.cat([x, u]), torch.cat([y, v])"""
    + step(8)
    + """
    print(epoch)
""",
    "zip": MADE
    + """
one = DataLoader(Noisy(40, 1), batch_size=8, shuffle=True)
two = DataLoader(Noisy(64, 2), batch_size=8, shuffle=True)
"""
    + NET
    + """
for epoch in range(6):
    for n, ((x, y), (u, v)) in enumerate(zip(one, two)):
        x, y = torch.cat([x, u]), torch.cat([y, v])"""
    + step(8)
    + """
    print(epoch, n)
""",
    "generators of two": MADE
    + ROUND
    + """
one = batches(DataLoader(Noisy(40, 1), batch_size=8, shuffle=True))
two = batches(DataLoader(Noisy(64, 2), batch_size=8, shuffle=True))
"""
    + NET
    + """
for n in range(40):
    (x, y), (u, v) = next(one), next(two)
    x, y = torch.cat([x, u]), torch.cat([y, v])"""
    + step(4)
    + """
""",
    "a generator of one with workers that last": MADE
    + ROUND
    + """
one = batches(DataLoader(Noisy(40, 1), batch_size=8, shuffle=True, num_workers=1,
                         persistent_workers=True))
"""
    + NET
    + """
for n in range(40):
    x, y = next(one)"""
    + step(4)
    + """
""",
    "two by hand": TWO % "0",
    "two by hand, one with workers": TWO % "2",
    "two by hand, one with workers that last": TWO % "2, persistent_workers=True",
    "epochs of a stream": MADE
    + STREAM
    + """
train = DataLoader(Stream(60), batch_size=8)
"""
    + NET
    + EPOCHS,
    "epochs of a stream with workers": MADE
    + STREAM
    + """
train = DataLoader(Stream(40), batch_size=8, num_workers=2)
"""
    + NET
    + EPOCHS,
    "workers that last from epoch to epoch": MADE
    + """
train = DataLoader(Noisy(48, 1), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
val = DataLoader(Noisy(24, 2), batch_size=8, num_workers=1, persistent_workers=True)
"""
    + NET
    + """
for epoch in range(6):
    model.train()
    for x, y in train:"""
    + step(8)
    + """
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in val:
            total += model(x).sum().item()
    told_so_far.append(total)
""",
}


@pytest.mark.parametrize("name", CARRIED)
def test_a_script_goes_on_with_all_its_loaders(bench: Bench, name: str) -> None:
    script = bench.script(CARRIED[name] + END)
    # While lines are timed no checkpoint is made: when that is, the clock says.
    whole = bench.run(script, every=4, also=("watchers.time=false",))
    assert whole.code == 0, whole.err
    assert whole.refusal.get("accepted"), whole.refusal
    saved = whole.checkpoints
    assert len(saved) >= 4
    end = whole.out[whole.out.index("[") :]
    for checkpoint in (saved[0], saved[len(saved) // 2]):
        resumed = bench.run(script, checkpoint, every=4)
        assert resumed.code == 0, (checkpoint, resumed.err)
        assert resumed.out.endswith(end), checkpoint
    again = bench.run(script, resumed.checkpoints[-1])
    assert again.code == 0, again.err
    assert again.out.endswith(end)


SEEN = (
    MADE
    + """
class Scaled(Noisy):
    scale = 1.0
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x * self.scale, y
"""
)
REFUSED = {
    "data that changes under its workers": (
        SEEN
        + """
one = Endless(DataLoader(data(40), batch_size=8))
other = Endless(DataLoader(Scaled(40, 2), batch_size=8, num_workers=1))
"""
        + NET
        + """
for n in range(30):
    (x, y), _ = one.next(), other.next()
    other.loader.dataset.scale = 1.0 + n"""
        + step(4),
        "were started before the dataset changed",
    ),
    "workers that last inside of another loop": (
        MADE
        + """
train = DataLoader(data(96), batch_size=8)
val = DataLoader(Noisy(24, 2), batch_size=8, num_workers=1, persistent_workers=True)
"""
        + NET
        + """
for epoch in range(3):
    for n, (x, y) in enumerate(train):"""
        + step(8)
        + """
        if n == 4:
            told_so_far.append(sum(model(x).sum().item() for x, y in val))
""",
        "Noisy is read inside of the loop over another loader",
    ),
    "workers that write": (
        MADE
        + STREAM
        + """
class Told(Stream):
    def __iter__(self):
        for one in super().__iter__():
            print("one more", file=sys.stderr)
            yield one
stream = iter(DataLoader(Told(), batch_size=8, num_workers=1))
"""
        + NET
        + """
for n in range(20):
    x, y = next(stream)
    x = x.float()"""
        + step(4),
        "would write twice what they wrote (print)",
    ),
    "memory that is shared with workers": (
        SEEN
        + """
import multiprocessing
class Shared(Noisy):
    def __init__(self, n, seed):
        super().__init__(n, seed)
        self.level = multiprocessing.Value("i", 0)
train = DataLoader(Shared(48, 1), batch_size=8, num_workers=1, persistent_workers=True)
"""
        + NET
        + """
for epoch in range(4):
    for x, y in train:"""
        + step(8),
        "which may change under them",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_its_workers_may_see_otherwise_is_refused(bench: Bench, name: str) -> None:
    body, reason = REFUSED[name]
    whole = bench.run(bench.script(body + END), every=3)
    assert whole.code == 0, whole.err
    reported = [event.data for event in whole.events if event.kind == "resumable"]
    assert any(reason in one["reason"] for one in reported if not one["accepted"]), reported
    assert not reported[-1]["accepted"]


def test_workers_that_begin_with_other_data_are_refused(bench: Bench) -> None:
    script = bench.script(
        MADE
        + """
class Scored(Noisy):
    def __init__(self, n, seed):
        super().__init__(n, seed)
        self.scores = [1.0] * n
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x * self.scores[i], y
train = DataLoader(Scored(48, 1), batch_size=8, num_workers=1)
"""
        + NET
        + """
for epoch in range(3):
    for n, (x, y) in enumerate(train):"""
        + step(8)
        + """
        train.dataset.scores[n] = 1.0 + loss.item()
"""
        + END
    )
    whole = bench.run(script, every=4)
    assert whole.code == 0, whole.err
    resumed = bench.run(script, whole.checkpoints[-1])
    assert resumed.code == 2
    assert "have begun before the dataset was what it was then" in resumed.err
