import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

torch.set_num_threads(1)
torch.manual_seed(3)
random.seed(3)

ATOM_TYPES = 6
MAX_ATOMS = 26


def random_molecule():
    n = random.randint(18, MAX_ATOMS)
    atoms = [random.randrange(ATOM_TYPES) for _ in range(n)]
    bonds = [(i, random.randrange(i), random.choice([1.0, 1.5, 2.0])) for i in range(1, n)]
    for _ in range(n // 2):
        bonds.append((random.randrange(n), random.randrange(n), 1.0))
    polar = sum(1 for u, v, _ in bonds if (atoms[u] == 0) != (atoms[v] == 0))
    heavy = sum(1 for a in atoms if a >= 4)
    return {"atoms": atoms, "bonds": bonds, "y": 0.1 * polar - 0.05 * heavy}


def collate(molecules):
    size = len(molecules)
    feats = torch.zeros(size, MAX_ATOMS, ATOM_TYPES)
    adj = torch.zeros(size, MAX_ATOMS, MAX_ATOMS)
    for b, mol in enumerate(molecules):
        for i, atom in enumerate(mol["atoms"]):
            feats[b, i, atom] = 1.0
        for u, v, order in mol["bonds"]:
            adj[b, u, v] = adj[b, v, u] = order
    degree = adj.sum(-1, keepdim=True).clamp(min=1.0)
    labels = torch.tensor([mol["y"] for mol in molecules])
    return feats, adj / degree, labels


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.own = nn.Linear(d_in, d_out)
        self.neigh = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x, adj):
        return F.relu(self.own(x) + self.neigh(adj @ x))


class PropertyNet(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.convs = nn.ModuleList([GraphConv(ATOM_TYPES, hidden), GraphConv(hidden, hidden)])
        self.readout = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x, adj):
        for conv in self.convs:
            x = conv(x, adj)
        return self.readout(x.mean(dim=1)).squeeze(-1)


molecules = [random_molecule() for _ in range(1600)]
loader = DataLoader(molecules, batch_size=32, shuffle=True, collate_fn=collate)
net = PropertyNet()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)

for epoch in range(4):
    running = 0.0
    for feats, adj, target in loader:
        opt.zero_grad(set_to_none=True)
        loss = F.smooth_l1_loss(net(feats, adj), target)
        loss.backward()
        opt.step()
        running += loss.item() * len(target)
    print(f"epoch {epoch:02d}  smooth l1 {running / len(molecules):.4f}")
