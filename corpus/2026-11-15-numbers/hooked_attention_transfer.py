import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Thumbnails(Dataset):
    def __init__(self, n=300, size=8):
        g = torch.Generator().manual_seed(18)
        self.x = torch.rand(n, 1, size, size, generator=g)
        self.y = (self.x.mean(dim=(1, 2, 3)) > 0.5).long()
        blank = torch.rand(n, generator=g) < 0.005
        self.x[blank] = 0.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class SmallCNN(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.ReLU())
        self.classifier = nn.Linear(width, 2)

    def forward(self, x):
        h = self.stage2(self.stage1(x))
        return self.classifier(h.mean(dim=(2, 3)))


class ActivationTap:
    def __init__(self, model, layers):
        self.store = {}
        modules = dict(model.named_modules())
        self.handles = [modules[n].register_forward_hook(self.saver(n)) for n in layers]

    def saver(self, name):
        def hook(module, inputs, output):
            self.store[name] = output

        return hook


class AttentionTransferLoss:
    def __init__(self, student, teacher, layers, beta=5.0):
        self.layers = layers
        self.beta = beta
        self.student_tap = ActivationTap(student, layers)
        self.teacher_tap = ActivationTap(teacher, layers)

    @staticmethod
    def attention_map(features):
        energy = features.pow(2).mean(dim=1).flatten(1)
        length = energy.pow(2).sum(dim=1, keepdim=True)
        return energy / (length + 1e-12).sqrt()

    @staticmethod
    def teacher_map(features):
        energy = features.pow(2).mean(dim=1).flatten(1)
        return energy / energy.sum(dim=1, keepdim=True)

    def __call__(self, logits, target):
        loss = F.cross_entropy(logits, target)
        for name in self.layers:
            a = self.attention_map(self.student_tap.store[name])
            b = self.teacher_map(self.teacher_tap.store[name])
            loss = loss + self.beta * (a - b).pow(2).mean()
        return loss


def main():
    torch.manual_seed(1)
    student, teacher = SmallCNN(6), SmallCNN(12)
    teacher.eval().requires_grad_(False)
    criterion = AttentionTransferLoss(student, teacher, ["stage1", "stage2"])
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Thumbnails(), batch_size=10, shuffle=True)
    for epoch in range(2):
        for i, (x, y) in enumerate(loader):
            with torch.no_grad():
                teacher(x)
            loss = criterion(student(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 10 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
