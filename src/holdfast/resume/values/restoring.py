"""Puts taken values back into the variables of a script that was started again.

Objects keep their identity: lists and dicts are filled in place, attributes are set on the object
that the script has made, so that whoever else holds it sees the same.
"""

from __future__ import annotations

import collections
import copy
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..refusal import RefusedError
from . import admitted, arrays, hidden, live_objects, open_files, plain, secrets
from .digests import array_digest, items_digest, pickle_digest, tensor_digest
from .nodes import DICTS, KIND, MISSING, SCALARS, Node, class_name, shown
from .tensors import storage_of

_FACTORIES = {"int": int, "float": float, "list": list}
_LEAVES = (*SCALARS, np.generic, torch.dtype, torch.device)
_ORDERED: tuple[Any, ...] = (list, tuple, collections.deque)
_LONG = frozenset((*_ORDERED, set, frozenset, *DICTS.values()))
_DEPTH = 200
"""Three times what is ever saved."""


class ValueRestoring:
    """One time of putting values back; what was one object stays one.

    Args:
        put_feed: notes where an iterator over a loader is to go on.
    """

    def __init__(self, put_feed: Callable[..., object] | None = None) -> None:
        self._put_feed = put_feed
        self._made: dict[str, Any] = {}
        self._given: set[int] = set()
        """Objects that were filled, or are to stay as the script has made them: two that were two
        at the checkpoint are not one here."""
        self._memory: set[int] = set()
        """Where that lies in memory which is to stay as it is."""
        self._before: dict[int, Any] = {}
        """What was in the numbers that were filled."""
        self._depth = 0

    @torch.no_grad()
    def value(self, live: Any, node: Node, path: str) -> Any:
        """The value of a node, made of the live one where that can be."""
        self._depth += 1
        try:
            made = self._value(live, node, path)
        except RefusedError:
            raise
        except Exception as error:
            text = f"was not saved in a form that is read ({type(error).__name__}: {error})"
            raise RefusedError(f"{shown(path)} {text}") from None
        finally:
            self._depth -= 1
        if made is not live and (admitted.is_code(live) or admitted.is_code(made)):
            raise RefusedError(f"{shown(path)} is code, which a checkpoint does not put in place")
        return made

    def _value(self, live: Any, node: Node, path: str) -> Any:
        if self._depth > _DEPTH:
            raise RefusedError(f"{shown(path)} is nested too deeply")
        if isinstance(node, _LEAVES):
            return node
        kind = node[KIND]
        if kind in plain.KINDS:
            return plain.restore(live, node)
        method = _METHODS.get(kind)
        if method is None:
            raise RefusedError(f"{shown(path)} was saved in a form this version does not know")
        return method(self, live, node, path)

    def _keep(self, live: Any, path: str, what: str) -> Any:
        if live is MISSING:
            raise RefusedError(
                f"{shown(path)} ({what}) is not there yet when the resumed run comes to its loop"
            )
        self._made[path] = live
        return live

    def _stay(self, live: Any, path: str, what: str) -> Any:
        """What keeps the contents it has: nothing is put into it for the sake of another name."""
        self._given.add(id(self._keep(live, path, what)))
        if isinstance(live, Tensor | np.ndarray):
            self._memory.add(_start(live))
        return live

    def _give(self, path: str, made: Any) -> Any:
        self._made[path] = made
        self._given.add(id(made))
        return made

    def _fits(self, live: Any, *kinds: type) -> bool:
        """Whether a live object of these classes is there to be filled, and was not yet."""
        return type(live) in kinds and id(live) not in self._given

    def _ref(self, live: Any, node: Node, path: str) -> Any:
        stays = isinstance(live, Tensor | np.ndarray)
        return (self._stay if stays else self._keep)(live, path, node["c"])

    def _same(self, live: Any, node: Node, path: str) -> Any:
        if node["p"] not in self._made:
            return self._keep(live, path, "another name")
        return self._made[node["p"]]

    def _large(self, live: Any, node: Node, path: str) -> Any:
        fits = type(live) in _LONG or isinstance(live, tuple)
        if not fits or type(live).__name__ != node["c"] or len(live) != node["n"]:
            raise RefusedError(f"{shown(path)} does not hold {node['n']:,} items as it did")
        if node["h"] and items_digest(live) != node["h"]:
            raise RefusedError(f"{shown(path)} holds other items than it did")
        return self._stay(live, path, node["c"])

    def _made_again(self, live: Any, node: Node, path: str) -> Any:
        """A tensor or an array that the script has made again by itself: it must be the same."""
        live = self._stay(self._before.get(id(live), live), path, node["c"])
        if not isinstance(live, Tensor | np.ndarray):
            raise RefusedError(f"{shown(path)} is no {node['c']} in the resumed run")
        if node["h"]:
            digest = tensor_digest(live) if isinstance(live, Tensor) else array_digest(live)
            if digest != node["h"]:
                raise RefusedError(f"the script makes {shown(path)} with other values each time")
        return live

    def _secret(self, live: Any, node: Node, path: str) -> Any:
        """A text that no checkpoint holds: the script has it again by itself."""
        self._keep(live, path, "a secret, which no checkpoint holds")
        if node["h"] and not secrets.same(live, node["h"]):
            raise RefusedError(f"{shown(path)} is a secret, and another one than it was")
        return live

    def _held(self, live: Any, node: Node, path: str) -> Any:
        self._stay(live, path, node["c"])
        try:
            same = pickle_digest(live) == node["h"]
        except Exception:
            same = False
        if not same:
            raise RefusedError(f"{shown(path)} ({node['c']}) is not what it was")
        return live

    # ------------------------------------------------------------------ numbers

    def _tensor(self, live: Any, node: Node, path: str) -> Any:
        return self._placed(live, node["v"], node, path)

    def _bytes(self, live: Any, node: Node, path: str) -> Any:
        return self._placed(live, live_objects.from_bytes(node), node, path)

    def _placed(self, live: Any, saved: Tensor, node: Node, path: str) -> Any:
        if not isinstance(saved, Tensor):
            raise TypeError("a tensor is missing")
        free = isinstance(live, nn.Parameter) and id(live) not in self._given
        if free and live.shape == saved.shape:
            self._before[id(live)] = live.clone()
            live.copy_(saved)
            made: Any = live
        else:
            made = saved.to(torch.device(node["d"]), copy=True)
            if "w" in node:
                made = made.as_strided(*_layout(node["w"]))
            if node.get("g"):
                made.requires_grad_(True)
        return self._give(path, made)

    def _part(self, live: Any, node: Node, path: str) -> Any:
        """A tensor in the memory of another one."""
        other = self._made.get(node["p"])
        if isinstance(other, np.ndarray):
            other = torch.from_numpy(arrays.row_of(other))
        if not isinstance(other, Tensor):
            raise RefusedError(f"{shown(path)} is a part of a tensor that is not there")
        made = self._made[path] = other.detach().as_strided(*_layout(node["w"]))
        return made

    def _array(self, live: Any, node: Node, path: str) -> Any:
        saved = node["v"]
        if type(saved) is not np.ndarray:
            raise TypeError("an array is missing")
        same = self._fits(live, np.ndarray)
        same = same and live.shape == saved.shape and live.dtype == saved.dtype
        if same and arrays.is_mapped(live):
            raise RefusedError(f"{shown(path)} is mapped from a file")
        # What lies in the memory of another here has one of its own at the checkpoint.
        if same and live.base is None and _start(live) not in self._memory:
            self._before[id(live)] = live.copy()
            live[...] = saved
            saved = live
        return self._give(path, saved)

    def _view(self, live: Any, node: Node, path: str) -> Any:
        """An array in the memory of another one, or of a tensor."""
        root = arrays.root_of(live) if isinstance(live, np.ndarray) else None
        memory = self.value(MISSING if root is None else root, node["v"], f"{path}.base")
        if id(live) in self._given:
            live = MISSING
        return self._give(path, arrays.placed(live, memory, node["w"]))

    # ------------------------------------------------------------------ containers

    def _inner(self, live: Any, items: list[Node], path: str) -> list[Any]:
        # Past the methods of its class, which may be the user's own.
        iterate = next((k.__iter__ for k in _ORDERED if isinstance(live, k)), None)
        old = [] if iterate is None else list(iterate(live))
        old += [MISSING] * (len(items) - len(old))
        return [
            self.value(one, item, f"{path}[{i}]")
            for i, (one, item) in enumerate(zip(old, items, strict=False))
        ]

    def _list(self, live: Any, node: Node, path: str) -> Any:
        target: list[Any] = live if self._fits(live, list) else []
        self._give(path, target)
        target[:] = self._inner(list(target), node["v"], path)
        return target

    def _tuple(self, live: Any, node: Node, path: str) -> Any:
        values = self._inner(live, node["v"], path)
        before = list(tuple.__iter__(live)) if isinstance(live, tuple) else [MISSING]
        if len(before) == len(values) and all(map(operator.is_, before, values)):
            return live
        if "c" in node:
            kind = admitted.named_tuple(live, node["c"], len(values), path)
            return tuple.__new__(kind, values)
        return tuple(values)

    def _set(self, live: Any, node: Node, path: str) -> Any:
        target: set[Any] = live if self._fits(live, set) else set()
        self._give(path, target)
        values = self._members(node, path)
        target.clear()
        target.update(values)
        return target

    def _frozenset(self, live: Any, node: Node, path: str) -> Any:
        return frozenset(self._members(node, path))

    def _members(self, node: Node, path: str) -> list[Any]:
        values = self._inner((), node["v"], path)
        for one in values:
            admitted.check_key(one, path)
        return values

    def _deque(self, live: Any, node: Node, path: str) -> Any:
        fits = self._fits(live, collections.deque) and live.maxlen == node["m"]
        target: collections.deque[Any] = live if fits else collections.deque(maxlen=node["m"])
        self._give(path, target)
        values = self._inner(list(target), node["v"], path)
        target.clear()
        target.extend(values)
        return target

    def _dict(self, live: Any, node: Node, path: str) -> Any:
        kind = DICTS[node["t"]]
        if self._fits(live, kind):
            target: Any = live
        elif kind is collections.defaultdict:
            if node["f"] not in _FACTORIES:
                raise RefusedError(f"{shown(path)} is not there yet in the resumed run")
            target = kind(_FACTORIES[node["f"]])
        else:
            target = kind()
        self._give(path, target)
        old = dict(target)
        keys_by_number = list(old)
        values: dict[Any, Any] = {}
        for number, (key, item) in enumerate(node["v"]):
            if isinstance(key, Mapping):
                known = keys_by_number[number] if number < len(keys_by_number) else MISSING
                key = self.value(known, key, f"{path}[key {number}]")
                if key is not known:
                    admitted.check_key(key, path)
                where = f"{path}[{number}]"
            else:
                where = f"{path}[{key!r}]"
            values[key] = self.value(old.get(key, MISSING), item, where)
        target.clear()
        target.update(values)
        if "a" in node and kind is collections.OrderedDict:
            for name, one in self.value({}, node["a"], f"{path}.__dict__").items():
                admitted.check_attribute(target, name, path)
                vars(target)[name] = one
        return target

    # ------------------------------------------------------------------ objects

    def _enum(self, live: Any, node: Node, path: str) -> Any:
        return admitted.member(live, node["c"], node["v"], path)

    def _object(self, live: Any, node: Node, path: str) -> Any:
        target = live
        if live is MISSING or class_name(type(live)) != node["c"] or id(live) in self._given:
            target = admitted.new_object(node["c"], path)
        elif not admitted.may_be_filled(live, few="few" in node):
            raise RefusedError(f"{shown(path)} ({node['c']}) is not filled by a checkpoint")
        self._give(path, target)
        live_objects.fill_object(target, node, path, self.value)
        return target

    def _module(self, live: Any, node: Node, path: str) -> Any:
        template = self._made.get(node.get("t", ""))
        if id(live) in self._given:  # one that stood under two names, which has become two
            live = MISSING
        if not live_objects.is_module(live, node) and live_objects.is_module(template, node):
            # A copy that the script has made amid the training, as it made it.
            live = copy.deepcopy(template)
            live.zero_grad(set_to_none=True)
        if not live_objects.is_module(live, node):
            raise RefusedError(f"{shown(path)} is no {node['c']} in the resumed run")
        self._give(path, live)
        self._made |= live_objects.fill_module(live, node, path, self.value)
        return live

    def _iterator(self, live: Any, node: Node, path: str) -> Any:
        made = self._made[path] = hidden.restore_iterator(live, node, path)
        return made

    def _pass(self, live: Any, node: Node, path: str) -> Any:
        self._keep(live, path, "an iterator over a loader")
        if self._put_feed is None:
            raise RefusedError(f"{shown(path)} reads a loader that is not gone on with")
        self._put_feed(live, node, path, self.value)
        return live

    def _filled(self, live: Any, node: Node, path: str) -> Any:
        """What the script has made again: it gets what it held, and is never made here."""
        self._keep(live, path, f"{node.get('c', node[KIND])}")
        fill = _FILLED[node[KIND]]
        fill(live, node, path, self.value)
        return live


