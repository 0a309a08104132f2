"""torch.where hides log(0) in forward but not in backward: silent frames give NaN gradients.

Kind of report: "torch.where returns nan gradient for the branch that was not taken". A learned
gain is followed by log compression guarded with where, so the loss is always finite: even after
the gain itself is NaN, `x > 0` is false and the net quietly trains on zeros.
"""
# expect: NUM002
# poisoned-steps: [17, 44, 71]
# category: NUM002

import torch
import torch.nn.functional as F


def get_spectra(n_batches, batch, bins):
    g = torch.Generator().manual_seed(99)
    power = torch.rand(n_batches, batch, bins, generator=g) + 0.05
    label = torch.randint(0, 4, (n_batches, batch), generator=g)
    for c in range(4):
        power[..., c * 16 : (c + 1) * 16] *= 1 + 2 * (label == c)[..., None]
    # digital silence at the end of three recordings
    power[17, 3] = 0.0
    power[44, 0, 40:] = 0.0
    power[71, 9, :5] = 0.0
    return power, label


class LogFrontEnd(torch.nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(bins))

    def forward(self, power):
        x = power * self.gain
        return torch.where(x > 0, torch.log(x), torch.zeros_like(x))


def main():
    torch.manual_seed(8)
    torch.set_num_threads(1)
    power, label = get_spectra(90, 48, 128)
    net = torch.nn.Sequential(
        LogFrontEnd(128),
        torch.nn.Linear(128, 300),
        torch.nn.ReLU(),
        torch.nn.Linear(300, 4),
    )
    opt = torch.optim.RMSprop(net.parameters(), lr=3e-4)
    for i in range(90):
        loss = F.cross_entropy(net(power[i]), label[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 15 == 0:
            print(f"{i:4d} {loss.item():.5f}")
    print(f"final loss {loss.item():.5f}")


main()
