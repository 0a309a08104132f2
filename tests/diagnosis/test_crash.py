"""Crashes that people meet daily, really provoked: the line, the values, the cause and the fix.

Each script raises with the torch that is installed, so that other words of another version of
torch are noticed.
"""

# ruff: noqa: E501, a table of scripts

from __future__ import annotations

import linecache
import os
import resource
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.detectors._crashes import Crash, explain, root
from holdfast.diagnosis.crash import exception, surroundings, worker_error
from holdfast.diagnosis.crash.traceback_frames import hide_ours
from holdfast.run.host_memory import MemoryLimit
from tests.crashing import crash


def number_of(found: Crash, text: str) -> int:
    """The last line of the script with this text."""
    lines = linecache.getlines(found.place.file)
    return max(i for i, line in enumerate(lines, 1) if text in line)


# Script, text of the line to name, and words of the cause or of the advice.
CASES = {
    "linear": ("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(
                    nn.Linear(100, 64),
                    nn.ReLU(),
                )
            def forward(self, x):
                x = x.flatten(1)
                return self.net(x)
        Net()(torch.zeros(4, 3, 8, 8))
        """, "return self.net(x)",
        "net.0 (Linear) expects 100 features and gets 192|nn.Linear(192, …) (train.py:11: "
        "nn.Linear(100, 64))|x = x.flatten(1)"),
    "linear without flatten": (
        "m = nn.Linear(48, 2)\nm(torch.zeros(2, 3, 4, 4))", "m(torch.zeros", "flatten it first"),
    "linear transposed": (
        "m = nn.Linear(5, 2)\nx = torch.zeros(2, 5, 7)\nm(x)", "m(x)", "transpose(1, -1)"),
    "matmul": (
        "a, b = torch.zeros(2, 3), torch.zeros(4, 3)\na @ b", "a @ b",
        "a (2, 3) times b (4, 3)|b.transpose"),
    "bmm": (
        "a, b = torch.zeros(2, 3, 4), torch.zeros(2, 5, 6)\ntorch.bmm(a, b)", "bmm", "do not fit"),
    "residual": (
        "x = torch.zeros(2, 8, 4)\ny = torch.zeros(2, 6, 4)\nx + y", "x + y",
        "x (2, 8, 4) and y (2, 6, 4)|project"),
    "mask": (
        "s = torch.zeros(2, 10, 12)\nm = torch.ones(10, 10).bool()\ns.masked_fill(m, 0)", "s.masked",
        "s (2, 10, 12) and m (10, 10)|train.py:7"),
    "smaller last batch": (
        "h = torch.zeros(16, 4)\nx = torch.zeros(8, 4)\nx + h", "x + h", "drop_last=True"),
    "cat": ("a = torch.zeros(2, 3)\ntorch.cat([a, torch.zeros(2, 4)])", "cat", "cat of tensors"),
    "cat of dimensions": (
        "torch.cat([torch.zeros(2, 3), torch.zeros(2)])", "cat", "different numbers of dimensions"),
    "stack": ("torch.stack([torch.zeros(2), torch.zeros(3)])", "stack", "pad_sequence"),
    "channels": (
        "c = nn.Conv2d(3, 8, 3)\nc(torch.zeros(2, 4, 9, 9))", "c(torch",
        "expects 3 channels and gets 4|in_channels=4"),
    "channels last": (
        "c = nn.Conv2d(3, 8, 3)\nc(torch.zeros(2, 9, 9, 3))", "c(torch", "permute(0, 3, 1, 2)"),
    "grey": ("c = nn.Conv2d(3, 8, 3)\nc(torch.zeros(2, 1, 9, 9))", "c(torch", "grey images"),
    "no channels": ("nn.Conv2d(3, 8, 3)(torch.zeros(2, 9))", "Conv2d", "unsqueeze"),
    "norm dimensions": ("nn.BatchNorm2d(8)(torch.zeros(2, 8))", "BatchNorm2d", "2 dimensions"),
    "interpolate": ("F.interpolate(torch.zeros(3, 4), scale_factor=2)", "interpolate", "unsqueeze"),
    "small for a kernel": ("nn.Conv2d(3, 8, 5)(torch.zeros(2, 3, 2, 2))", "Conv2d", "2 x 2"),
    "small for a pool": ("nn.MaxPool2d(2)(torch.zeros(2, 3, 1, 1))", "MaxPool", "smaller than"),
    "view": ("x = torch.zeros(2, 9)\nx.view(-1, 8)", "x.view", "x (2, 9) viewed|9 values"),
    "view of a fixed batch": ("x = torch.zeros(2, 9)\nx.view(4, 9)", "x.view", "put -1"),
    "not contiguous": (
        "x = torch.zeros(2, 9).t()\nx.view(18)", "x.view", "not contiguous|reshape|train.py:6"),
    "recurrent input": (
        "r = nn.LSTM(4, 8)\nr(torch.zeros(2, 3, 5))", "r(torch", "expects 4 features and gets 5"),
    "recurrent state": (
        "r = nn.GRU(4, 8)\nr(torch.zeros(2, 3, 4), torch.zeros(1, 2, 8))", "r(torch",
        "made for 2 samples and this batch has 3"),
    "layer norm": ("n = nn.LayerNorm(8)\nn(torch.zeros(2, 9))", "n(torch", "nn.LayerNorm(9)"),
    "batch norm": ("n = nn.BatchNorm1d(8)\nn(torch.zeros(2, 9))", "n(torch", "num_features=9"),
    "attention": (
        "a = nn.MultiheadAttention(8, 2)\nx = torch.zeros(2, 3, 4)\na(x, x, x)", "a(x", "embed_dim=4"),
    "heads": ("nn.MultiheadAttention(8, 3)", "Multihead", "divides the number of features"),
    "batch that grew": ("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(16, 5)
            def forward(self, x):
                return self.fc(x.view(-1, 16))
        net = Net()
        F.cross_entropy(net(torch.zeros(4, 64)), torch.zeros(4, dtype=torch.long))
        """, "F.cross_entropy", "16 predictions for 4 targets|x.view(-1, 16)"),
    "bce shapes": (
        "F.binary_cross_entropy_with_logits(torch.zeros(4, 1), torch.zeros(4))", "binary",
        "squeeze(1)"),
    "classes last": (
        "F.cross_entropy(torch.zeros(4, 7, 5), torch.zeros(4, 7).long())", "cross", "transpose(1, 2)"),
    "column of labels": (
        "F.cross_entropy(torch.zeros(4, 5), torch.zeros(4, 1).long())", "cross", "squeeze(1)"),
    "dimension": ("x = torch.zeros(3)\nx.sum(2)", "x.sum", "x is (3,)"),
    "expand": ("torch.zeros(2, 3).expand(4, 3)", "expand", "do not fit"),
    "mask of an index": (
        "x = torch.zeros(3, 4)\nx[torch.zeros(4, 3).bool()]", "x[", "do not fit|x (3, 4)"),
    "einsum": ("torch.einsum('ij,jk->ik', torch.zeros(2, 3), torch.zeros(4, 5))", "einsum", "do not"),
    "permute": ("torch.zeros(3, 4).permute(0, 2, 1)", "permute", "every dimension"),
    # labels and tokens
    "label": (
        "y = torch.tensor([0, 1, 7, 2])\nF.cross_entropy(torch.zeros(4, 5), y)", "cross",
        "label 7, allowed are 0 to 4|8 outputs"),
    "labels from 1": (
        "F.cross_entropy(torch.zeros(3, 3), torch.tensor([1, 2, 3]))", "cross", "subtract 1"),
    "label below 0": (
        "F.cross_entropy(torch.zeros(2, 3), torch.tensor([1, -1]))", "cross", "ignore_index=-1"),
    "one_hot": ("F.one_hot(torch.tensor([4]), 3)", "one_hot", "label"),
    "token": (
        "e = nn.Embedding(5, 3)\ne(torch.tensor([[1, 5]]))", "e(torch",
        "index 5, e (Embedding) has rows 0 to 4|nn.Embedding(6, …)|train.py:6"),
    "position": ("e = nn.Embedding(5, 3)\np = torch.arange(9)\ne(p)", "e(p)", "sequence is longer"),
    "gather": (
        "i = torch.tensor([[4]])\ntorch.zeros(3, 4).gather(1, i)", "gather", "index 4 of a dimension"),
    "list index": ("items = [1, 2]\nitems[5]", "items[5]", "list index out of range|items"),
    # data
    "unequal samples": (
        "for x in DataLoader([torch.zeros(3)] * 2 + [torch.zeros(4)], 3):\n    pass", "for x",
        "2 x (3,), 1 x (4,), sample 2 is the odd one|pad_sequence"),
    "unequal lists": ("list(DataLoader([[1, 2], [1]], 2))", "list(", "unequal size"),
    "None": ("list(DataLoader([torch.zeros(3), None], 2))", "list(", "None for sample 1"),
    "object": ("list(DataLoader([object()], 1))", "list(", "collate_fn"),
    "keys of samples": ("list(DataLoader([{'a': 1}, {'b': 1}], 2))", "list(", "has no 'a'|same keys"),
    "one sample": (
        "n = nn.BatchNorm1d(4)\nfor (x,) in DataLoader(TensorDataset(torch.zeros(5, 4)), 4):\n    n(x)",
        "    n(x)", "batch of one sample|drop_last=True"),
    "empty dataset": ("DataLoader([], 2, shuffle=True)", "DataLoader([]", "0 samples"),
    "ragged": ("torch.tensor([[1, 2], [3]])", "tensor(", "different lengths"),
    "texts": ("torch.tensor(['a'])", "tensor(", "not numeric"),
    "flipped": ("import numpy\ntorch.from_numpy(numpy.zeros(3)[::-1])", "from_numpy", "copy()"),
    "text for a number": ("float('n/a')", "float(", "'n/a' is no number"),
    "ctc": (
        "F.ctc_loss(torch.zeros(5, 2, 4).log_softmax(2), torch.ones(2, 6).long(), "
        "torch.tensor([6, 5]), torch.tensor([6, 3]))", "ctc", "a length of 6 where 5"),
    "packed": (
        "nn.utils.rnn.pack_padded_sequence(torch.zeros(3, 2, 4), torch.tensor([2, 3]))", "pack",
        "enforce_sorted=False"),
    "unpacked loader": (
        "for x, y, z in DataLoader([(1, 2)], 1):\n    pass", "for x", "3 names for 2|__getitem__"),
    "unpacked held loader": (
        "d = DataLoader([(1, 2)], 1)\nfor i, (x, y, z) in enumerate(d):\n    pass", "for i",
        "3 names for 2|__getitem__"),
    "unpacked pairs": (
        "for x, y in [(1, 2, 3)]:\n    pass", "for x", "what the loop goes over gives"),
    "unpacked": ("t = (1, 2, 3)\na, b = t", "a, b", "2 names"),
    "random_split": ("torch.utils.data.random_split([1, 2, 3], [2, 2])", "split", "add up"),
    # autograd
    "in place": ("""
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
            def forward(self, x):
                h = torch.sigmoid(self.fc(x))
                h *= 0.5
                return h
        net = Block()
        net(torch.zeros(2, 4)).sum().backward()
        """, ".backward()", "overwritten in place at train.py:13|h = h * 0.5"),
    "step before backward": ("""
        m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        o = torch.optim.SGD(m.parameters(), 1.0)
        for _ in range(1):
            one, two = m(torch.ones(2, 4)).sum(), m(torch.ones(2, 4)).sum()
            one.backward()
            o.step()
            two.backward()
        """, "two.backward()", "changed between forward and backward|train.py:12"),
    "step of one of two": ("""
        class Agent:
            def __init__(self):
                self.actor, self.critic = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
                self.opt_a = torch.optim.SGD(self.actor.parameters(), 1.0)
                self.opt_c = torch.optim.Adam(self.critic.parameters())
            def update(self, x):
                value = self.critic(self.actor(x)).mean()
                value_loss = (value - 1) ** 2
                policy_loss = -value
                value_loss.backward(retain_graph=True)
                self.opt_c.step()
                policy_loss.backward()
                self.opt_a.step()
        agent = Agent()
        actor, critic = agent.actor, agent.critic
        agent.update(torch.ones(2, 4))
        """, "policy_loss.backward()", "weight self.critic.0.weight or self.critic.1.weight "
        "changed|self.opt_c.step() at train.py:17|policy_loss was computed before|detach()"),
    "derivative without gradients": ("""
        class Force:
            def __init__(self, net):
                self.net = net
            def at(self, x):
                x = x.requires_grad_()
                return torch.autograd.grad(self.net(x).sum(), x)[0]
        @torch.no_grad()
        def validate(force):
            return force.at(torch.ones(2, 3)).norm()
        validate(Force(nn.Linear(3, 1)))
        """, "torch.autograd.grad", "gradients are off since train.py:13|@torch.no_grad()|enable_grad"),
    "leaf": ("w = torch.zeros(3, requires_grad=True)\nw += 1", "w += 1", "no_grad"),
    "carried state": ("""
        rnn = nn.GRUCell(4, 4)
        hidden = torch.zeros(2, 4)
        for _ in range(3):
            hidden = rnn(torch.zeros(2, 4), hidden)
            loss = hidden.sum()
            loss.backward()
        """, "loss.backward()", "hidden carries the graph|train.py:10|hidden.detach()"),
    "a step in a function": ("""
        class Mean:
            value = torch.zeros(4)
            def update(self, x):
                self.value = 0.9 * self.value + 0.1 * x.mean(0)
        net, mean = nn.Linear(4, 4), Mean()
        def step(x):
            feats = net(x)
            loss = (feats - mean.value).square().sum()
            loss.backward()
            mean.update(feats)
        for _ in range(3):
            step(torch.ones(2, 4))
        """, "loss.backward()", "earlier step is still part of this loss"),
    "state of a module": ("""
        class Memory(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.GRUCell(4, 4)
                self.state = torch.zeros(2, 4)
            def forward(self, x):
                self.state = self.cell(x, self.state)
                return self.state
        net = Memory()
        for _ in range(3):
            net(torch.zeros(2, 4)).sum().backward()
        """, ".backward()", "self.state carries the graph|train.py:13"),
    "summed loss": ("""
        m = nn.Linear(4, 1)
        total = 0
        for _ in range(3):
            total += (m(torch.ones(2, 4)) ** 2).mean()
            total.backward()
        """, "total.backward()", "total is summed up"),
    "loss before the loop": ("""
        m = nn.Linear(4, 1)
        loss = (m(torch.ones(2, 4)) ** 2).mean()
        for _ in range(3):
            loss.backward()
        """, "loss.backward()", "computed once|train.py:8"),
    "two losses": ("""
        m = nn.Linear(4, 4)
        for _ in range(3):
            h = torch.exp(m(torch.ones(2, 4)))
            a, b = (h * 2).sum(), (h * 3).sum()
            a.backward()
            b.backward()
        """, "b.backward()", "two losses share"),
    "two losses, a step between": ("""
        net, head = nn.Linear(4, 4), nn.Linear(4, 1)
        one, two = (torch.optim.SGD(m.parameters(), 1.0) for m in (head, net))
        for _ in range(3):
            h = torch.exp(net(torch.ones(2, 4)))
            a = (head(h) ** 2).sum()
            a.backward()
            one.step()
            b = (h * 3).sum()
            b.backward()
            two.step()
        """, "b.backward()", "two losses share|one.step() between them changed weights: detach()"),
    "argmax": ("""
        m = nn.Linear(4, 3)
        for _ in range(2):
            out = m(torch.ones(2, 4))
            guess = out.argmax(1).float()
            loss = guess.mean()
            loss.backward()
        """, "loss.backward()", "cut at train.py:10|argmax has no gradient"),
    "frozen": (
        "m = nn.Linear(4, 3).requires_grad_(False)\nloss = m(torch.ones(2, 4)).mean()\n"
        "loss.backward()", "loss.backward()", "every parameter is frozen"),
    "several losses": (
        "m = nn.Linear(4, 3)\nloss = m(torch.ones(2, 4))\nloss.backward()", "loss.backward()",
        "loss (2, 3)|mean()"),
    "numpy": (
        "x = torch.zeros(3, requires_grad=True)\nx.numpy()", "x.numpy", "x.detach().cpu().numpy()"),
    "inference": ("""
        with torch.inference_mode():
            a = nn.Linear(2, 2)(torch.zeros(1, 2))
        (a * torch.zeros(2, requires_grad=True)).sum().backward()
        """, "(a *", "no_grad"),
    "unused": (
        "a, b = (torch.zeros(3, requires_grad=True) for _ in 'ab')\n"
        "torch.autograd.grad(a.sum(), [b])", "grad(", "allow_unused"),
    # devices and dtypes
    "devices": (
        "m = nn.Linear(3, 2, device='meta')\nx = torch.zeros(1, 3)\nm(x)", "m(x)",
        "two devices|x on cpu|x.to(device)"),
    "constant of a module": ("""
        class Attention(nn.Module):
            def __init__(self, length, device):
                super().__init__()
                self.qk = nn.Linear(4, 4, device=device)
                self.mask = torch.zeros(length, length).bool()
            def scores(self, x):
                h = self.qk(x)
                return (h @ h.transpose(-1, -2)).masked_fill(self.mask, -9)
        Attention(5, "meta").scores(torch.zeros(2, 5, 4, device="meta"))
        """, "masked_fill(self.mask", "self.mask on cpu|plain attribute|"
        "self.register_buffer('mask', torch.zeros(length, length).bool()), at train.py:11"),
    "recurrent float64": ("""
        import numpy as np
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.GRU(4, 8)
            def forward(self, window):
                return self.rnn(window)[0]
        def predict(net, series):
            net(series)
        history = torch.as_tensor(np.ones((3, 2, 4)))
        predict(Net(), history)
        """, "self.rnn(window)", "window is float64, the weights are float32|window.float()|"
        "train.py:16: history = torch"),
    "bfloat16 array": (
        "import numpy as np\nx = torch.zeros(2, dtype=torch.bfloat16)\nnp.asarray(x)", "np.asarray",
        "numpy has no bfloat16|.float() before .numpy()"),
    "float64": (
        "import numpy\nx = torch.from_numpy(numpy.zeros((1, 3)))\nm = nn.Linear(3, 2)\nm(x)", "m(x)",
        "x is float64, the weights are float32|x.float()|train.py:7"),
    "bytes": (
        "x = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)\nnn.Conv2d(3, 2, 1)(x)", "Conv2d",
        "uint8|.float() / 255"),
    "float labels": ("F.cross_entropy(torch.zeros(4, 5), torch.zeros(4))", "cross", "target.long()"),
    "float tokens": ("nn.Embedding(5, 3)(torch.zeros(2))", "Embedding", "int64"),
    "whole targets": (
        "F.binary_cross_entropy_with_logits(torch.zeros(4), torch.zeros(4).long())", "binary",
        "target.float()"),
    "mean of whole numbers": ("torch.zeros(3).long().mean()", "mean", "x.float()"),
    "no GPU": ("torch.zeros(3).to('cuda')", "to('cuda')", "torch.cuda.is_available()"),
    "device to numpy": ("torch.zeros(3, device='meta').numpy()", "numpy", "cpu()"),
    # states, optimizers, schedules
    "prefix": ("""
        m = nn.Linear(3, 2)
        m.load_state_dict({f"module.{k}": v for k, v in m.state_dict().items()})
        """, "load_state_dict", "prefix 'module.'|removeprefix"),
    "compiled prefix": ("""
        m = nn.Linear(3, 2)
        m.load_state_dict({f"_orig_mod.{k}": v for k, v in m.state_dict().items()})
        """, "load_state_dict", "_orig_mod"),
    "whole checkpoint": (
        "m = nn.Linear(3, 2)\nm.load_state_dict({'model': m.state_dict(), 'epoch': 1})", "load_state",
        "checkpoint['model']"),
    "sizes of a state": (
        "m = nn.Linear(3, 2)\nm.load_state_dict({'weight': torch.zeros(2, 4), 'bias': m.bias})",
        "load_state", "weight is [2, 4] in the checkpoint and [2, 3]"),
    "keys of a state": (
        "m = nn.Linear(3, 2)\nm.load_state_dict({'weight': m.weight})", "load_state", "1 missing"),
    "state of an optimizer": ("""
        a, b = (torch.optim.Adam(nn.Linear(3, 2, bias=x).parameters()) for x in (True, False))
        a.load_state_dict(b.state_dict())
        """, "a.load", "other parameters"),
    "schedule": ("""
        o = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
        s = torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=2)
        for _ in range(5):
            o.step()
            s.step()
        """, "s.step()", "has 2 steps"),
    "used up filter": (
        "f = filter(torch.is_tensor, nn.Linear(2, 2).parameters())\nlist(f)\ntorch.optim.SGD(f, 0.1)", "SGD(f",
        "f is a filter and was used up|train.py:6"),
    "used up": (
        "p = nn.Linear(1, 1).parameters()\nn = sum(1 for _ in p)\ntorch.optim.SGD(p, 0.1)", "SGD",
        "used up"),
    "plain list": ("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = [nn.Linear(4, 4)]
        net = Net()
        torch.optim.Adam(net.parameters())
        """, "Adam", "self.layers is a plain list|ModuleList"),
    "no leaf": ("torch.optim.SGD([torch.zeros(3, requires_grad=True) * 2], 0.1)", "SGD", "Parameter("),
    "rate as text": ("torch.optim.SGD(nn.Linear(1, 1).parameters(), '1e-3')", "SGD", "float("),
    "plateau": ("""
        o = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
        torch.optim.lr_scheduler.ReduceLROnPlateau(o).step()
        """, ".step()", "val_loss"),
    "unscaled twice": ("""
        s = torch.amp.GradScaler("cpu")
        m = nn.Linear(1, 1)
        o = torch.optim.SGD(m.parameters(), 0.1)
        s.scale(m(torch.zeros(1, 1)).sum()).backward()
        s.unscale_(o)
        s.unscale_(o)
        """, "s.unscale_", "once per step"),
    # files
    "truncated": ("""
        import pathlib
        p = pathlib.Path(__file__).with_suffix(".pt")
        torch.save({"a": torch.zeros(1000)}, p)
        p.write_bytes(p.read_bytes()[:1000])
        torch.load(p)
        """, "torch.load", "train.pt is truncated or damaged|no other file of that folder"),
    "an earlier one": ("""
        import os, pathlib
        folder = pathlib.Path(__file__).parent
        for epoch in range(4):
            torch.save({"a": torch.zeros(1000)}, folder / f"epoch{epoch}.pt")
            os.utime(folder / f"epoch{epoch}.pt", (epoch, epoch))
        for epoch in (2, 3):
            p = folder / f"epoch{epoch}.pt"
            p.write_bytes(p.read_bytes()[:1000])
        torch.load(p)
        """, "torch.load", "epoch3.pt is truncated|epoch1.pt is the newest of that folder that can be"),
    "empty file": ("""
        import pathlib
        p = pathlib.Path(__file__).with_suffix(".pt")
        p.write_bytes(b"")
        torch.load(p)
        """, "torch.load", "empty"),
    "no checkpoint": ("""
        import pathlib
        p = pathlib.Path(__file__).with_suffix(".pt")
        p.write_bytes(b"<html>")
        torch.load(p)
        """, "torch.load", "no checkpoint of torch"),
    "object in a checkpoint": ("""
        import io
        class Args: pass
        Args.__module__, b = "__main__", io.BytesIO()
        import sys; sys.modules["__main__"].Args = Args
        torch.save({"a": Args()}, b)
        b.seek(0)
        torch.load(b)
        """, "torch.load", "holds a Args|weights_only=False"),
    "missing file": ("""
        import os
        here = os.path.dirname(__file__)
        open(os.path.join(here, "tran.py"))
        """, "open(", "did you mean train.py?"),
    "missing folder": ("open('/nowhere/at/all.csv')", "open(", "/nowhere/at does not exist"),
    "permission": ("raise PermissionError(13, 'Permission denied', '/etc/x')", "raise", "x may not be"),
    "no space": ("raise OSError(28, 'No space left on device')", "raise", "no space|a quota"),
    "helper without a return": ("""
        def pick(n):
            if n > 3: return n, n
        a, b = pick(1)
        """, "a, b = pick", "pick() has returned None|through pick() without a return"),
    "parameter without a gradient": ("""
        p = torch.nn.Parameter(torch.ones(3))
        torch.nan_to_num(p.grad)
        """, "nan_to_num", "p.grad is None|if p.grad is None: continue"),
    "rate as text of a later epoch": ("""
        w = torch.ones(3, requires_grad=True)
        o = torch.optim.SGD([w], lr=0.1, foreach=False)
        o.param_groups[0]["lr"] = "1e-3"
        w.sum().backward()
        o.step()
        """, "o.step()", "a setting of the optimizer is a text|1.0e-4"),
    "json": ("import json\njson.loads('{')", "json.loads", "cannot be decoded"),
    # workers and ranks
    "local class": ("""
        def main():
            class D(Dataset):
                def __len__(self): return 8
                def __getitem__(self, i): return 0
            import pickle
            pickle.dumps(D())
        main()
        """, "pickle.dumps", "D cannot be sent"),
    "killed worker": (
        "raise RuntimeError('DataLoader worker (pid(s) 12, 13) exited unexpectedly')", "raise",
        "by a signal or by itself is not known|num_workers=0"),
    "shared memory": (
        "raise RuntimeError('DataLoader worker (pid 12) is killed by signal: Bus error. It is')",
        "raise", "a bus error (SIGBUS)|shm-size"),
    "device-side assert": (
        "raise RuntimeError('CUDA error: device-side assert triggered')", "raise",
        "CUDA_LAUNCH_BLOCKING=1"),
    "two GPUs": (
        "raise RuntimeError('Expected all tensors to be on the same device, but found at least two "
        "devices, cuda:0 and cpu!')", "raise", "cuda:0 and cpu"),
    "no process group": ("torch.distributed.all_reduce(torch.zeros(1))", "all_reduce", "torchrun"),
    # settings
    "prefetch": ("DataLoader([1], prefetch_factor=2)", "DataLoader([1]", "num_workers above 0"),
    "batch of 0": ("DataLoader([1], batch_size=0)", "DataLoader([1]", "division"),
    "scale": (
        "torch.distributions.Normal(torch.zeros(2), -torch.ones(2), validate_args=True)", "Normal", "softplus"),
    "multinomial": ("torch.multinomial(torch.tensor([float('nan')]), 1)", "multinomial", "NaN"),
    "BCE range": (
        "F.binary_cross_entropy(torch.full((4,), 1.5), torch.zeros(4))", "binary", "WithLogits"),
    "item": ("torch.zeros(3).item()", "item()", "mean().item()"),
    "condition": ("if torch.zeros(3) > 0: pass", "if torch", ".all() or .any()"),
    # python
    "name": ("learning_rate = 1\nprint(learnig_rate)", "print(", "did you mean learning_rate?"),
    "attribute": ("nn.Linear(1, 1).weigth", "weigth", "did you mean weight?"),
    "super": ("""
        class Net(nn.Module):
            def __init__(self):
                self.fc = nn.Linear(1, 1)
        Net()
        """, "self.fc", "super().__init__()"),
    "None from forward": ("""
        class Net(nn.Module):
            def forward(self, x):
                x = x + 1
        net = Net()
        out = net(torch.zeros(2))
        out.mean()
        """, "out.mean()", "out is None|train.py:11"),
    "tuple for a tensor": (
        "out = nn.LSTM(2, 2)(torch.zeros(1, 1, 2))\nnn.Linear(2, 2)(out)", "Linear(2, 2)(out)",
        "a tuple where a tensor is expected|train.py:6"),
    "arguments": ("nn.Linear(1, 1)(torch.zeros(1, 1), 2)", "nn.Linear", "other arguments"),
    "missing argument": ("nn.Linear(1, 1)()", "nn.Linear", "without 'input'"),
    "key": ("c = {'batch_size': 4}\nc['batchsize']", "c['batchsize']", "did you mean 'batch_size'?"),
    "key of another type": ("c = {1: 4}\nc['1']", "c['1']", "another type"),
    "division": ("done, total = 3, 0\ndone / total", "done / total", "total is 0"),
    "operands": ("None + 1", "None + 1", "one of the two is None"),
    "call of a value": ("x = 3\nx(1)", "x(1)", "a int is used as if it were callable"),
    "attribute of another name": ("""
        class Fit:
            def __init__(self):
                self.epoch_count, self.history_of_loss, self.lr = 3, [], 0.1
            def plot(self):
                return self.loss_curve
        Fit().plot()
        """, "return self.loss_curve", "Fit has no loss_curve|history_of_loss (list)"),
    "key in another case": ("table = {'Cat': 0, 'Dog': 1}\ntable['CAT']", "table[", "did you mean 'Cat'?"),
    "file too large": ("raise OSError(27, 'File too large')", "raise", "larger than the limit|ulimit -f"),
    "module": ("import sklearn_of_nowhere", "import sk", "pip install sklearn_of_nowhere"),
    "no forward": ("nn.ModuleList([nn.Linear(1, 1)])(1)", "ModuleList", "has no forward"),
    "assertion": ("x = torch.zeros(2, 3)\nassert x.shape[1] == 4", "assert x", "x (2, 3)"),
    "recursion": ("def f(): return f()\nf()", "def f", "without end"),
    "before assignment": (
        "def f():\n    for x in []:\n        y = 1\n    return y\nf()", "return y", "y is read before"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_line_the_cause_and_the_fix(tmp_path: Path, case: str):
    script, line, words = CASES[case]
    found, cause = crash(tmp_path, script)
    reported = f"{cause.headline} {cause.advice}"
    assert cause.headline, f"no rule knows {found.type}: {found.message}"
    for word in words.split("|"):
        assert word in reported, reported
    assert (found.place.file, found.place.line) == (
        str(tmp_path / "train.py"),
        number_of(found, line),
    )
    assert 10 < len(cause.advice) < 400 and "\n" not in reported


def test_an_unknown_error_still_names_line_and_values(tmp_path: Path):
    found, cause = crash(tmp_path, "x = torch.zeros(2, 3)\nraise ValueError(f'odd {x.shape}')")
    assert cause.headline == "" and "train.py:7" in cause.advice
    assert [v.name for v in found.variables] == ["x"]


def test_values_are_redacted(tmp_path: Path):
    found, _ = crash(
        tmp_path,
        """
        def connect(api_key, url):
            size = 3
            raise ValueError(f"cannot reach {url} with hf_abcdefghijklmnopqrst")
        connect("very secret", "https://me:pass@host/x")
        """,
    )
    assert "hf_abcdefghijklmnopqrst" not in f"{found.message}{found.data.traceback}"
    held = {value.name: value.text for value in found.variables}
    assert held["api_key"] == "***" and held["size"] == "3" and "pass@" not in held["url"]


def test_our_own_calls_are_not_in_the_traceback():
    with pytest.raises(TypeError) as caught:
        exception.redact_text(3)  # pyright: ignore[reportArgumentType]
    assert any("redaction.py" in str(entry.path) for entry in caught.traceback)
    facts = exception.facts(caught.value)
    assert "redaction.py" not in (facts.traceback or "redaction.py")
    assert facts.file.endswith("test_crash.py")
    hide_ours(caught.value)
    assert "redaction.py" not in "".join(traceback.format_exception(caught.value))


class Labels(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.samples = [(f"img/{i}.png", i) for i in range(8)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> int:
        return {0: 1, 1: 2, 2: 3, 3: 4}[i]


def test_the_sample_is_named_and_its_file():
    with pytest.raises(KeyError) as caught:
        list(torch.utils.data.DataLoader(Labels(), 3))
    facts = exception.facts(caught.value)
    assert (facts.sample, facts.sample_file) == (4, "img/4.png")
    assert facts.phase == "loading" and facts.indices == (3, 4, 5)


def test_the_line_of_a_worker_is_read_from_its_text_where_nothing_else_came():
    with pytest.raises(KeyError) as caught:
        list(torch.utils.data.DataLoader(Labels(), 3, num_workers=1))
    facts = exception.facts(caught.value)
    assert (facts.type, facts.message) == ("KeyError", "4")
    assert facts.function == "__getitem__" and (facts.code or "").startswith("return {0: 1")
    assert facts.process == "DataLoader worker process 0"
    assert (facts.called_from or "").startswith(facts.file)


def test_the_facts_of_a_worker_travel_with_its_error():
    from torch._utils import ExceptionWrapper

    with pytest.raises(KeyError) as raised:
        Labels()[6]
    where = "in DataLoader worker process 3"
    wrapper = ExceptionWrapper((raised.type, raised.value, raised.tb), where)
    worker_error.carry(wrapper, exception.facts(raised.value))
    with pytest.raises(KeyError) as caught:
        wrapper.reraise()
    facts = exception.facts(caught.value)
    assert (facts.message, facts.sample) == ("6", 6)
    assert facts.process == "DataLoader worker process 3"
    assert facts.traceback and facts.function == "__getitem__"


def test_a_worker_without_a_line_of_the_users_is_reported_by_the_loop():
    from torch._utils import ExceptionWrapper
    from torch.utils.data import default_collate

    with pytest.raises(RuntimeError) as raised:
        default_collate([torch.zeros(2), torch.zeros(3)])
    error = raised.value
    inner = error.__traceback__
    assert inner is not None
    error.__traceback__ = inner.tb_next  # as in the worker, where nothing of this file ran
    wrapper = ExceptionWrapper((type(error), error, error.__traceback__), "in a worker")
    worker_error.carry(wrapper, exception.facts(error))
    with pytest.raises(RuntimeError) as caught:
        wrapper.reraise()
    facts = exception.facts(caught.value)
    assert facts.code == "wrapper.reraise()" and (facts.function or "").startswith("test_a_worker")
    assert facts.message.startswith("stack expects") and facts.called_from is None


def test_a_write_beyond_the_limit_for_files_names_the_limit_and_the_largest_part(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        found, cause = crash(
            tmp_path,
            f"""
            import resource
            state = {{"model": {{"w": torch.zeros(9)}}, "replay": [torch.zeros(1 << 20)]}}
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, {hard}))
            torch.save(state, {str(tmp_path / "state.pt")!r})
            """,
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found.place.code.startswith("torch.save")
    assert "larger than the limit of 1.0 MiB" in cause.headline
    assert "largest in state: 'replay', 4.0 MiB" in cause.advice


def test_a_syntax_error_of_a_helper_has_its_own_line(tmp_path: Path, monkeypatch: Any):
    (tmp_path / "helper_with_error.py").write_text("x = 1\ny = (2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SyntaxError) as caught:
        import helper_with_error  # noqa: F401 # pyright: ignore
    facts = exception.facts(caught.value)
    assert facts.file.endswith("helper_with_error.py") and facts.line == 2
    assert explain(facts).headline == "SyntaxError in helper_with_error.py:2"


def test_a_memory_error_names_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = MemoryLimit(name="slurm", bytes=2**30, used=2**30)
    monkeypatch.setattr(exception, "shared_limits", lambda: [limit])
    _, cause = crash(tmp_path, "raise MemoryError()")
    assert cause.headline == "out of memory at the memory of its SLURM job, 1.0 GiB"
    assert "sbatch --mem" in cause.advice


@pytest.mark.parametrize(
    ("kills", "words"), [(1, "by the OOM killer"), (0, "was killed (SIGKILL)")]
)
def test_a_worker_that_the_kernel_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, words: str
) -> None:
    monkeypatch.setattr(surroundings, "_KILLED_BEFORE", 3)
    monkeypatch.setattr(surroundings, "oom_kills", lambda: 3 + kills)
    said = "DataLoader worker (pid 12) is killed by signal: Killed. "
    _, cause = crash(tmp_path, f"raise RuntimeError({said!r})")
    assert words in cause.headline


def test_the_exit_code_of_a_dead_worker_is_read(tmp_path: Path) -> None:
    found, cause = crash(
        tmp_path,
        """
        import os, signal
        class Data(Dataset):
            def __len__(self):
                return 9
            def __getitem__(self, index):
                os.kill(os.getpid(), signal.SIGKILL)
        for batch in DataLoader(Data(), num_workers=1):
            pass
        """,
    )
    assert found.data.world == 1
    assert "was killed (SIGKILL)" in cause.headline, cause


def test_a_pipe_without_a_reader_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    kept = os.dup(1)
    try:
        os.dup2(writing, 1)
        assert surroundings.output(BrokenPipeError()).output_gone is None
        os.close(reading)
        assert surroundings.output(BrokenPipeError()).output_gone == "stdout"
        assert surroundings.output(ConnectionResetError()).output_gone is None
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(writing)


def test_sizes_behind_a_prefix_are_compared(tmp_path: Path) -> None:
    _, cause = crash(
        tmp_path,
        """
        make = lambda n: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, n))
        state = {f"module.{k}": v for k, v in make(10).state_dict().items()}
        make(5).load_state_dict(state)
        """,
    )
    assert "prefix 'module.', and 1.weight is 10, 4 in the checkpoint and 5, 4" in cause.headline
    assert "strip it" in cause.advice and "strict=False" in cause.advice


def test_an_error_raised_from_another_carries_its_facts(tmp_path: Path) -> None:
    found, cause = crash(
        tmp_path,
        """
        layer = nn.Linear(20, 1)
        try:
            layer(torch.zeros(8, 24))
        except RuntimeError as error:
            raise ValueError("bad batch") from error
        """,
    )
    assert found.type == "ValueError" and found.data.raised_from
    assert (
        cause.headline == ""
        and "expects 20 features and gets 24" in explain(root(found.data)).headline
    )


def test_the_disk_that_a_file_was_written_to_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = os.statvfs(tmp_path)
    script = "def save(f):\n    raise RuntimeError('unexpected pos 64 vs 0')\nsave({!r})"
    found, cause = crash(tmp_path, script.format(str(tmp_path / "deep" / "a.pt")))
    assert found.data.disk is None  # the folder is not there
    found, cause = crash(tmp_path, script.format(str(tmp_path / "a.pt")))
    assert found.data.disk is not None and found.data.disk.folder == str(tmp_path)
    assert (left.f_bavail * left.f_frsize > 64 << 20) == ("not known" in cause.advice)
    full = os.statvfs_result((*left[:4], 0, *left[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    _, cause = crash(tmp_path, script.format(str(tmp_path / "a.pt")))
    assert cause.headline == "the disk is full" and "has 0 B free" in cause.advice, cause
