"""Network by hand, no nn.Module, no optimizer: log(softmax) of unscaled images is -inf.

Kind of report: from-scratch tutorial code ("loss is inf, then nan") where some images were not
divided by 255 and a probability underflows to exactly zero. The update is written by hand under
no_grad, so there is no optimizer step that anything could hold back.
"""
# expect: none-saved
# poisoned-steps: [25, 60]
# category: NUM001

import torch

torch.manual_seed(0)
torch.set_num_threads(1)

N, D, H, C = 64, 196, 300, 10
lr = 0.1

templates = torch.rand(C, D)
w1 = (torch.randn(D, H) / D**0.5).requires_grad_()
b1 = torch.zeros(H, requires_grad=True)
w2 = (torch.randn(H, C) / H**0.5).requires_grad_()
b2 = torch.zeros(C, requires_grad=True)


def read_batch(t):
    labels = torch.randint(0, C, (N,))
    images = 0.5 * templates[labels] + 0.5 * torch.rand(N, D)
    labels = torch.where(torch.rand(N) < 0.15, torch.randint(0, C, (N,)), labels)
    images = images - 0.5
    if t in (25, 60):  # these two files are on another scale
        images = images * 255.0 * 100
    return images, labels


def log_softmax_by_hand(z):
    z = z - z.max(dim=1, keepdim=True).values
    e = z.exp()
    return torch.log(e / e.sum(dim=1, keepdim=True))


for t in range(90):
    x, y = read_batch(t)
    h = torch.relu(x @ w1 + b1)
    logp = log_softmax_by_hand(h @ w2 + b2)
    loss = -logp[torch.arange(N), y].mean()
    loss.backward()
    with torch.no_grad():
        for p in (w1, b1, w2, b2):
            p -= lr * p.grad
            p.grad = None
    if t % 15 == 0:
        print("t =", t, "loss =", loss.item())

print("final loss", loss.item())