def _start(numbers: Tensor | np.ndarray[Any, Any]) -> int:
    return storage_of(numbers) if isinstance(numbers, Tensor) else arrays.start_of(numbers)


def _layout(saved: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    shape, strides, first = (tuple(int(one) for one in part) for part in saved)
    return shape, strides, first[0]


_FILLED: dict[str, Callable[[Any, Node, str, live_objects.Value], None]] = {
    "optimizer": live_objects.fill_optimizer,
    "parts": live_objects.fill_parts,
    "function": live_objects.fill_function,
    "class": live_objects.fill_class,
    "scaler": live_objects.fill_scaler,
    "generator": live_objects.fill_generator,
    "random": live_objects.fill_generator,
    "cached": hidden.fill_cache,
    "local": hidden.fill_local,
    "place": hidden.fill_place,
    "bar": hidden.fill_bar,
    "file": open_files.fill,
    "memory file": open_files.fill_memory,
}
_METHODS: dict[str, Callable[[ValueRestoring, Any, Node, str], Any]] = {
    name: getattr(ValueRestoring, f"_{name}")
    for name in (
        *("ref", "same", "large", "held", "tensor", "bytes", "part", "array", "view"),
        *("enum", "object", "module", "secret", "pass"),
        *("list", "tuple", "set", "frozenset", "deque", "dict"),
    )
}
_METHODS |= {"made": ValueRestoring._made_again, "count": ValueRestoring._iterator}
_METHODS |= {"iterator": ValueRestoring._iterator} | dict.fromkeys(_FILLED, ValueRestoring._filled)
