"""Mini-batch GCN on a synthetic citation graph; out-of-batch neighbours come from stored embeddings."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(2)

NODES, FEATS, HIDDEN, CLASSES, PARTS = 24000, 24, 96, 6, 60


def build_graph():
    label = torch.randint(0, CLASSES, (NODES,))
    order = torch.argsort(label * 1.0 + 0.8 * torch.rand(NODES))
    src = torch.arange(NODES).repeat_interleave(3)
    hop = torch.randint(1, 300, (len(src),))
    far = torch.rand(len(src)) < 0.1
    dst_rank = torch.where(far, torch.randint(0, NODES, (len(src),)), (src + hop) % NODES)
    a, b = order[src], order[dst_rank]
    edges = torch.cat([torch.stack([a, b]), torch.stack([b, a])], 1)
    edges = edges[:, torch.argsort(edges[1])]
    x = F.one_hot(label, FEATS).float() * 0.6 + torch.randn(NODES, FEATS)
    return x, label, edges, torch.bincount(edges[1], minlength=NODES).clamp(min=1)


class History:
    """Last known hidden vector of every node, in blocks that appear when a partition is first visited."""

    def __init__(self, dim, block=1200):
        self.dim, self.block, self.store = dim, block, {}

    def push(self, nodes, value):
        value = value.detach()
        for b in torch.unique(nodes // self.block).tolist():
            if b not in self.store:
                self.store[b] = torch.zeros(self.block, self.dim)
            m = nodes // self.block == b
            self.store[b][nodes[m] % self.block] = value[m]

    def pull(self, nodes):
        out = torch.zeros(len(nodes), self.dim)
        for b in torch.unique(nodes // self.block).tolist():
            if b in self.store:
                m = nodes // self.block == b
                out[m] = self.store[b][nodes[m] % self.block]
        return out


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(FEATS, HIDDEN)
        self.lin1 = nn.Linear(2 * HIDDEN, HIDDEN)
        self.lin2 = nn.Linear(2 * HIDDEN, CLASSES)
        self.hist = History(HIDDEN)

    @staticmethod
    def aggregate(h_all, src, dst, n, deg):
        out = torch.zeros(n, h_all.shape[1]).index_add(0, dst, h_all[src])
        return out / deg[:, None]

    def forward(self, x, nodes, halo, src, dst, deg):
        h0 = F.relu(self.inp(x))
        n = len(nodes)
        h1 = F.relu(self.lin1(torch.cat([h0[:n], self.aggregate(h0, src, dst, n, deg)], 1)))
        h1_all = torch.cat([h1, self.hist.pull(halo)])
        self.hist.push(nodes, h1)
        return self.lin2(torch.cat([h1, self.aggregate(h1_all, src, dst, n, deg)], 1))


x, label, edges, degree = build_graph()
parts = torch.arange(NODES).view(PARTS, -1)
bounds = torch.searchsorted(edges[1].contiguous(), torch.arange(0, NODES + 1, NODES // PARTS))
batches = {}


def partition(p):
    if p not in batches:
        nodes = parts[p]
        e = edges[:, bounds[p]:bounds[p + 1]]
        first = nodes[0]
        inside = (e[0] >= first) & (e[0] < first + len(nodes))
        halo, pos = torch.unique(e[0][~inside], return_inverse=True)
        src = e[0] - first
        src[~inside] = len(nodes) + pos
        batches[p] = (nodes, halo, src, e[1] - first, degree[nodes], x[torch.cat([nodes, halo])])
    return batches[p]


model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, weight_decay=1e-4)
train_mask = torch.rand(NODES) < 0.6

for epoch in range(5):
    correct = total = 0
    for p in torch.randperm(PARTS).tolist():
        nodes, halo, src, dst, deg, feats = partition(p)
        logits = model(feats, nodes, halo, src, dst, deg)
        m = train_mask[nodes]
        loss = F.cross_entropy(logits[m], label[nodes][m])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (logits[~m].argmax(1) == label[nodes][~m]).sum()
        total += (~m).sum()
    print(f"epoch {epoch + 1}  loss {loss.item():.3f}  held-out acc {(correct / total).item():.3f}  blocks {len(model.hist.store)}")
