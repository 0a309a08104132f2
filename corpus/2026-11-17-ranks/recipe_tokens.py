"""Language model over recipe steps, parameters sharded layer by layer."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
VOCAB, WIDTH, HEADS, CONTEXT, BATCH, STEPS = 80, 64, 4, 32, 12, 110


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class RecipeModel(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.token = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.token(ids) + self.position(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(gen, follow):
    ids = torch.randint(0, VOCAB, (BATCH, 1), generator=gen)
    for _ in range(CONTEXT):
        pick = torch.randint(0, 3, (BATCH, 1), generator=gen)
        ids = torch.cat([ids, follow[ids[:, -1:]].gather(2, pick.unsqueeze(2)).squeeze(2)], dim=1)
    return ids[:, :-1], ids[:, 1:]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = RecipeModel()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20))
    follow = torch.randint(0, VOCAB, (VOCAB, 3), generator=torch.Generator().manual_seed(0))
    gen = torch.Generator().manual_seed(50 + rank)
    for step in range(1, STEPS + 1):
        ids, target = batch(gen, follow)
        loss = F.cross_entropy(model(ids).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        if step % 30 == 0:
            norm = norm.full_tensor()
            if rank == 0:
                print(f"step {step} loss {loss.item():.3f} gradient {norm.item():.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
