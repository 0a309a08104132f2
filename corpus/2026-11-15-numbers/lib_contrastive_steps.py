import torch
import torch.nn.functional as F


def info_nce(a, b, temperature):
    a = F.normalize(a, dim=1)
    b = F.normalize(b, dim=1)
    sims = a @ b.t() / temperature
    weights = torch.exp(sims)
    positives = weights.diagonal()
    return -torch.log(positives / weights.sum(dim=1)).mean()


def compute_loss(model, batch):
    view_a, view_b = batch
    return info_nce(model(view_a), model(view_b), model.temperature)


def backpropagate(loss, optimizer):
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    return loss.detach()
