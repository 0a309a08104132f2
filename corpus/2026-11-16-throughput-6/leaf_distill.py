"""Distil a wide leaf-disease classifier into a narrow one with feature matching."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(13)

N_CLASSES = 6
STAGES = ("stage1", "stage2", "stage3")


class ConvNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU())
        self.stage3 = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU())
        self.fc = nn.Linear(2 * width, N_CLASSES)

    def forward(self, x):
        x = self.stage3(self.stage2(self.stage1(x)))
        return self.fc(x.mean((2, 3)))


def leaf_batch(n, size=20):
    y = torch.randint(0, N_CLASSES, (n,))
    img = 0.3 * torch.rand(n, 3, size, size)
    img[:, 1] += 0.4
    grid = torch.linspace(0, 6.28, size)
    freq = 1 + y.float()
    spots = torch.sin(freq[:, None, None] * grid[None, :, None]) * torch.cos(freq[:, None, None] * grid[None, None])
    img[:, 0] += 0.5 * spots.clamp(min=0)
    return img, y


def attention_map(feature):
    """Spatial attention of a feature map, normalised (Zagoruyko & Komodakis)."""
    return F.normalize(feature.pow(2).mean(1).flatten(1), dim=1)


def collect_attention(model):
    maps = {}

    def save(name):
        def hook(module, inputs, output):
            maps[name] = attention_map(output)
        return hook

    for name in STAGES:
        getattr(model, name).register_forward_hook(save(name))
    return maps


class Distiller:
    def __init__(self, teacher, student, temperature=3.0, beta=5.0):
        self.teacher, self.student = teacher.eval(), student
        self.temperature, self.beta = temperature, beta
        self.optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)

    def step(self, x, y):
        t_maps = collect_attention(self.teacher)
        s_maps = collect_attention(self.student)
        with torch.no_grad():
            t_logits = self.teacher(x)
        s_logits = self.student(x)
        T = self.temperature
        soft = F.kl_div(F.log_softmax(s_logits / T, 1), F.softmax(t_logits / T, 1), reduction="batchmean") * T * T
        match = sum((s_maps[k] - t_maps[k]).pow(2).mean() for k in STAGES)
        loss = F.cross_entropy(s_logits, y) + 0.5 * soft + self.beta * match
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), (s_logits.argmax(1) == y).float().mean().item()


def pretrain(teacher, steps=60):
    opt = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(steps):
        x, y = leaf_batch(16)
        loss = F.cross_entropy(teacher(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"teacher ready, loss {loss.item():.3f}")


if __name__ == "__main__":
    teacher, student = ConvNet(24), ConvNet(8)
    pretrain(teacher)
    distiller = Distiller(teacher, student)
    for i in range(1, 121):
        loss, acc = distiller.step(*leaf_batch(16))
        if i % 30 == 0:
            print(f"distil {i}: loss {loss:.3f} acc {acc:.2f}")
