"""Linear probe on a frozen image encoder, trained on a stream of pictures."""

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(23)
CLASSES = 10
PROTOTYPES = torch.randn(CLASSES, 3, 16, 16)


def picture_stream(batches, size):
    for _ in range(batches):
        labels = torch.randint(0, CLASSES, (size,))
        yield PROTOTYPES[labels] + 1.5 * torch.randn(size, 3, 16, 16), labels


def frozen_encoder():
    encoder = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=4, padding=1),
        nn.ReLU(),
        nn.Flatten(),
    )
    for p in encoder.parameters():
        p.requires_grad_(False)
    return encoder.eval()


encoder = frozen_encoder()
probe = nn.Linear(512, CLASSES)
optimizer = torch.optim.AdamW(probe.parameters(), lr=2e-3, weight_decay=1e-2)

stream_loss = torch.zeros(())
correct = seen = 0
for step, (pictures, labels) in enumerate(picture_stream(batches=300, size=96)):
    with torch.no_grad():
        features = F.normalize(encoder(pictures), dim=1) * 8
    logits = probe(features)
    stream_loss = stream_loss + F.cross_entropy(logits, labels)
    mean_loss = stream_loss / (step + 1)

    optimizer.zero_grad()
    mean_loss.backward(retain_graph=True)
    optimizer.step()

    correct += (logits.argmax(1) == labels).sum().item()
    seen += len(labels)
    if step % 40 == 39:
        print(f"step {step + 1} mean loss {mean_loss.item():.4f} accuracy {correct / seen:.3f}")
        correct = seen = 0
