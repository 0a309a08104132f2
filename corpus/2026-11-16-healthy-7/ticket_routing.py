# Fine-tune a small text encoder on support tickets: head first, then block after block from the top.
import copy

import torch
import torch.nn as nn

VOCAB, LEN, QUEUES = 5000, 24, 6


def make_tickets(n, g):
    queue = torch.randint(0, QUEUES, (n,), generator=g)
    words = torch.randint(100, VOCAB, (n, LEN), generator=g)
    hint = 10 * queue.unsqueeze(1) + torch.randint(0, 10, (n, LEN), generator=g)
    keep = torch.rand(n, LEN, generator=g) < 0.12
    return torch.where(keep, hint, words), queue


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self, dim=96, depth=3):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, dim)
        self.places = nn.Parameter(0.02 * torch.randn(LEN, dim))
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, QUEUES))

    def forward(self, ids):
        x = self.tokens(ids) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


@torch.no_grad()
def accuracy(model, ids, queue):
    model.eval()
    hits = sum((model(a).argmax(1) == b).sum().item() for a, b in zip(ids.split(64), queue.split(64)))
    model.train()
    return hits / len(queue)


def main():
    torch.manual_seed(17)
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(1)
    ids, queue = make_tickets(3000, g)
    val_ids, val_queue = make_tickets(256, g)

    model = Encoder()
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    opt = torch.optim.AdamW(model.head.parameters(), lr=3e-3)

    # step -> what joins the training, with its learning rate
    plan = {
        30: (list(model.blocks[2].parameters()), 1e-3),
        60: (list(model.blocks[1].parameters()), 6e-4),
        90: (list(model.blocks[0].parameters()), 4e-4),
        110: ([model.places, model.tokens.weight], 1e-3),
    }
    best_acc, best_state = 0.0, None
    accumulate = 2
    for step in range(1, 181):
        if step in plan:
            params, lr = plan[step]
            for p in params:
                p.requires_grad_(True)
            opt.add_param_group({"params": params, "lr": lr})
            count = sum(p.numel() for p in model.parameters() if p.requires_grad)
            print(f"step {step}: {count / 1e3:.0f}k trainable parameters")
        opt.zero_grad()
        shown = 0.0
        for _ in range(accumulate):
            pick = torch.randint(0, len(ids), (8,), generator=g)
            loss = nn.functional.cross_entropy(model(ids[pick]), queue[pick]) / accumulate
            loss.backward()
            shown += loss.item()
        opt.step()
        if step % 45 == 0:
            acc = accuracy(model, val_ids, val_queue)
            if acc > best_acc:
                best_acc, best_state = acc, copy.deepcopy(model.state_dict())
            print(f"step {step}  loss {shown:.3f}  val acc {acc:.3f}")
    model.load_state_dict(best_state)
    print(f"restored best model, val acc {accuracy(model, val_ids, val_queue):.3f}")


if __name__ == "__main__":
    main()
