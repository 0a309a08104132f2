"""Window features for the activity recogniser."""
import torch


def windows(signal, length, hop):
    return signal.unfold(0, length, hop).transpose(1, 2)


def energy(parts):
    return parts.pow(2).mean(dim=1)


def spectrum(parts, bands):
    power = torch.fft.rfft(parts, dim=1).abs()
    return power[:, 1 : bands + 1].flatten(1)


def describe(signal, length=64, hop=32, bands=6):
    parts = windows(signal, length, hop)
    columns = [
        parts.mean(dim=1),
        parts.std(dim=1),
        energy(parts),
        spectrum(parts, bands),
    return torch.cat(columns, dim=1)
