import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(19)


def real_beats(count, length=64):
    t = torch.linspace(0, 1, length)
    centre = 0.5 + 0.05 * torch.randn(count, 1)
    height = 1.0 + 0.2 * torch.randn(count, 1)
    peak = height * torch.exp(-((t - centre) ** 2) / 0.001)
    wave = 0.3 * torch.exp(-((t - centre - 0.22) ** 2) / 0.006)
    return peak + wave + 0.02 * torch.randn(count, length)


class Generator(nn.Module):
    def __init__(self, latent=24, length=64):
        super().__init__()
        self.latent = latent
        self.net = nn.Sequential(
            nn.Linear(latent, 192),
            nn.ReLU(),
            nn.Linear(192, 192),
            nn.ReLU(),
            nn.Linear(192, length),
        )

    def sample(self, count):
        return self.net(torch.randn(count, self.latent))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 24, 5, stride=2, padding=2),
            nn.LeakyReLU(0.2),
            nn.Conv1d(24, 48, 5, stride=2, padding=2),
            nn.LeakyReLU(0.2),
        )
        self.score = nn.Linear(48 * 16, 1)

    def forward(self, x):
        return self.score(self.conv(x.unsqueeze(1)).flatten(1)).squeeze(1)


class BeatGAN:
    def __init__(self, batch=96, penalty=10.0, critic_rounds=4):
        self.generator, self.critic = Generator(), Critic()
        self.g_opt = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
        self.c_opt = torch.optim.Adam(self.critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
        self.batch, self.penalty, self.critic_rounds = batch, penalty, critic_rounds
        self.curves = {"critic": [], "generator": [], "penalty": []}

    def gradient_penalty(self, real, fake):
        mix = torch.rand(len(real), 1)
        between = (mix * real + (1 - mix) * fake).requires_grad_(True)
        (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        return ((slope.norm(2, dim=1) - 1) ** 2).mean()

    def critic_step(self):
        real = real_beats(self.batch)
        fake = self.generator.sample(self.batch).detach()
        gap = self.critic(fake).mean() - self.critic(real).mean()
        penalty = self.gradient_penalty(real, fake)
        self.c_opt.zero_grad()
        (gap + self.penalty * penalty).backward()
        self.c_opt.step()
        self.curves["critic"].append(gap.item())
        self.curves["penalty"].append(penalty.item())

    def generator_step(self):
        loss = -self.critic(self.generator.sample(self.batch)).mean()
        self.g_opt.zero_grad()
        loss.backward()
        self.g_opt.step()
        self.curves["generator"].append(loss.item())

    def fit(self, rounds):
        for number in range(rounds):
            for _ in range(self.critic_rounds):
                self.critic_step()
            self.generator_step()
            if (number + 1) % 20 == 0:
                distance = -sum(self.curves["critic"][-80:]) / 80
                print(f"round {number + 1} estimated distance {distance:.4f}")


if __name__ == "__main__":
    gan = BeatGAN()
    gan.fit(120)
    with torch.no_grad():
        difference = (gan.generator.sample(512).mean(0) - real_beats(512).mean(0)).abs().mean()
    print(f"difference of mean beats {difference.item():.4f}")
