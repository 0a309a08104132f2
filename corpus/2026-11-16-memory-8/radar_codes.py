"""Auto-decoder for rain radar fields.

There is no encoder: every field that arrives gets a code map of its own, which is fitted together with the
shared decoder for a few iterations. The decoder is what we keep in the end.
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

FIELDS = 100
ITERS_PER_FIELD = 3
SIZE = 40
CODE_CH = 64


def radar_stream(n, seed):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:SIZE, :SIZE] / SIZE
    for _ in range(n):
        rain = np.zeros((SIZE, SIZE))
        for _ in range(rng.integers(2, 6)):
            cy, cx = rng.random(2)
            sy, sx = rng.uniform(0.05, 0.2, 2)
            rain += rng.gamma(2.0) * np.exp(-((yy - cy) / sy) ** 2 - ((xx - cx) / sx) ** 2)
        wind = np.stack([np.cos(3 * xx + rng.normal()), np.sin(3 * yy + rng.normal())])
        yield torch.tensor(np.concatenate([rain[None], wind]), dtype=torch.float32)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(CODE_CH, 16, 1), nn.GELU(),
            nn.Conv2d(16, 16, 3, padding=1), nn.GELU(),
            nn.Conv2d(16, 3, 1),
        )

    def forward(self, code):
        return self.net(code[None])[0]


class AutoDecoder:
    def __init__(self, lr_decoder=1e-3, lr_code=3e-2):
        self.decoder = Decoder()
        self.lr_code = lr_code
        self.opt = torch.optim.Adam(self.decoder.parameters(), lr=lr_decoder)

    def new_code(self):
        code = nn.Parameter(torch.randn(CODE_CH, SIZE, SIZE) * 0.05)
        self.opt.add_param_group({"params": [code], "lr": self.lr_code})
        return code

    def fit_field(self, field):
        code = self.new_code()
        for _ in range(ITERS_PER_FIELD):
            out = self.decoder(code)
            rec = F.mse_loss(out, field)
            loss = rec + 1e-4 * code.pow(2).mean()
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
        return rec.item()


def spectrum_gap(decoder, gen):
    """Rough look at what the decoder makes of random codes: share of energy in the high frequencies."""
    with torch.no_grad():
        sample = decoder(torch.randn(CODE_CH, SIZE, SIZE, generator=gen) * 0.05)[0]
        spec = torch.fft.rfft2(sample).abs() ** 2
        return float(spec[SIZE // 4: -SIZE // 4].sum() / spec.sum())


def main():
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(9)
    model = AutoDecoder()
    recent = []
    for i, field in enumerate(radar_stream(FIELDS, seed=17)):
        recent.append(model.fit_field(field))
        recent = recent[-25:]
        if (i + 1) % 20 == 0:
            print(f"field {i + 1:4d}  reconstruction {np.mean(recent):.4f}  "
                  f"high freq share {spectrum_gap(model.decoder, gen):.3f}")
    torch.save(model.decoder.state_dict(), "/dev/null")


if __name__ == "__main__":
    main()
