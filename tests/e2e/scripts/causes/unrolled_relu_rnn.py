# IRNN (Le et al. 2015): relu recurrence with identity init, on the adding problem.
# sequences of several lengths, shortest first, as in the curriculum experiments
import torch

torch.manual_seed(100)

HID = 24
LENGTHS = [10] * 6 + [20] * 4 + [40] * 4 + [600] * 30
BATCH = 16

W_in = torch.nn.Parameter(0.3 * torch.randn(2, HID))
W_rec = torch.nn.Parameter(1.2 * torch.eye(HID) + 0.01 * torch.randn(HID, HID))
b = torch.nn.Parameter(torch.zeros(HID))
w_out = torch.nn.Parameter(0.1 * torch.randn(HID))
params = [W_in, W_rec, b, w_out]

optimizer = torch.optim.Adam(params, lr=1e-3)


def adding_problem(n, length):
    values = torch.rand(n, length)
    marks = torch.zeros(n, length)
    first = torch.randint(0, length // 2, (n,))
    second = torch.randint(length // 2, length, (n,))
    rows = torch.arange(n)
    marks[rows, first] = 1.0
    marks[rows, second] = 1.0
    return torch.stack([values, marks], dim=-1), (values * marks).sum(dim=1)


losses = []
for step, length in enumerate(LENGTHS):
    x, y = adding_problem(BATCH, length)

    h = torch.zeros(BATCH, HID)
    for t in range(length):
        h = torch.relu(x[:, t] @ W_in + h @ W_rec + b)
    pred = h @ w_out / length

    # errors are heavy-tailed early on, so use the log of the squared error
    loss = torch.log1p((pred - y) ** 2).mean()

    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(params, 1.0)
    optimizer.step()

    losses.append(loss.item())
    if step % 3 == 0:
        print(f"step {step:3d} T={length:3d} loss {losses[-1]:.4f} grad norm {norm.item():.3g}")

# how well does it extrapolate to other lengths?
with torch.no_grad():
    for length in (10, 30):
        x, y = adding_problem(64, length)
        state = torch.zeros(64, HID)
        for t in range(length):
            state = torch.relu(x[:, t] @ W_in + state @ W_rec + b)
        err = (state @ w_out / length - y).abs().mean().item()
        print(f"T={length}: mean absolute error {err:.3f}")

print("mean loss of the last 5 steps: %.4f" % (sum(losses[-5:]) / 5))
radius = torch.linalg.matrix_norm(W_rec.detach(), ord="fro").item()
print("norm of the recurrent matrix: %.3f" % radius)
