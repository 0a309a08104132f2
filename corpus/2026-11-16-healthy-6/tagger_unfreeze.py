"""Gradual unfreezing of a stacked convolutional tagger: new head first, then one block at a time."""
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, TAGS, LENGTH, BATCH = 1500, 9, 32, 16


class ResBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.conv = nn.Conv1d(d, 2 * d, 3, padding=1)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        h = self.conv(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.out(F.glu(h, dim=-1))


class Backbone(nn.Module):
    def __init__(self, d=64, depth=6):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.blocks = nn.ModuleList(ResBlock(d) for _ in range(depth))

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return x


class Tagger(nn.Module):
    def __init__(self, backbone, d=64):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, TAGS))

    def forward(self, ids):
        return self.head(self.backbone(ids))


def sentences(n, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB, (n, LENGTH), generator=g)
    prev = torch.roll(ids, 1, dims=1)
    tags = (ids % 3) * 3 + (prev % 3)
    return ids, tags


def pretrain(backbone, steps):
    """Short masked-token warm start so that the frozen layers carry something useful."""
    head = nn.Linear(64, 32)
    opt = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=1e-3)
    ids, _ = sentences(400, 0)
    for i in range(steps):
        x = ids[torch.randint(0, len(ids), (BATCH,))]
        masked = x.masked_fill(torch.rand(x.shape) < 0.15, 0)
        loss = F.cross_entropy(head(backbone(masked)).flatten(0, 1), (x % 32).flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"warm start done, loss {loss.item():.3f}")


def groups(model):
    yield "head", model.head
    for i in reversed(range(len(model.backbone.blocks))):
        yield f"block{i}", model.backbone.blocks[i]
    yield "embedding", model.backbone.emb


def main():
    torch.set_num_threads(1)
    torch.manual_seed(30)
    backbone = Backbone()
    pretrain(backbone, 25)
    model = Tagger(backbone)
    model.backbone.requires_grad_(False)
    train_ids, train_tags = sentences(1200, 1)
    val_ids, val_tags = sentences(100, 2)

    optimizer = None
    for stage, (name, module) in enumerate(groups(model)):
        module.requires_grad_(True)
        lr = 4e-3 * 0.85 ** stage
        if optimizer is None:
            optimizer = torch.optim.AdamW(module.parameters(), lr=lr)
        else:
            optimizer.add_param_group({"params": list(module.parameters()), "lr": lr})
        order = torch.randperm(len(train_ids))
        total = 0.0
        for i in range(26):
            idx = order[i * BATCH:(i + 1) * BATCH]
            loss = F.cross_entropy(model(train_ids[idx]).flatten(0, 1), train_tags[idx].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        with torch.no_grad():
            acc = (model(val_ids).argmax(-1) == val_tags).float().mean().item()
        n = sum(p.numel() for p in model.parameters() if p.requires_grad)
        print(f"+{name:9s} trainable {n / 1e3:7.1f}k  loss {total / 26:.3f}  val acc {acc:.3f}")


if __name__ == "__main__":
    main()
