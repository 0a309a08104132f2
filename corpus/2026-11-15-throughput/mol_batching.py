"""Turns lists of molecules into padded batches."""

import torch

FAR = 12


def hop_counts(n_atoms, bonds):
    dist = [[0 if i == j else FAR for j in range(n_atoms)] for i in range(n_atoms)]
    for a, b in bonds:
        dist[a][b] = dist[b][a] = 1
    for k in range(n_atoms):
        for i in range(n_atoms):
            for j in range(n_atoms):
                if dist[i][k] + dist[k][j] < dist[i][j]:
                    dist[i][j] = dist[i][k] + dist[k][j]
    return dist


def collate_molecules(molecules):
    size = max(len(m["atoms"]) for m in molecules)
    atoms = torch.zeros(len(molecules), size, dtype=torch.long)
    hops = torch.full((len(molecules), size, size), FAR, dtype=torch.long)
    valid = torch.zeros(len(molecules), size)
    for row, mol in enumerate(molecules):
        n = len(mol["atoms"])
        atoms[row, :n] = torch.tensor(mol["atoms"])
        hops[row, :n, :n] = torch.tensor(hop_counts(n, mol["bonds"]))
        valid[row, :n] = 1.0
    target = torch.tensor([m["target"] for m in molecules])
    return {"atoms": atoms, "hops": hops, "valid": valid, "target": target}
