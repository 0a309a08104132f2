import random

import torch
from torch import nn
import torch.nn.functional as F
from torch.optim.swa_utils import SWALR, AveragedModel

from tile_store import CLASSES, TileStore, build_reader

torch.set_num_threads(1)
torch.manual_seed(12)
random.seed(12)


def conv(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.GroupNorm(4, b), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.d1, self.d2, self.mid = conv(3, w), conv(w, 2 * w), conv(2 * w, 4 * w)
        self.u2, self.u1 = conv(6 * w, 2 * w), conv(3 * w, w)
        self.out = nn.Conv2d(w, CLASSES, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        c = self.u2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        return self.out(self.u1(torch.cat([F.interpolate(c, scale_factor=2), a], 1)))


def survey_order(n_tiles, steps, batch):
    """The survey is released area by area: early steps only see the first tiles."""
    for step in range(steps):
        released = min(n_tiles, 60 + 4 * step)
        yield random.sample(range(released), batch)


def mean_iou(model, read, tiles):
    inter, union = torch.zeros(CLASSES), torch.zeros(CLASSES)
    with torch.inference_mode():
        for start in range(0, len(tiles), 10):
            images, masks = map(torch.stack, zip(*map(read, tiles[start : start + 10])))
            guess = model(images).argmax(1)
            for c in range(CLASSES):
                inter[c] += ((guess == c) & (masks == c)).sum()
                union[c] += ((guess == c) | (masks == c)).sum()
    return (inter / union.clamp(min=1)).mean().item()


def main(steps=170, batch=6, swa_from=115):
    store = TileStore(260)
    read = build_reader(store, capacity=220)
    read_holdout = build_reader(TileStore(30, seed=77), capacity=30)
    model, averaged, swa_lr = UNet(), None, None
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=swa_from, eta_min=0.02)
    losses = []
    for step, tiles in enumerate(survey_order(260, steps, batch)):
        images, masks = map(torch.stack, zip(*map(read, tiles)))
        loss = F.cross_entropy(model(images), masks)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if step < swa_from:
            cosine.step()
        else:
            if averaged is None:
                averaged, swa_lr = AveragedModel(model), SWALR(opt, swa_lr=0.03, anneal_epochs=10)
            swa_lr.step()
            if step % 4 == 0:
                averaged.update_parameters(model)
        if step % 34 == 33:
            model.eval()
            score = mean_iou(model, read_holdout, range(30))
            model.train()
            print(f"{step + 1:4d} loss {sum(losses[-34:]) / 34:.4f} iou {score:.3f}")
    averaged.eval()
    print(f"averaged iou {mean_iou(averaged, read_holdout, range(30)):.3f} {read.cache_info()}")


if __name__ == "__main__":
    main()
