"""Running averages shared by the training scripts."""

from collections import OrderedDict


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.val = 0.0
        self.sum = 0.0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum = self.sum + val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


class MeterBoard:
    def __init__(self):
        self.meters = OrderedDict()

    def update(self, n, **values):
        for name, value in values.items():
            self.meters.setdefault(name, AverageMeter()).update(value, n)

    def line(self):
        return "  ".join(f"{name} {meter.avg:.4f}" for name, meter in self.meters.items())


board = MeterBoard()
