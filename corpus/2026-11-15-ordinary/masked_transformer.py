"""Causal transformer with -inf attention masks, one of them a registered buffer; healthy.

The mask goes into the layers as an argument, padding positions are masked out of the loss.
"""

import torch
import torch.nn as nn

VOCAB, DIM, LENGTH = 30, 48, 20


class CausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(0.02 * torch.randn(LENGTH, DIM))
        layer = nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.out = nn.Linear(DIM, VOCAB)
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        self.register_buffer("causal_mask", mask)

    def forward(self, x, padding_mask):
        h = self.tok(x) + self.pos[: x.size(1)]
        n = x.size(1)
        h = self.encoder(h, mask=self.causal_mask[:n, :n], src_key_padding_mask=padding_mask)
        return self.out(h)


def sample(batch=12):
    start = torch.randint(1, VOCAB, (batch, 1))
    seq = (start + 3 * torch.arange(LENGTH + 1)) % (VOCAB - 1) + 1
    length = torch.randint(6, LENGTH + 1, (batch,))
    valid = torch.arange(LENGTH) < length[:, None]
    padding_mask = torch.zeros(batch, LENGTH).masked_fill(~valid, float("-inf"))
    return seq[:, :-1], seq[:, 1:], valid, padding_mask


def main():
    torch.manual_seed(23)
    torch.set_num_threads(1)
    model = CausalLM()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for it in range(70):
        x, y, valid, padding_mask = sample()
        logits = model(x, padding_mask)
        nll = nn.functional.cross_entropy(logits.transpose(1, 2), y, reduction="none")
        loss = (nll * valid).sum() / valid.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 14 == 0:
            print(f"it {it} loss {loss.item():.4f}")
    print(f"final loss {loss.item():.4f}")


main()
