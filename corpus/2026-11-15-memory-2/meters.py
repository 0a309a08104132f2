from collections import OrderedDict


class SmoothedValue:
    def __init__(self, window):
        self.window = window
        self.values = []

    def push(self, value):
        self.values.append(value)

    @property
    def recent(self):
        tail = self.values[-self.window :]
        return sum(tail) / max(len(tail), 1)


class MeterBook:
    def __init__(self, window=20):
        self.window = window
        self.meters = OrderedDict()

    def update(self, **values):
        for name, value in values.items():
            if name not in self.meters:
                self.meters[name] = SmoothedValue(self.window)
            self.meters[name].push(value)

    def summary(self):
        return "  ".join(f"{name}={meter.recent:.4f}" for name, meter in self.meters.items())
