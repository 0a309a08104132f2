import collections

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(21)
torch.set_num_threads(1)


class LeafSpots(Dataset):
    """Round leaf silhouettes with class-dependent spot patterns."""

    def __init__(self, n, size=32, classes=6, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, classes, (n,), generator=g)
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
        leaf = ((xx ** 2 + yy ** 2) < 0.8).float()
        freq = (self.labels.float() + 2).view(-1, 1, 1)
        phase = torch.rand(n, 1, 1, generator=g) * 6
        spots = torch.sin(freq * 2 * xx + phase) * torch.cos(freq * 2 * yy)
        noise = torch.randn(n, 3, size, size, generator=g) * 0.3
        tint = torch.tensor([0.3, 1.0, 0.2]).view(1, 3, 1, 1)
        self.images = (leaf * (0.5 + 0.5 * spots)).unsqueeze(1) * tint + noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


def conv_bn(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class Net(nn.Module):
    def __init__(self, width, classes=6):
        super().__init__()
        self.stem = conv_bn(3, width, 2)
        self.stage1 = conv_bn(width, width)
        self.stage2 = conv_bn(width, 2 * width, 2)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = self.stage2(self.stage1(self.stem(x)))
        return self.fc(x.mean(dim=(2, 3)))


class Tap:
    """Collects the outputs of named submodules."""

    def __init__(self, net, names):
        self.maps = collections.defaultdict(list)
        modules = dict(net.named_modules())
        for name in names:
            modules[name].register_forward_hook(self._make(name))

    def _make(self, name):
        def hook(module, inputs, output):
            self.maps[name].append(output)
        return hook

    def latest(self, name):
        return self.maps[name][-1]


def attention(fmap):
    return F.normalize(fmap.pow(2).mean(1).flatten(1), dim=1)


def pretrain(net, loader, steps):
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step, (x, y) in zip(range(steps), loader):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"teacher ready, last loss {loss.item():.3f}")
    return net.eval().requires_grad_(False)


train_set, test_set = LeafSpots(2880, seed=1), LeafSpots(512, seed=2)
loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
teacher = pretrain(Net(16), loader, 40)
student = Net(14)
layers = ["stage1", "stage2"]
student_tap = Tap(student, layers)
teacher_feats = {}
for name in layers:
    getattr(teacher, name).register_forward_hook(lambda m, i, o, name=name: teacher_feats.__setitem__(name, o))

opt = torch.optim.Adam(student.parameters(), lr=3e-3)
for epoch in range(2):
    student.train()
    running = 0.0
    for x, y in loader:
        with torch.no_grad():
            soft = teacher(x)
        logits = student(x)
        kd = F.kl_div(F.log_softmax(logits / 3, 1), F.softmax(soft / 3, 1), reduction="batchmean") * 9
        at = sum(F.mse_loss(attention(student_tap.latest(n)), attention(teacher_feats[n])) for n in layers)
        loss = F.cross_entropy(logits, y) + 0.5 * kd + 50 * at
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
    print(f"epoch {epoch}: loss {running / len(loader):.3f}")

student.eval()
with torch.no_grad():
    acc = (student(test_set.images).argmax(1) == test_set.labels).float().mean()
print(f"student accuracy {acc:.3f}")
