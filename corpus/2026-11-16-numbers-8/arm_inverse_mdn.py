"""Inverse kinematics of a planar three joint arm with a mixture density network.

The gripper position does not determine the joint angles (elbow up / elbow down), so the
network predicts a mixture over joint space moves.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

LINKS = (0.9, 0.7, 0.35)
N_JOINTS = 3
WAYPOINTS = 12
OUTPUTS = N_JOINTS * WAYPOINTS
COMPONENTS = 8
BATCH = 96
STEPS = 500


def forward_kinematics(q):
    angle = torch.zeros(q.shape[0])
    x = torch.zeros(q.shape[0])
    y = torch.zeros(q.shape[0])
    for length, joint in zip(LINKS, q.unbind(1)):
        angle = angle + joint
        x = x + length * torch.cos(angle)
        y = y + length * torch.sin(angle)
    return torch.stack([x, y, torch.cos(angle), torch.sin(angle)], dim=1)


def sample_moves(n, generator):
    """Start and goal pose of the gripper, and the joint angles along the move."""
    lo = torch.tensor([-1.2, -2.2, -1.0])
    hi = torch.tensor([1.2, 2.2, 1.0])
    start, goal = (lo + (hi - lo) * torch.rand(2, n, N_JOINTS, generator=generator)).unbind(0)
    t = torch.linspace(0.0, 1.0, WAYPOINTS).view(1, -1, 1)
    blend = 10 * t ** 3 - 15 * t ** 4 + 6 * t ** 5
    path = start.unsqueeze(1) + blend * (goal - start).unsqueeze(1)
    path = path + 0.01 * torch.randn(path.shape, generator=generator)
    poses = torch.cat([forward_kinematics(start), forward_kinematics(goal)], dim=1)
    return poses, path.flatten(1)


class MixtureHead(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.logits = nn.Linear(width, COMPONENTS)
        self.mean = nn.Linear(width, COMPONENTS * OUTPUTS)
        self.scale = nn.Linear(width, COMPONENTS * OUTPUTS)

    def forward(self, h):
        mix = F.softmax(self.logits(h), dim=-1)
        mean = self.mean(h).view(-1, COMPONENTS, OUTPUTS)
        scale = F.softplus(self.scale(h)).view(-1, COMPONENTS, OUTPUTS) + 1e-3
        return mix, mean, scale


class InverseArm(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(8, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(),
        )
        self.head = MixtureHead(width)

    def forward(self, pose):
        return self.head(self.body(pose))


def mixture_nll(mix, mean, scale, q):
    z = (q.unsqueeze(1) - mean) / scale
    pdf = torch.exp(-0.5 * z ** 2) / (scale * math.sqrt(2 * math.pi))
    joint = pdf.prod(dim=-1)
    likelihood = (mix * joint).sum(dim=-1)
    return -torch.log(likelihood).mean()


def main():
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(11)
    model = InverseArm()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    history = []
    for step in range(STEPS):
        pose, q = sample_moves(BATCH, gen)
        mix, mean, scale = model(pose)
        loss = mixture_nll(mix, mean, scale, q)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        if (step + 1) % 50 == 0:
            recent = history[-50:]
            print(f"step {step + 1:4d}  nll {sum(recent) / len(recent):8.4f}")

    model.eval()
    with torch.no_grad():
        pose, q = sample_moves(1000, gen)
        mix, mean, _ = model(pose)
        best = mean[torch.arange(len(q)), mix.argmax(dim=1)]
        reached = forward_kinematics(best[:, -N_JOINTS:])
        error = (reached[:, :2] - pose[:, 4:6]).norm(dim=1).mean().item()
    print(f"mean gripper error {error:.4f}")


if __name__ == "__main__":
    main()
