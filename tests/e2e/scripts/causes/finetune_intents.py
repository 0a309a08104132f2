"""Fine-tune a small pretrained text encoder on intent classification.

The encoder weights come from the export of the pretraining job (tiny_intent_encoder.json).
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn

VOCAB, DIM, CLASSES = 40, 8, 3


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.dense = nn.Linear(DIM, DIM)

    def forward(self, tokens):
        return torch.tanh(self.dense(self.embedding(tokens).mean(dim=1)))


class IntentModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.classifier = nn.Sequential(nn.Dropout(0.1), nn.Linear(DIM, CLASSES))

    def forward(self, tokens):
        return self.classifier(self.encoder(tokens))


def load_pretrained(encoder, path):
    blob = json.loads(Path(path).read_text())
    state = {name: torch.tensor(values) for name, values in blob["state_dict"].items()}
    encoder.load_state_dict(state)
    print(f"loaded {len(state)} tensors from {Path(path).name} (step {blob['step']})")


def make_batch(size, gen):
    """Every intent prefers its own third of the common words; rare words come up now and then."""
    label = torch.randint(0, CLASSES, (size,), generator=gen)
    common = torch.randint(0, 10, (size, 5), generator=gen) + 10 * label.unsqueeze(1)
    rare = torch.randint(30, VOCAB, (size, 5), generator=gen)
    use_rare = torch.rand(size, 5, generator=gen) < 0.02
    return torch.where(use_rare, rare, common), label


def main():
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", default=here / "tiny_intent_encoder.json")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    model = IntentModel()
    load_pretrained(model.encoder, args.encoder)

    optimizer = torch.optim.Adam(
        [
            {"params": model.encoder.parameters(), "lr": args.lr / 5},
            {"params": model.classifier.parameters()},
        ],
        lr=args.lr,
    )
    for step in range(args.steps):
        tokens, label = make_batch(args.batch_size, gen)
        loss = nn.functional.cross_entropy(model(tokens), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            print(f"step {step:3d}/{args.steps} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
