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
TWO = MADE + """
one = Endless(DataLoader(Noisy(40, 1), batch_size=8, shuffle=True, drop_last=True))
other = Endless(DataLoader(Noisy(96, 2), batch_size=8, shuffle=True, num_workers=%s))
""" + NET + """
n = 0
while n < 45:
    x, y = one.next()
    u, v = other.next()
    x, y = torch.cat([x, u]), torch.cat([y, v])""" + step(4) + """
    n += 1
    if n %% 15 == 0:
        print(n, one.epoch, other.epoch)
"""
CARRIED = {
    "two by hand": TWO % "0",
    "two by hand, one with workers": TWO % "2",
    "two by hand, one with workers that last": TWO % "2, persistent_workers=True, prefetch_factor=3",
}


@pytest.mark.parametrize("name", CARRIED)
def test_a_script_goes_on_with_all_its_loaders(bench: Bench, name: str) -> None:
    script = bench.script(CARRIED[name] + END)
    whole = bench.run(script, every=4)
    assert whole.code == 0, whole.err
    assert whole.refusal.get("accepted"), whole.refusal
    saved = whole.checkpoints
    assert len(saved) >= 6
    for checkpoint in (saved[0], saved[2], saved[len(saved) // 2], saved[-1]):
        resumed = bench.run(script, checkpoint)
        assert resumed.code == 0, (checkpoint, resumed.err)
        assert resumed.out.endswith(whole.out[whole.out.index("[") :]), checkpoint
    again = bench.run(script, saved[1])
    further = bench.run(script, again.checkpoints[-2])
    assert further.code == 0, further.err
    assert further.out.endswith(whole.out[whole.out.index("[") :])
