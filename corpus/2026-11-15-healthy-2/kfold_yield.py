import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset


def crop_table(n=4000, d=24, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)).astype(np.float32)
    w = rng.normal(size=(d, 3))
    y = np.tanh(x @ w[:, 0]) + 0.5 * (x @ w[:, 1] > 0) + 0.1 * rng.normal(size=n)
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y.astype(np.float32)))


def folds(n, k, seed=0):
    order = np.random.default_rng(seed).permutation(n)
    parts = np.array_split(order, k)
    for i in range(k):
        train = np.concatenate([p for j, p in enumerate(parts) if j != i])
        yield train.tolist(), parts[i].tolist()


def build_model(d):
    return nn.Sequential(
        nn.Linear(d, 640),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(640, 640),
        nn.ReLU(),
        nn.Linear(640, 1),
    )


def fit_fold(data, train_idx, epochs=4):
    model = build_model(data.tensors[0].shape[1])
    opt = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=1e-3)
    loader = DataLoader(Subset(data, train_idx), batch_size=128, shuffle=True)
    model.train()
    for _ in range(epochs):
        for x, y in loader:
            loss = F.mse_loss(model(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
    return model


@torch.no_grad()
def r2(model, data, idx):
    model.eval()
    x, y = data.tensors[0][idx], data.tensors[1][idx]
    residual = (model(x).squeeze(1) - y).pow(2).sum()
    return (1 - residual / (y - y.mean()).pow(2).sum()).item()


def main(k=5):
    torch.set_num_threads(1)
    torch.manual_seed(40)
    data = crop_table()
    scores = []
    for fold, (train_idx, test_idx) in enumerate(folds(len(data), k)):
        model = fit_fold(data, train_idx)
        scores.append(r2(model, data, test_idx))
        print(f"fold {fold}: R2 {scores[-1]:.3f}")
    print(f"mean R2 {np.mean(scores):.3f} +- {np.std(scores):.3f}")


if __name__ == "__main__":
    main()
