"""The search for modules finds exactly those that live, whatever else does."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from holdfast.probes.model_state import live_modules


def ids(modules: list[nn.Module]) -> set[int]:
    return {id(module) for module in modules}


class Both(dict[str, int], nn.Linear):  # type: ignore[misc]
    """Its module is the second parent."""

    def __init__(self) -> None:
        nn.Linear.__init__(self, 2, 2)


class Deeper(Both, nn.Module):
    """Reached by two ways."""


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_wrappers_copies_and_classes_of_the_script_are_found() -> None:
    class Made(nn.Sequential):
        """Made while the script runs."""

    inner = nn.Linear(2, 2)
    there = [
        inner,
        nn.Module(),
        Made(inner),
        Both(),
        Deeper(),
        copy.deepcopy(inner),
        AveragedModel(inner),
        nn.parallel.DataParallel(inner),
        torch.jit.script(nn.Linear(2, 2)),
        torch.fx.symbolic_trace(nn.Linear(2, 2)),
    ]
    assert ids(there) <= ids(live_modules())


def test_it_finds_what_asking_every_object_finds() -> None:
    kept = [nn.Linear(2, 2), Deeper(), {}]
    asked = [o for o in gc.get_objects() if issubclass(type(o), nn.Module)]
    assert ids(asked) == ids(live_modules()) and len(kept) == 3


def test_a_proxy_is_neither_asked_nor_taken_for_what_it_says() -> None:
    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            pytest.fail("it was asked for its class")

    proxies = [Proxy()]
    assert not ids(live_modules()) & {id(proxy) for proxy in proxies}


def test_a_module_is_found_beside_an_object_whose_class_cannot_be_hashed() -> None:
    class Odd(type):
        def __eq__(cls, other: object) -> bool:
            return False

    class Object(metaclass=Odd):
        pass

    with pytest.raises(TypeError):
        hash(Object)
    held, module = Object(), nn.Linear(2, 2)
    assert id(module) in ids(live_modules()) and held is not None


def test_nothing_is_kept() -> None:
    module = nn.Linear(2, 2)
    gone = weakref.ref(module)
    assert len(live_modules())
    del module
    assert gone() is None
