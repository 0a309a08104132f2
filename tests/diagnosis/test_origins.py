"""Where loaders, optimizers and parts of a model were made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from holdfast.diagnosis.origins import Origins, parts_of
from holdfast.records.ranks import MadeAt

HERE = Path(__file__).name


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head: nn.Module = nn.Linear(2, 1)
        self.register_parameter("bare", nn.Parameter(torch.ones(1)))


class Larger(Model):
    pass


def line_with(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def test_the_line_that_made_the_loader_of_the_pass_at_work():
    origins = Origins()
    loader: Any = DataLoader([1, 2])  # type: ignore[arg-type]
    origins.made(loader, sys._getframe())
    line = sys._getframe().f_lineno - 1
    origins.pass_begins(loader)
    iterator = iter(loader)
    origins.pass_began(iterator)
    origins.feeds(iterator)
    assert (Path(origins.loader.file).name, origins.loader.line) == (HERE, line)
    assert origins.of(loader) == origins.loader
    origins.feeds(iter([]))  # data that no loader makes
    assert origins.loader == MadeAt()


def test_the_first_line_counts_and_what_has_no_hash_is_left_alone():
    origins = Origins()

    class Odd(nn.Module):
        __hash__ = None  # type: ignore[assignment]

    origins.made(Odd(), sys._getframe())
    assert origins.of(Odd()) == MadeAt()
    thing = nn.Linear(1, 1)
    origins.made(thing, sys._getframe())
    first = origins.of(thing)
    origins.made(thing, sys._getframe())  # an __init__ that calls another one
    assert origins.of(thing) == first != MadeAt()


def test_parts_of_a_model_are_where_its_class_makes_them():
    model = Larger()
    named = dict(model.named_parameters())
    reported = dict(zip(named, parts_of([model], list(named.values())), strict=True))
    wanted = {"encoder.inner.0.weight": "self.inner =", "head.bias": "self.head:"}
    for name, text in wanted.items():
        assert (Path(reported[name].file).name, reported[name].line) == (HERE, line_with(text)), (
            name
        )
    assert reported["bare"] == MadeAt()


def test_a_model_of_torch_alone_has_no_line():
    model = nn.Sequential(nn.Linear(1, 1))
    assert parts_of([model], list(model.parameters())) == [MadeAt(), MadeAt()]
