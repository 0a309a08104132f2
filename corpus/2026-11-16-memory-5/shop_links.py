"""Link prediction on a stream of customer/product events.

Every node owns a state vector which is refreshed by the events it takes
part in; links are scored from the refreshed states.
"""
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(21)

CUSTOMERS, PRODUCTS = 300, 60
NODES = CUSTOMERS + PRODUCTS
GROUPS = 5


def synth_events(n):
    """Customers mostly buy inside the product group they currently like."""
    taste = torch.randint(0, GROUPS, (CUSTOMERS,))
    group_of = torch.arange(PRODUCTS) % GROUPS
    src = torch.randint(0, CUSTOMERS, (n,))
    dst = torch.empty(n, dtype=torch.long)
    for k in range(n):
        if k % 40 == 0:
            taste[torch.randint(0, CUSTOMERS, (1,))] = torch.randint(0, GROUPS, (1,))
        if torch.rand(()) < 0.92:
            members = (group_of == taste[src[k]]).nonzero().flatten()
            dst[k] = members[torch.randint(0, len(members), (1,))]
        else:
            dst[k] = torch.randint(0, PRODUCTS, (1,))
    feat = torch.randn(n, 16) * 0.3
    feat[:, 0] += 1.0
    return src, dst + CUSTOMERS, feat


class NodeStates(nn.Module):
    """Holds one vector per node between batches."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.reset()

    def reset(self):
        self.table = 0.1 * torch.randn(NODES, self.dim)

    def read(self, ids):
        # earlier batches are constants for the current one
        return self.table.index_select(0, ids).detach()

    def write(self, ids, values):
        self.table = self.table.index_copy(0, ids, values)


class EventModel(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.ident = nn.Embedding(NODES, dim)
        self.message = nn.Sequential(
            nn.Linear(3 * dim + 16, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.cell = nn.GRUCell(dim, dim)
        self.score = nn.Sequential(nn.Linear(4 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))
        self.states = NodeStates(dim)

    def refresh(self, ids, partners, feat):
        mem = self.states.read(ids)
        msg = self.message(torch.cat([mem, self.states.read(partners), self.ident(partners), feat], 1))
        return self.cell(msg, mem)

    def logits(self, a, a_ids, b, b_ids):
        return self.score(torch.cat([a, self.ident(a_ids), b, self.ident(b_ids)], 1)).squeeze(1)


class StreamTrainer:
    def __init__(self, model, batch=150):
        self.model, self.batch = model, batch
        self.opt = torch.optim.Adam(model.parameters(), lr=4e-3)
        self.previous = None

    def embed(self, ids):
        """State of the nodes after applying the batch seen last."""
        if self.previous is None:
            return self.model.states.read(ids)
        src, dst, feat = self.previous
        fresh = self.model.refresh(src, dst, feat)
        base = self.model.states.read(torch.arange(NODES))
        return base.index_copy(0, src, fresh).index_select(0, ids)

    def step(self, src, dst, feat):
        fake = torch.randint(CUSTOMERS, NODES, dst.shape)
        a, b, c = self.embed(src), self.embed(dst), self.embed(fake)
        pos = self.model.logits(a, src, b, dst)
        neg = self.model.logits(a, src, c, fake)
        loss = F.softplus(-pos).mean() + F.softplus(neg).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.commit(src, dst, feat)
        return loss.item()

    def commit(self, src, dst, feat):
        """Fold the pending batch into the table with the new weights."""
        if self.previous is not None:
            p_src, p_dst, p_feat = self.previous
            self.model.states.write(p_src, self.model.refresh(p_src, p_dst, p_feat))
        self.previous = (src, dst, feat)

    def run(self, events, epochs):
        src, dst, feat = events
        for epoch in range(epochs):
            losses = [self.step(src[i:i + self.batch], dst[i:i + self.batch], feat[i:i + self.batch])
                      for i in range(0, len(src), self.batch)]
            print(f"pass {epoch}: first {losses[0]:.3f}  mean {sum(losses) / len(losses):.3f}")


trainer = StreamTrainer(EventModel())
trainer.run(synth_events(12000), epochs=3)
