"""Two ranks: at step 150 something outside damages the weights of both, alike."""

import hashlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
generator = torch.Generator().manual_seed(0)
inputs = torch.randn(4096, 16, generator=generator)
targets = inputs @ torch.randn(16, 1, generator=generator)
torch.manual_seed(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
data = TensorDataset(inputs, targets)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=32, sampler=sampler)
check = DataLoader(data, batch_size=512)
step = 0
for epoch in range(4):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if step == 150:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(25.0)
        optimizer.step()
        step += 1
        time.sleep(0.002)
        if rank == 0 and step % 50 == 0:  # only one rank looks at its validation data
            with torch.no_grad():
                sum(nn.functional.mse_loss(model.module(a), b) for a, b in check)
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:12]
print(f"rank {rank} {digest} {loss.item():.4f}\n", end="", flush=True)
dist.destroy_process_group()
