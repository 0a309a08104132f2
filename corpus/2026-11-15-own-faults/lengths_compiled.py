"""A compiled encoder that is given another length with each batch."""
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.out = nn.Linear(32, 2)

    def forward(self, ids):
        return self.out(self.embed(ids).mean(dim=1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Encoder()
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        ids = torch.randint(0, 100, (16, 8 + step % 20))
        logits = compiled(ids)
        loss = nn.functional.cross_entropy(logits, ids[:, 0] % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


main()
