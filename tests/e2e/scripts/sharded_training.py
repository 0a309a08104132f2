"""A training with FSDP2 in a loop of its own, watched: DIR RESUME STEPS [replicas]."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast
from holdfast.config import CheckpointSettings, RunSettings, Settings

torch.set_num_threads(1)
folder, resume, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
replicas = int(sys.argv[4]) if len(sys.argv) > 4 else 1
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
if replicas > 1:
    shape, names = (replicas, world // replicas), ("replicate", "shard")
else:
    shape, names = (world,), ("shard",)
mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 9, bias=False), torch.nn.Linear(9, 1)
)
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

x = torch.randn(16 * steps, 6)
rows = [(x[i], x[i].sum().unsqueeze(0)) for i in range(len(x))]
own = [row for i, row in enumerate(rows) if i % world == rank]  # as a sampler would share them
loader = torch.utils.data.DataLoader(own, batch_size=16 // world)

settings = Settings(
    checkpoint=CheckpointSettings(steps=4, minutes=0.0, last=9), run=RunSettings(quiet=True)
)
watch = holdfast.watch(model, optimizer, run_dir=folder, resume=resume or None, settings=settings)
for batch, target in watch(loader):
    loss = ((model(batch) - target) ** 2).mean()
    watch.backward(loss)
    watch.step()
    whole = loss.detach().clone()
    dist.all_reduce(whole)
    if rank == 0:
        print(f"loss {watch.batches - 1} {(whole / world).item():.9f}", flush=True)
watch.close()
dist.destroy_process_group()
