"""Log-probabilities of an episode span several steps of the critic."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(960, 64)
Y = torch.randn(960, 1)


def make_model(w=256):
    return nn.Sequential(nn.Linear(64, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1))


actor = nn.Linear(4, 2)
critic = nn.Linear(4, 1)
oc = torch.optim.Adam(critic.parameters(), 1e-2)
oa = torch.optim.Adam(actor.parameters(), 1e-2)
for _ep in range(15):
    lp = []
    adv = []
    s = torch.randn(4)
    for _t in range(20):
        d = torch.distributions.Categorical(logits=actor(s))
        a = d.sample()
        lp.append(d.log_prob(a))
        s2 = torch.randn(4)
        delta = float(a) + 0.9 * critic(s2).detach() - critic(s)
        oc.zero_grad()
        delta.pow(2).mean().backward()
        oc.step()
        adv.append(delta.detach())
        s = s2
    oa.zero_grad()
    (-(torch.stack(lp) * torch.cat(adv)).sum()).backward()
    oa.step()
