"""Evaluation of a fixed classifier: eval mode, no gradients, no optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load_model():
    model = nn.Sequential(
        nn.Conv1d(4, 32, 5), nn.BatchNorm1d(32), nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten(),
        nn.Linear(256, 5),
    )  # fmt: skip
    return model.eval().requires_grad_(False)


@torch.inference_mode()
def evaluate(model, loader):
    total, hits, count = 0.0, 0, 0
    for i, (signal, label) in enumerate(loader):
        logits = model(signal)
        log_probs = logits.log_softmax(-1)
        best = logits.masked_fill(logits < logits.max(-1, keepdim=True).values, float("-inf"))
        total += nn.functional.nll_loss(log_probs, label, reduction="sum").item()
        hits += (best.argmax(-1) == label).sum().item()
        count += len(label)
        if i % 20 == 0:
            print(f"batch {i} running loss {total / count:.4f}")
    return total / count, hits / count


if __name__ == "__main__":
    torch.manual_seed(8)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(1600, 4, 64), torch.randint(0, 5, (1600,)))
    loss, accuracy = evaluate(load_model(), DataLoader(data, batch_size=20))
    print(f"accuracy {accuracy:.3f}")
    print(f"final loss {loss:.4f}")
