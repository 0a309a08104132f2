"""What makes a run what it is, taken from the live objects and put back into them, bit for bit.

``state()`` copies nothing: the tensors in it are the live ones, detached. Whoever wants to keep
it copies them. ``put_back()`` writes into the tensors that are there, so that whatever holds a
reference to them (a compiled graph, a fused kernel's list, a view) goes on seeing the right one.

    >>> import copy, torch
    >>> model = torch.nn.Linear(2, 1)
    >>> mine = TrainingState({"model": model}, [torch.optim.SGD(model.parameters(), lr=0.1)])
    >>> saved = copy.deepcopy(mine.state())
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> mine.put_back(saved)
    >>> bool(model.weight.any())
    True
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import CheckpointError
from ..shards import is_sharded, local
from . import module_state, optimizer_state, scaler_state
from . import rng as rng_
from .compare import Differences, Form, differences
from .file import load
from .finite import is_finite, nonfinite_places
from .object_state import (
    Copies,
    Notes,
    plain,
    restored,
)
from .record import FOLDER_NAME
from .tree import flatten

Tree = dict[str, Any]

RNG = "dice"
"""The part with the RNG state, as checkpoint files call it."""

PARTS = ("models", "optimizers", "schedulers", "scaler", "ema", "others", RNG, "gradients")
"""What ``put_back`` can be asked for, in the order in which it is done."""

_NOT_MADE: Form = ("none", ())


class BestState(NamedTuple):
    """The state that validation found best, read back from its checkpoint."""

    tree: Mapping[str, Any]
    step: int
    value: float


class TrainingState:
    """The live objects of a run.

    Args:
        models: by the names they are saved under.
        optimizers: in the order in which they are saved.
        schedulers: anything with ``state_dict`` and ``load_state_dict``.
        scaler: a ``GradScaler``, if there is one.
        ema: averaged models, or objects with ``state_dict`` and ``load_state_dict``.
        others: more of these, by name; a ``torch.Generator`` will do as well.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        optimizers: Sequence[Optimizer],
        *,
        schedulers: Sequence[Any] = (),
        scaler: Any = None,
        ema: Mapping[str, Any] | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        self.models = dict(models)
        self.optimizers = list(optimizers)
        self.schedulers = list(schedulers)
        self.scaler = scaler
        self.ema = dict(ema or {})
        self.others = dict(others or {})

    def state(self, *, rng_state: bool = True, gradients: bool = False) -> Tree:
        """Everything, as a tree of live tensors and plain values; no tensor is copied.

        Args:
            rng_state: with the random state of this process.
            gradients: with the gradients there are, for a state amid accumulation.
        """
        notes = Notes()
        tree: Tree = {
            "models": {n: module_state.state(m, n, notes) for n, m in self.models.items()},
            "optimizers": [
                optimizer_state.state(optimizer, f"optimizers.{number}", notes)
                for number, optimizer in enumerate(self.optimizers)
            ],
            "schedulers": [],
            "scaler": None,
            "ema": {},
            "others": {},
        }
        for part, key, one in self._beside():
            if part == "scaler":
                tree[part] = plain(scaler_state.state(one), part, notes.not_saved)
                continue
            value = _state_of(one, f"{part}.{key}", notes)
            if part == "schedulers":
                tree[part].append(value)
            else:
                tree[part][key] = value
        if rng_state:
            tree["dice"] = rng_.state()
        if gradients:
            tree["gradients"] = [optimizer_state.gradients(o) for o in self.optimizers]
        tree["loose"] = sorted(notes.loose)
        tree["left_out"] = sorted(notes.not_saved)
        tree["tied"] = notes.tied
        return tree

    def is_sharded(self) -> bool:
        """Whether parameters are sharded over ranks (``DTensor``)."""
        models = self.models.values()
        return any(is_sharded(parameter) for one in models for parameter in one.parameters())

    def read(self, path: Path, *, rank: int = 0) -> tuple[Tree, dict[str, Any]]:
        """What ``put_back`` takes, read from a checkpoint, and its record.

        A tensor that is sharded over ranks here (``DTensor``) comes as this rank's part of it,
        whether it was saved whole or by another number of ranks.
        """
        live = self.state(rng_state=False)
        if FOLDER_NAME.fullmatch(path.name) or any(map(is_sharded, flatten(live)[1])):
            # Not before it is needed: the planners behind it take a while to import.
            from .sharded.live import load_for

            return load_for(live, path, rank=rank)
        return load(path)

    def differences(
        self, state: Mapping[str, Any], *, parts: Collection[str] | None = None
    ) -> Differences:
        """What of a saved state has no match in the live objects; nothing is touched.

        Parameters and persistent buffers must be the same ones; an optimizer must have the same
        parameters in the same order. What comes and goes by itself (optimizer state, buffers
        that are not persistent or not made yet) is no difference.
        """
        asked = _asked(state, parts)
        live = self.state(rng_state=False)
        averages = [n for n, one in self.ema.items() if isinstance(one, nn.Module)]
        saved_forms, live_forms = (_forms(tree, asked, averages) for tree in (state, live))
        for name in {*live["loose"], *state.get("loose", ())}:
            saved_forms.pop(name, None)
            live_forms.pop(name, None)
        # A buffer that one side has not made yet.
        for forms, others in ((saved_forms, live_forms), (live_forms, saved_forms)):
            for name in [name for name, form in forms.items() if form == _NOT_MADE]:
                del forms[name]
                others.pop(name, None)
        return differences(saved_forms, live_forms)

    @torch.no_grad()
    def put_back(self, state: Mapping[str, Any], *, parts: Collection[str] | None = None) -> None:
        """Make the live objects what they were; refuses a state that does not belong to them.

        Args:
            state: what ``state()`` gave, its tensors wherever they are.
            parts: some of ``PARTS``; all that the state has by default.
        """
        asked = _asked(state, parts)
        found = self.differences(state, parts=asked)
        if found:
            raise CheckpointError(
                f"the saved state does not fit the live objects; {found.message()}\n"
                "make the model, the optimizer and what else was saved as they were then"
            )
        if "optimizers" in asked:
            for number, optimizer in enumerate(self.optimizers):
                optimizer_state.check(
                    optimizer, state["optimizers"][number], f"optimizers.{number}"
                )
        copies = Copies()
        names: dict[int, str] = {}
        for name, model in self.models.items() if "models" in asked else ():
            module_state.put_back(model, state["models"][name], names, copies)
        for number, optimizer in enumerate(self.optimizers):
            if "optimizers" in asked:
                optimizer_state.put_back(optimizer, state["optimizers"][number], copies)
            if "gradients" in asked:
                optimizer_state.put_back_gradients(optimizer, state["gradients"][number], copies)
        copies.write()
        for part, key, one in self._beside():
            if part in asked:
                saved = scaler_state.numbers(state[part]) if part == "scaler" else state[part][key]
                _give_state(one, saved)
        if "dice" in asked:
            rng_.put_back(state["dice"])

    def buffers(self) -> dict[str, Tensor]:
        """Buffers of models and averages, by the names they have in a state."""
        named = [("models", *one) for one in self.models.items()]
        named += [("ema", *one) for one in self.ema.items() if isinstance(one[1], nn.Module)]
        return {
            f"{part}.{name}.{key}": value
            for part, name, module in named
            for key, value in module_state.buffers_in(module)
        }

    def infinite(self) -> dict[str, Tensor | None]:
        """Where buffers hold infinities or NaN now.

        Asked before the first step these are meant to (a mask): no sign of poison later.
        """
        held = self.buffers().items()
        return {name: nonfinite_places(value) for name, value in held if not is_finite(value)}

    def _beside(self) -> Iterator[tuple[str, Any, Any]]:
        """Part, key and object of everything that is neither a model nor an optimizer."""
        yield from (("schedulers", number, one) for number, one in enumerate(self.schedulers))
        if self.scaler is not None:
            yield "scaler", "", self.scaler
        yield from (("ema", name, one) for name, one in self.ema.items())
        yield from (("others", name, one) for name, one in self.others.items())


