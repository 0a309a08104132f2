"""Two stages on sonar echoes: self-supervised pretraining, then a classifier on the encoder."""
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, length=64, dim=24):
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 9, stride=2, padding=4)
        self.proj = nn.Linear(8 * length // 2, dim)

    def forward(self, x):
        h = torch.relu(self.conv(x.unsqueeze(1)))
        return self.proj(h.flatten(1))


class Autoencoder(nn.Module):
    def __init__(self, length=64):
        super().__init__()
        self.encoder = Encoder(length)
        self.decoder = nn.Linear(24, length)

    def forward(self, x):
        return self.decoder(torch.relu(self.encoder(x)))


class EchoClassifier(nn.Module):
    def __init__(self, classes=2):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(24, classes)

    def forward(self, x):
        return self.head(torch.relu(self.encoder(x)))


def echoes(count):
    labels = torch.randint(2, (count,))
    time = torch.linspace(0, 1, 64)
    pitch = 8.0 + 6.0 * labels.float()
    clean = torch.sin(pitch[:, None] * time * 6.28) * torch.exp(-3 * time)
    return TensorDataset(clean + 0.2 * torch.randn(count, 64), labels)


def pretrain(loader, path, epochs=2):
    model = nn.DataParallel(Autoencoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        for x, _ in loader:
            noisy = x * (torch.rand_like(x) > 0.2)
            loss = nn.functional.mse_loss(model(noisy), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"pretrain {epoch}: reconstruction {loss.item():.4f}")
    weights = {k: v for k, v in model.state_dict().items() if "encoder" in k}
    torch.save(weights, path)


def load_encoder(model, path):
    weights = torch.load(path, map_location="cpu")
    weights = {k.replace("encoder.", "", 1): v for k, v in weights.items()}
    model.encoder.load_state_dict(weights)
    return model


def finetune(loader, path, epochs=3):
    model = load_encoder(EchoClassifier(), path)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        hits = 0
        for x, labels in loader:
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (logits.argmax(1) == labels).sum().item()
        print(f"finetune {epoch}: accuracy {hits / len(loader.dataset):.3f}")


if __name__ == "__main__":
    torch.manual_seed(30)
    data = DataLoader(echoes(640), batch_size=40, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = os.path.join(folder, "encoder.pt")
        pretrain(data, checkpoint)
        finetune(data, checkpoint)
