import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(77)

VOCAB, TAGS, LENGTH = 600, 12, 40


def sentences(count):
    words = torch.randint(0, VOCAB, (count, LENGTH))
    previous = words.roll(1, dims=1)
    previous[:, 0] = 0
    tags = (words % 6) + 6 * (previous % 2)
    return TensorDataset(words, tags)


class Tagger(nn.Module):
    def __init__(self, width=80):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.left = nn.Conv1d(width, width, 3, padding=1)
        self.right = nn.Conv1d(width, width, 3, padding=1)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(width, TAGS)

    def forward(self, words):
        x = self.embed(words).transpose(1, 2)
        x = torch.relu(self.left(x))
        x = self.drop(torch.relu(self.right(x)) + x)
        return self.out(self.norm(x.transpose(1, 2)))


def train_epoch(model, loader, optimizer, criterion):
    model.train()
    running = 0.0
    for words, tags in loader:
        optimizer.zero_grad()
        loss = criterion(model(words).flatten(0, 1), tags.flatten())
        loss.backward()
        optimizer.step()
        running += loss.item()
    return running / len(loader)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    guesses, truth = [], []
    for words, tags in loader:
        guesses.append(model(words).argmax(-1))
        truth.append(tags)
    return (torch.cat(guesses) == torch.cat(truth)).float().mean().item()


def main():
    train_loader = DataLoader(sentences(1600), batch_size=32, shuffle=True, drop_last=True)
    valid_loader = DataLoader(sentences(320), batch_size=32)
    model = Tagger()
    fast_model = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    best = 0.0
    for epoch in range(7):
        loss = train_epoch(fast_model, train_loader, optimizer, criterion)
        accuracy = evaluate(fast_model, valid_loader)
        best = max(best, accuracy)
        print(f"epoch {epoch} loss {loss:.4f} valid accuracy {accuracy:.4f} best {best:.4f}")


if __name__ == "__main__":
    main()
