"""Bird counts: one feature row per observation, site facts joined in by site code."""
import random

import torch
from torch.utils.data import Dataset

HABITATS = {"forest": 0, "wetland": 1, "field": 2}


def site_table():
    return {
        f"S{n:02d}": {"habitat": ["forest", "wetland", "field"][n % 3], "altitude": 40.0 * n}
        for n in range(20)
    }


def observations(count, seed):
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        site = f"S{rng.randrange(20):02d}"
        if i == 611:
            site = "s07"
        hour = rng.uniform(4, 20)
        birds = max(0.0, rng.gauss(20 - hour, 3.0))
        rows.append({"site": site, "hour": hour, "birds": birds})
    return rows


class BirdCounts(Dataset):
    def __init__(self, rows, sites):
        self.rows = rows
        self.sites = sites

    def __len__(self):
        return len(self.rows)

    def features(self, row):
        site = self.sites[row["site"]]
        habitat = [0.0] * len(HABITATS)
        habitat[HABITATS[site["habitat"]]] = 1.0
        return habitat + [site["altitude"] / 800, row["hour"] / 24]

    def __getitem__(self, index):
        row = self.rows[index]
        return torch.tensor(self.features(row)), torch.tensor(row["birds"])
