"""Puts taken values back into the variables of a script that was started again.

Objects keep their identity: lists and dicts are filled in place, attributes are set on the object
that the script has made, so that whoever else holds it sees the same.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..refusal import RefusedError
from . import generators, plain
from .digests import array_digest, items_digest, pickle_digest, tensor_digest
from .nodes import DICTS, KIND, MISSING, Node, class_name, class_named, shown
from .objects import cells

_FACTORIES = {"int": int, "float": float, "list": list}


class Restoring:
    """One time of putting values back; what was one object stays one."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    @torch.no_grad()
    def value(self, live: Any, node: Node, path: str) -> Any:
        """The value of a node, made of the live one where that can be."""
        if not isinstance(node, Mapping):
            return node
        kind = node[KIND]
        if kind in plain.KINDS:
            return plain.restore(live, node, path)
        method = getattr(self, "_made_again" if kind == "made" else f"_{kind}", None)
        if method is None:
            raise RefusedError(f"{shown(path)} was saved in a form this version does not know")
        return method(live, node, path)

    def _keep(self, live: Any, path: str, what: str) -> Any:
        if live is MISSING:
            raise RefusedError(
                f"{shown(path)} ({what}) is not there yet when the resumed run comes to its loop"
            )
        self._made[path] = live
        return live

    def _ref(self, live: Any, node: Node, path: str) -> Any:
        return self._keep(live, path, node["c"])

    def _same(self, live: Any, node: Node, path: str) -> Any:
        if node["p"] not in self._made:
            return self._keep(live, path, "another name")
        return self._made[node["p"]]

    def _large(self, live: Any, node: Node, path: str) -> Any:
        if live is MISSING or type(live).__name__ != node["c"] or len(live) != node["n"]:
            raise RefusedError(f"{shown(path)} does not hold {node['n']:,} items as it did")
        if node["h"] and items_digest(live) != node["h"]:
            raise RefusedError(f"{shown(path)} holds other items than it did")
        return self._keep(live, path, node["c"])

    def _made_again(self, live: Any, node: Node, path: str) -> Any:
        """A tensor or an array that the script has made again by itself: it must be the same."""
        self._keep(live, path, node["c"])
        if node["h"]:
            digest = tensor_digest(live) if isinstance(live, Tensor) else array_digest(live)
            if digest != node["h"]:
                raise RefusedError(f"the script makes {shown(path)} with other values each time")
        return live

    def _held(self, live: Any, node: Node, path: str) -> Any:
        self._keep(live, path, node["c"])
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
        return self._placed(live, _from_bytes(node), node, path)

    def _placed(self, live: Any, saved: Tensor, node: Node, path: str) -> Any:
        if isinstance(live, nn.Parameter) and live.shape == saved.shape:
            live.copy_(saved)
            made: Any = live
        else:
            made = saved.to(node["d"], copy=True)
            if node.get("g"):
                made.requires_grad_(True)
        self._made[path] = made
        return made

    def _array(self, live: Any, node: Node, path: str) -> Any:
        saved = node["v"]
        if isinstance(live, np.ndarray) and live.shape == saved.shape and live.dtype == saved.dtype:
            live[...] = saved
            saved = live
        self._made[path] = saved
        return saved

    # ------------------------------------------------------------------ containers

    def _inner(self, live: Any, items: list[Node], path: str) -> list[Any]:
        old = list(live) if isinstance(live, list | tuple | collections.deque) else []
        old += [MISSING] * (len(items) - len(old))
        return [
            self.value(one, item, f"{path}[{i}]")
            for i, (one, item) in enumerate(zip(old, items, strict=False))
        ]

    def _list(self, live: Any, node: Node, path: str) -> Any:
        target: list[Any] = live if type(live) is list else []
        self._made[path] = target
        target[:] = self._inner(list(target), node["v"], path)
        return target

    def _tuple(self, live: Any, node: Node, path: str) -> Any:
        values = self._inner(live, node["v"], path)
        if isinstance(live, tuple) and len(live) == len(values):
            if all(a is b for a, b in zip(live, values, strict=True)):
                return live
            if hasattr(type(live), "_fields"):
                return type(live)(*values)
        if "c" in node:
            return class_named(node["c"], path)(*values)
        return tuple(values)

    def _set(self, live: Any, node: Node, path: str) -> Any:
        target: set[Any] = live if type(live) is set else set()
        self._made[path] = target
        values = self._inner((), node["v"], path)
        target.clear()
        target.update(values)
        return target

    def _frozenset(self, live: Any, node: Node, path: str) -> Any:
        return frozenset(self._inner((), node["v"], path))

    def _deque(self, live: Any, node: Node, path: str) -> Any:
        fits = type(live) is collections.deque and live.maxlen == node["m"]
        target: collections.deque[Any] = live if fits else collections.deque(maxlen=node["m"])
        self._made[path] = target
        values = self._inner(list(target), node["v"], path)
        target.clear()
        target.extend(values)
        return target

    def _dict(self, live: Any, node: Node, path: str) -> Any:
        kind = DICTS[node["t"]]
        if type(live) is kind:
            target: Any = live
        elif kind is collections.defaultdict:
            if node["f"] not in _FACTORIES:
                raise RefusedError(f"{shown(path)} is not there yet in the resumed run")
            target = kind(_FACTORIES[node["f"]])
        else:
            target = kind()
        self._made[path] = target
        old = dict(target)
        keys_by_number = list(old)
        values: dict[Any, Any] = {}
        for number, (key, item) in enumerate(node["v"]):
            if isinstance(key, Mapping):
                known = keys_by_number[number] if number < len(keys_by_number) else MISSING
                key = self.value(known, key, f"{path}[key {number}]")
                where = f"{path}[{number}]"
            else:
                where = f"{path}[{key!r}]"
            values[key] = self.value(old.get(key, MISSING), item, where)
        target.clear()
        target.update(values)
        return target

    # ------------------------------------------------------------------ objects

    def _object(self, live: Any, node: Node, path: str) -> Any:
        target = live
        if live is MISSING or class_name(type(live)) != node["c"]:
            kind = class_named(node["c"], path)
            target = kind.__new__(kind)
        self._made[path] = target
        own = getattr(target, "__dict__", None)
        for name, item in node["a"]:
            old = own.get(name, MISSING) if own is not None else getattr(target, name, MISSING)
            if own is None or (name not in own and hasattr(type(target), name)):
                old = getattr(target, name, MISSING)
            new = self.value(old, item, f"{path}.{name}")
            if new is old:
                continue
            if own is not None and not _is_slot(type(target), name):
                own[name] = new
            else:
                object.__setattr__(target, name, new)
        if own is not None and "few" not in node:
            kept = {name for name, _ in node["a"]}
            for name in [name for name in own if name not in kept]:
                del own[name]
        if "i" in node:
            held: Any = list(target) if isinstance(target, list) else dict(target)
            items = self.value(held, node["i"], f"{path}[:]")
            target.clear()
            (target.extend if isinstance(target, list) else target.update)(items)
        return target

    def _module(self, live: Any, node: Node, path: str) -> Any:
        if not isinstance(live, nn.Module) or class_name(type(live)) != node["c"]:
            raise RefusedError(f"{shown(path)} is no {node['c']} in the resumed run")
        self._made[path] = live
        own = vars(live)
        for name, item in node["a"]:
            own[name] = self.value(own.get(name, MISSING), item, f"{path}.{name}")
        for name, wants, saved in node["p"]:
            parameter = live._parameters.get(name)
            if parameter is None:
                raise RefusedError(f"{shown(path)} has no parameter {name} in the resumed run")
            self._made[f"{path}.{name}"] = parameter
            self._fill(parameter, saved, f"{path}.{name}")
            parameter.requires_grad_(wants)
        for name, saved in node["b"]:
            buffer = live._buffers.get(name)
            if isinstance(saved, Mapping) and buffer is None:
                live._buffers[name] = self.value(MISSING, saved, f"{path}.{name}")
            elif buffer is not None:
                self._made[f"{path}.{name}"] = buffer
                self._fill(buffer, saved, f"{path}.{name}")
        for name, child in node["k"]:
            self.value(live._modules.get(name, MISSING), child, f"{path}.{name}")
        return live

    @staticmethod
    def _fill(tensor: Tensor, saved: Any, path: str) -> None:
        if saved is None:
            return
        if saved[KIND] == "made":
            if saved["h"] and tensor_digest(tensor) != saved["h"]:
                raise RefusedError(f"the script makes {shown(path)} with other values each time")
            return
        held = saved["v"] if saved[KIND] == "tensor" else _from_bytes(saved)
        if tensor.shape != held.shape or tensor.dtype != held.dtype:
            raise RefusedError(f"{shown(path)} has another shape in the resumed run")
        tensor.copy_(held)

    def _optimizer(self, live: Any, node: Node, path: str) -> Any:
        if not isinstance(live, Optimizer) or len(live.param_groups) != len(node["v"]):
            raise RefusedError(f"{shown(path)} has other parameter groups in the resumed run")
        self._made[path] = live
        for group, saved in zip(live.param_groups, node["v"], strict=True):
            for key, value in saved:
                if key not in ("fused", "foreach", "capturable"):
                    group[key] = value
        own = vars(live)
        for name, item in node.get("a", ()):
            own[name] = self.value(own.get(name, MISSING), item, f"{path}.{name}")
        return live

    def _parts(self, live: Any, node: Node, path: str) -> Any:
        self._keep(live, path, node["c"])
        for name, item in node["a"]:
            where = path if name == "__self__" else f"{path}.{name}"
            self.value(getattr(live, name, MISSING), item, where)
        return live

    def _function(self, live: Any, node: Node, path: str) -> Any:
        self._keep(live, path, "function")
        held = cells(live)
        for label, item in node["a"]:
            what, _, name = label.partition(" ")
            if what == "cell" and name in held:
                cell = held[name]
                cell.cell_contents = self.value(cell.cell_contents, item, f"{path}.{name}")
            elif what == "default":
                self.value(live.__defaults__[int(name)], item, f"{path}.default[{name}]")
            elif what == "attribute":
                old = vars(live).get(name, MISSING)
                setattr(live, name, self.value(old, item, f"{path}.{name}"))
        return live

    def _class(self, live: Any, node: Node, path: str) -> Any:
        self._keep(live, path, "class")
        for name, item in node["a"]:
            old = vars(live).get(name, MISSING)
            new = self.value(old, item, f"{path}.{name}")
            if new is not old:
                setattr(live, name, new)
        return live

    def _scaler(self, live: Any, node: Node, path: str) -> Any:
        self._keep(live, path, "GradScaler")
        if node["v"]:
            live.load_state_dict(dict(node["v"]))
        return live

    def _generator(self, live: Any, node: Node, path: str) -> Any:
        self._keep(live, path, "generator")
        generators.put_back(live, node)
        return live

    _random = _generator


def _from_bytes(node: Node) -> Tensor:
    if not node["v"]:
        return torch.empty(node["s"], dtype=node["t"])
    raw = torch.frombuffer(bytearray(node["v"]), dtype=torch.uint8)
    return raw.view(node["t"]).reshape(node["s"])


def _is_slot(kind: type, name: str) -> bool:
    return hasattr(kind, name) and type(getattr(kind, name)).__name__ == "member_descriptor"