def loose(tree: Mapping[str, Any]) -> dict[str, None]:
    """Names of what comes and goes by itself (a mask made on the way): it may hold infinities."""
    return dict.fromkeys([*tree["loose"], *(f"models.{name}" for name in tree["loose"])])


def has_state(thing: Any) -> bool:
    """Whether the state of an object can be taken and given back."""
    if isinstance(thing, nn.Module | torch.Generator):
        return True
    return callable(getattr(thing, "state_dict", None)) and callable(
        getattr(thing, "load_state_dict", None)
    )


def _state_of(thing: Any, where: str, notes: Notes) -> Any:
    if isinstance(thing, nn.Module):
        # An average may hold the very tensors of the model it is made from.
        own = Notes(not_saved=notes.not_saved, loose=notes.loose, tied=notes.tied)
        return module_state.state(thing, where, own)
    if isinstance(thing, torch.Generator):
        return {"generator": thing.get_state()}
    return plain(thing.state_dict(), where, notes.not_saved)


def _give_state(thing: Any, saved: Any) -> None:
    if isinstance(thing, nn.Module):
        copies = Copies()
        module_state.put_back(thing, saved, {}, copies)
        copies.write()
    elif isinstance(thing, torch.Generator):
        thing.set_state(saved["generator"].cpu())
    else:
        thing.load_state_dict(restored(thing.state_dict(), saved))


def _asked(state: Mapping[str, Any], parts: Collection[str] | None) -> list[str]:
    return [part for part in PARTS if part in state and (parts is None or part in parts)]


def _forms(
    tree: Mapping[str, Any], parts: Collection[str], averages: Collection[str]
) -> dict[str, Form]:
    """Name, dtype and shape of whatever must be the same on both sides."""
    found: dict[str, Form] = {}
    for model, values in tree["models"].items() if "models" in parts else ():
        found |= _tensors(model, values)
    for number, entry in enumerate(tree["optimizers"]) if "optimizers" in parts else ():
        found |= optimizer_state.forms(entry, number)
    for number in range(len(tree["schedulers"])) if "schedulers" in parts else ():
        found[f"schedulers.{number}"] = "state", ()
    if "scaler" in parts and tree["scaler"] is not None:
        found["scaler"] = "state", ()
    for part in ("ema", "others"):
        for name, value in tree[part].items() if part in parts else ():
            found[f"{part}.{name}"] = "state", ()
            if part == "ema" and name in averages and isinstance(value, Mapping):
                found |= _tensors(f"{part}.{name}", value)
    return found


def _tensors(where: str, values: Mapping[str, Any]) -> dict[str, Form]:
    return {
        f"{where}.{key}": _NOT_MADE if value is None else _form(value)
        for key, value in values.items()
        if value is None or isinstance(value, Tensor)
    }


def _form(value: Tensor) -> Form:
    """Dtype and shape; where a tensor is spread over ranks, also the shape of the part here."""
    dtype: Any = value.dtype
    if is_sharded(value):
        dtype = f"{value.dtype} {list(local(value).shape)} of"
    return dtype, tuple(value.shape)
