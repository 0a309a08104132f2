from dataclasses import dataclass, field

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(21)


@dataclass
class TrackerState:
    hidden: torch.Tensor
    memory: torch.Tensor
    frame: int = 0
    history: list = field(default_factory=list)


def simulate(objects, frames):
    """Noisy positions of bouncing objects and the true positions one frame later."""
    place = torch.rand(objects, 2)
    speed = 0.08 * torch.randn(objects, 2)
    clean = []
    for _ in range(frames + 1):
        place = place + speed
        hit = (place < 0) | (place > 1)
        speed = torch.where(hit, -speed, speed)
        place = place.clamp(0, 1)
        clean.append(place)
    clean = torch.stack(clean)
    return clean[:-1] + 0.05 * torch.randn(frames, objects, 2), clean[1:]


class Tracker(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(2, 48), nn.ReLU())
        self.cell = nn.LSTMCell(48, hidden)
        self.decode = nn.Linear(hidden, 2)
        self.hidden = hidden

    def start(self, objects):
        zeros = torch.zeros(objects, self.hidden)
        return TrackerState(zeros, zeros.clone())

    def forward(self, observation, state):
        state.hidden, state.memory = self.cell(
            self.encode(observation), (state.hidden, state.memory)
        )
        state.frame += 1
        return observation + self.decode(state.hidden)


def train(frames=4800, objects=48, horizon=20):
    observed, truth = simulate(objects, frames)
    model = Tracker()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    state = model.start(objects)
    pending, pending_terms = 0.0, 0

    while state.frame < frames:
        now = state.frame
        guess = model(observed[now], state)
        pending = pending + (guess - truth[now]).square().sum(-1).mean()
        pending_terms += 1
        if pending_terms < horizon:
            continue

        optimizer.zero_grad()
        (pending / pending_terms).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()

        state.history.append(pending.item() / pending_terms)
        state.hidden = state.hidden.detach()
        state.memory = state.memory.detach()
        pending, pending_terms = 0.0, 0
        if len(state.history) % 30 == 0:
            recent = state.history[-30:]
            print(f"frame {state.frame:5d}  squared error {sum(recent) / len(recent):.5f}")
    return state.history


if __name__ == "__main__":
    errors = train()
    print(f"first {errors[0]:.4f}, last {errors[-1]:.4f}")
