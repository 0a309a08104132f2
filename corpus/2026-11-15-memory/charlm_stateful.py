"""Character language model over a continuous text stream, state carried across windows."""

import string

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

torch.set_num_threads(1)
torch.manual_seed(17)

ALPHABET = string.ascii_lowercase + " .,"
WORDS = "the river runs past old mills and the miller counts grain while rain falls on slate roofs"


class NormSGD(Optimizer):
    """SGD with momentum on gradients rescaled to unit norm per tensor."""

    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.data
                grad = grad / (grad.norm() + 1e-8)
                buf = self.state[p].setdefault("momentum", torch.zeros_like(p.data))
                buf.mul_(group["momentum"]).add_(grad)
                p.data.add_(buf, alpha=-group["lr"])


class CharModel(nn.Module):
    def __init__(self, vocab, dim=24, hidden=56):
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)
        nn.init.constant_(self.rnn.bias_hh_l0[hidden : 2 * hidden], 3.0)

    def zero_state(self, batch):
        return torch.zeros(1, batch, self.hidden), torch.zeros(1, batch, self.hidden)

    def forward(self, tokens, state):
        features, state = self.rnn(self.embed(tokens), state)
        return self.out(features), state


def build_stream(length, batch):
    words = WORDS.split()
    order = torch.randint(0, len(words), (length // 4,)).tolist()
    text = " ".join(words[i] for i in order)[: length + 1]
    ids = torch.tensor([ALPHABET.index(c) for c in text])
    return ids[: len(ids) // batch * batch].view(batch, -1)


def windows(stream, span):
    pos = 0
    while True:
        if pos + span + 1 > stream.shape[1]:
            pos = 0
        yield stream[:, pos : pos + span], stream[:, pos + 1 : pos + span + 1]
        pos += span


def main():
    stream = build_stream(24000, batch=32)
    model = CharModel(len(ALPHABET))
    optimizer = NormSGD(model.parameters(), lr=0.04)
    criterion = nn.CrossEntropyLoss()
    state = model.zero_state(32)
    total = 0.0

    for it, (inputs, targets) in enumerate(windows(stream, span=6), start=1):
        logits, state = model(inputs, state)
        loss = criterion(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        total += loss.item()
        if it % 12 == 0:
            print(f"window {it}: {total / 12:.3f} nats/char")
            total = 0.0
        if it == 84:
            break


if __name__ == "__main__":
    main()
