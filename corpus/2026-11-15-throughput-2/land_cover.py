import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 5
TILE = 28


def make_tiles(count, generator):
    coarse = torch.rand(count, CLASSES, 7, 7, generator=generator)
    masks = F.interpolate(coarse, size=(TILE, TILE), mode="bilinear").argmax(1)
    palette = torch.randn(CLASSES, 4, generator=generator)
    noise = 0.6 * torch.randn(count, 4, TILE, TILE, generator=generator)
    bands = palette[masks].permute(0, 3, 1, 2) + noise
    return bands, masks


def build_model():
    def block(cin, cout):
        return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ELU())

    return nn.Sequential(block(4, 16), block(16, 24), block(24, 16), nn.Conv2d(16, CLASSES, 1))


def make_score_tracker():
    counts = [[0] * CLASSES for _ in range(CLASSES)]

    def update(logits, masks):
        predicted = logits.argmax(dim=1)
        truth, guess = masks.flatten(), predicted.flatten()
        for i in range(truth.numel()):
            counts[truth[i].item()][guess[i].item()] += 1

    def mean_iou():
        table = torch.tensor(counts).float()
        inter = table.diagonal()
        union = table.sum(0) + table.sum(1) - inter
        return (inter / union.clamp(min=1)).mean().item()

    def reset():
        for row in counts:
            row[:] = [0] * CLASSES

    return update, mean_iou, reset


def fit(model, tiles, masks, epochs=4, batch_size=8):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    update, mean_iou, reset = make_score_tracker()
    for epoch in range(epochs):
        reset()
        total = 0.0
        order = torch.randperm(len(tiles))
        for chunk in order.split(batch_size):
            logits = model(tiles[chunk])
            loss = F.cross_entropy(logits, masks[chunk])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            total += loss.detach() * len(chunk)
            update(logits.detach(), masks[chunk])
        scheduler.step()
        print(f"epoch {epoch}: loss {total / len(tiles):.4f}  train mIoU {mean_iou():.3f}")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(21)
    tiles, masks = make_tiles(240, torch.Generator().manual_seed(21))
    fit(build_model(), tiles, masks)


if __name__ == "__main__":
    main()
