import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(19)


def weld_images(n, size=28):
    seam = torch.zeros(n, 1, size, size)
    seam[:, :, size // 2 - 2 : size // 2 + 2] = 1.0
    label = torch.randint(0, 3, (n,))
    for i, kind in enumerate(label.tolist()):
        c = int(torch.randint(4, size - 8, (1,)))
        if kind == 1:
            seam[i, 0, size // 2 - 2 : size // 2 + 2, c : c + 4] = 0.0
        elif kind == 2:
            seam[i, 0, size // 2 - 6 : size // 2 - 2, c : c + 3] = 0.9
    return seam + 0.5 * torch.randn_like(seam), label


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(),
    )


class WeldNet(nn.Sequential):
    def __init__(self):
        super().__init__(
            conv_block(1, 20),
            conv_block(20, 40),
            nn.Flatten(),
            nn.Linear(40 * 7 * 7, 3),
        )


class AveragedEvaluator:
    def __init__(self, model, train_loader, val_set, every):
        self.averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
        self.train_loader = train_loader
        self.val_x, self.val_y = val_set
        self.every = every

    def after_step(self, step, model):
        self.averaged.update_parameters(model)
        if step % self.every:
            return
        update_bn(self.train_loader, self.averaged)
        self.averaged.eval()
        with torch.no_grad():
            acc = (self.averaged(self.val_x).argmax(1) == self.val_y).float().mean().item()
        self.averaged.train()
        print(f"step {step:4d} averaged accuracy {acc:.3f}")


def fit(epochs=5, every=24):
    x, y = weld_images(3072 + 256)
    train_loader = DataLoader(TensorDataset(x[256:], y[256:]), batch_size=48, shuffle=True)
    model = WeldNet()
    evaluator = AveragedEvaluator(model, train_loader, (x[:256], y[:256]), every)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    step = 0
    for epoch in range(epochs):
        for images, labels in train_loader:
            step += 1
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            evaluator.after_step(step, model)
        print(f"epoch {epoch} loss {loss.item():.3f}")


fit()
