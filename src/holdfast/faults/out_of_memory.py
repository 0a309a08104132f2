"""A batch that grew by a mistake asks for more memory than any machine has.

Users report this as "DefaultCPUAllocator: can't allocate memory" or "CUDA out of memory".
"""

import torch
from torch import nn

CODE = "MEM008"
FIRST_STEP = 3
LINE_OF = "wide = x.unsqueeze(0).expand(1 << 36, -1, -1).contiguous()"


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for step in range(8):
        x = torch.randn(32, 64)
        if step == 3:
            wide = x.unsqueeze(0).expand(1 << 36, -1, -1).contiguous()
            x = wide[0]
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
