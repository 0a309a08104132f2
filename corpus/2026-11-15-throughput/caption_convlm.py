"""Language model over photo captions; batches are padded to their longest caption."""

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch._dynamo.config.recompile_limit = 96
PAD, VOCAB = 0, 500


def write_captions(count):
    gen = torch.Generator().manual_seed(8)
    captions = []
    for _ in range(count):
        length = int(torch.randint(14, 32, (1,), generator=gen))
        start = int(torch.randint(1, VOCAB - 1, (1,), generator=gen))
        steps = torch.randint(1, 4, (length,), generator=gen).cumsum(0)
        captions.append(1 + (start + steps) % (VOCAB - 1))
    return captions


def batches(captions, size, epochs):
    for _ in range(epochs):
        order = torch.randperm(len(captions)).tolist()
        order.sort(key=lambda i: len(captions[i]) + torch.rand(1).item() * 4)
        groups = [order[i : i + size] for i in range(0, len(order), size)]
        for g in torch.randperm(len(groups)).tolist():
            chosen = [captions[i] for i in groups[g]]
            yield nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=PAD)


class CausalConv(nn.Module):
    def __init__(self, width, kernel=4):
        super().__init__()
        self.kernel = kernel
        self.conv = nn.Conv1d(width, 2 * width, kernel)

    def forward(self, x):
        value, gate = self.conv(F.pad(x, (self.kernel - 1, 0))).chunk(2, dim=1)
        return x + value * torch.sigmoid(gate)


class CaptionLM(nn.Module):
    def __init__(self, width=72, depth=1):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width, padding_idx=PAD)
        self.convs = nn.ModuleList(CausalConv(width) for _ in range(depth))
        self.out = nn.Linear(width, VOCAB)

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        for conv in self.convs:
            x = conv(x)
        return self.out(x.transpose(1, 2))


def main():
    torch.manual_seed(8)
    captions = write_captions(1350)
    model = CaptionLM()
    compiled_model = torch.compile(model, backend="aot_eager", dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    window = []
    for step, tokens in enumerate(batches(captions, size=24, epochs=2)):
        logits = compiled_model(tokens[:, :-1])
        loss = F.cross_entropy(
            logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1), ignore_index=PAD
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        window.append(loss.item())
        if step % 20 == 19:
            print(f"step {step + 1} loss {sum(window) / len(window):.3f}")
            window.clear()


if __name__ == "__main__":
    main()
